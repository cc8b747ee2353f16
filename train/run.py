"""Train on shards: from a config to a run folder."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..pipeline.runtime.tasks import ProgressCallback, silent
from ..pipeline.sizes import KIB
from .config import TrainConfig
from .data.batch import Batch
from .data.batch_order import RecordedOrder
from .data.hot_budget import with_hot_bytes
from .data.shards import Shards
from .model.dlrm_shape import preset_name
from .placements.choose_placement import staging_bytes
from .predict import Scores
from .run_folder import RunFolder, make_folder, refuse_occupied
from .trainer import Trainer, build_trainer, refuse_divergence, run_steps, set_threads

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainSummary:
    """What a run reached and what it cost."""

    auc: float | None
    log_loss: float | None
    """Nats a sample."""
    accuracy: float | None
    num_samples: int
    """Evaluation samples the three above are of."""
    hot: dict[str, Any]
    """The same four of the evaluation samples all of whose look-ups are hot."""
    mixed: dict[str, Any]
    """The same four of the others."""
    placement: str
    samples_per_second: float
    """Training samples; the training steps and switches alone."""
    bytes_to_fast: int
    """Rows and vectors from the slow tier, evaluation apart."""
    bytes_to_slow: int
    """Rows and gradients to the slow tier, evaluation apart."""
    run: str
    num_training_samples: int
    """All epochs together."""
    num_steps: int
    seconds_by_kind: dict[str, float]
    bytes_to_fast_by_kind: dict[str, int]
    bytes_to_slow_by_kind: dict[str, int]
    rows_by_table: dict[str, dict[str, int]]
    """Rows (or their vectors) of each table to the fast tier and to the slow one, and rows made on the fast
    tier at their first use; evaluation apart."""
    transfers: dict[str, float]
    """Of staging placements: seconds of transfers, seconds that batches stalled for them and how many did,
    the share of the transfers that was hidden behind compute, transfers that waited longer than the prefetch
    depth wants, and batches in passes."""
    threads: int
    """Of the dense layers."""
    test_losses: list[float]
    """Of the shuffle scheduler of ``fae``, nats a sample; one a switch."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def train(
    shards: Path,
    config: TrainConfig,
    out: Path,
    *,
    replay: Path | None = None,
    progress: ProgressCallback = silent,
) -> TrainSummary:
    """Train on ``shards`` (a shards folder, or the folder that holds it) and write the run to ``out``.

    Args:
        replay: a finished run whose batch order is used instead of the placement's own.

    Raises:
        HotsetError: shards that cannot be used, a config that does not fit them, ``out`` not empty.
    """
    refuse_occupied(out)
    opened = Shards.open(shards)
    if config.hot_bytes is not None:
        opened = with_hot_bytes(opened, config.hot_bytes, config.embedding_optimizer)
    opened.refuse_damage()
    threads = set_threads(config.threads)
    order = RecordedOrder.of_run(replay, opened.num_training_batches, config.epochs) if replay else None
    make_folder(out)
    trainer = build_trainer(opened, config, order, scratch=out)
    folder = RunFolder.begin(out, describe(trainer, threads, is_replay=replay is not None))
    log = _Log(folder, progress)
    run_steps(trainer, log)
    log.log_loss(trainer)
    _warn_of_passes(trainer)
    predictions = trainer.predictor.predict()
    scores, hot, mixed = predictions.scores, predictions.scores_of(hot=True), predictions.scores_of(hot=False)
    summary = summarise(trainer, threads, out, scores, hot, mixed)
    folder.log({"step": trainer.step, "evaluation": asdict(scores)})
    folder.save_weights(trainer.weights())
    folder.save_batch_order(trainer.numbers)
    folder.finish(summary.to_dict())
    return summary


def describe(trainer: Trainer, threads: int, *, is_replay: bool) -> dict[str, Any]:
    """What ``config.json`` says of a run."""
    shards = trainer.shards
    return {
        "config": asdict(trainer.config),
        "threads": threads,
        "is_replay": is_replay,
        "shards": shards.manifest.fingerprint,
        "batch_size": shards.batch_size,
        "model": preset_name(trainer.config.model, shards.embedding_dim),
        "embedding_dim": shards.embedding_dim,
        "num_dense": shards.num_dense,
        "tables": [
            {"name": table.name, "num_rows": table.num_rows, "embedding_dim": table.embedding_dim}
            for table in shards.tables
        ],
    }


def summarise(
    trainer: Trainer, threads: int, out: Path, scores: Scores, hot: Scores, mixed: Scores
) -> TrainSummary:
    """Put together what the trainer counted; its clock must be stopped."""
    meter = trainer.meter
    bytes_to_fast, bytes_to_slow = meter.training_bytes()
    names = [table.name for table in trainer.shards.tables]
    return TrainSummary(
        **asdict(scores),
        hot=asdict(hot),
        mixed=asdict(mixed),
        placement=trainer.config.placement,
        samples_per_second=trainer.num_samples / max(meter.training_seconds, 1e-9),
        bytes_to_fast=bytes_to_fast,
        bytes_to_slow=bytes_to_slow,
        run=str(out),
        num_training_samples=trainer.num_samples,
        num_steps=trainer.step,
        seconds_by_kind=dict(meter.seconds),
        bytes_to_fast_by_kind=dict(meter.bytes_to_fast),
        bytes_to_slow_by_kind=dict(meter.bytes_to_slow),
        rows_by_table=dict(zip(names, trainer.embeddings.rows_by_table(), strict=True)),
        transfers=transfers(trainer),
        threads=threads,
        test_losses=list(trainer.scheduler.losses) if trainer.scheduler else [],
    )


def transfers(trainer: Trainer) -> dict[str, float]:
    """How the transfers of a run went."""
    conveyor, feed = trainer.embeddings.conveyor, trainer.feed
    hidden = 1 - conveyor.stall_seconds / conveyor.busy_seconds if conveyor.busy_seconds else 1.0
    return {
        "seconds": conveyor.busy_seconds,
        "stall_seconds": conveyor.stall_seconds,
        "stalls": conveyor.num_stalls,
        "overlap": max(hidden, 0.0),
        "shortened": feed.num_shortened,
        "split": feed.num_split,
    }


def _warn_of_passes(trainer: Trainer) -> None:
    """Say what would do where batches had more cold rows than there are slots: it costs a second fetch."""
    feed = trainer.feed
    if not feed.num_split:
        return
    enough = math.ceil(staging_bytes(trainer.config, trainer.shards) * feed.slots_wanted / KIB) + 1
    _log.warning(
        "%s of %s batches had more cold rows than staging slots and ran in passes: "
        "--staging-bytes %sKiB would do",
        feed.num_split,
        trainer.step,
        enough,
    )


class _Log:
    """Writes the losses and evaluations of a run as it goes, and shows its progress."""

    def __init__(self, folder: RunFolder, progress: ProgressCallback) -> None:
        self._folder = folder
        self._progress = progress

    def __call__(self, trainer: Trainer, batch: Batch, loss_sum: torch.Tensor) -> None:
        trainer.losses.append(loss_sum)
        trainer.logged_samples += batch.num_samples
        if trainer.step % trainer.config.log_every == 0:
            self.log_loss(trainer)
        if trainer.config.evaluate_every and trainer.step % trainer.config.evaluate_every == 0:
            scores = trainer.predictor.predict().scores
            self._folder.log({"step": trainer.step, "evaluation": asdict(scores)})
        total = trainer.shards.num_training_samples * trainer.config.epochs
        self._progress("train", trainer.num_samples, total)

    def log_loss(self, trainer: Trainer) -> None:
        """Write the mean loss since the last line, if there were steps since."""
        if not trainer.losses:
            return
        mean_loss = float(torch.stack(trainer.losses).sum()) / trainer.logged_samples
        refuse_divergence(mean_loss, trainer.step)
        self._folder.log({"step": trainer.step, "samples": trainer.num_samples, "loss": mean_loss})
        trainer.losses.clear()
        trainer.logged_samples = 0
