"""Train on shards: from a config to a run folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..pipeline.errors import KIB
from .begin_run import begin_run, build_run, find_checkpoint
from .checkpoints.checkpoint_settings import CheckpointSettings
from .checkpoints.interrupts import Interrupted, Interrupts
from .config import TrainConfig
from .exchange.row_messages import NotFiniteRowError
from .model.dense_dtype import cpu_features, warn_of_slow_bf16
from .model_building.user_code import ModelSource
from .options.exchange_options import ExchangeOptions
from .options.rank_options import rank_timeout
from .prepare_run import RunRequest, coding_of, compared_by_ranks, prepare_run
from .ranks.ranks import agree, refuse_other_settings_of_ranks
from .ranks.torch_ranks import joined_ranks
from .resuming.best_weights import BestWeights
from .resuming.optimizer_states import optimizer_states
from .resuming.saved_run import Checkpoint
from .run_folder.unfinished_run import claimed, is_unfinished
from .run_results.run_log import RunLog, TrainProgress, no_progress
from .run_results.run_summary import TrainSummary, summarize
from .trainer import Trainer, run_steps

_log = logging.getLogger(__name__)


def train(
    shards: Path,
    config: TrainConfig,
    out: Path,
    *,
    replay: Path | None = None,
    slow_dir: Path | None = None,
    model_source: ModelSource | None = None,
    checkpoints: CheckpointSettings | None = None,
    provenance: Mapping[str, Any] | None = None,
    init_from: Path | None = None,
    tensorboard: Path | None = None,
    rank_options: ExchangeOptions | None = None,
    progress: TrainProgress = no_progress,
) -> TrainSummary:
    """Train on ``shards`` (a shards folder, or the folder that holds it) and write the run to ``out``.

    Where ``out`` holds an unfinished run with these settings, it is resumed from its last checkpoint, and
    ends with the bits of a run that was never interrupted.

    Args:
        replay: a finished run whose batch order is used instead of the placement's own.
        slow_dir: folder of the spill file of rows beyond ``slow_bytes``; None: ``out``.
        model_source: makes the module of a user; None imports the class that ``config.model`` names.
        checkpoints: how often the run is saved; None: as `CheckpointSettings` has it.
        init_from: a run whose weights and states this one starts with; a finished one, or the last checkpoint
            of another.
        tensorboard: folder of a file that TensorBoard reads, with the lines of ``metrics.jsonl``; None: there
            is none.
        provenance: what made the run, as plain data for its summary; decides nothing.
        rank_options: of a run on several ranks, where torchrun or the like started this process as one.
        progress: called after every step with the samples so far, the mean loss of the last logged steps and
            the last AUC.

    Raises:
        HotsetError: shards that cannot be used, a config that does not fit them; ``out`` holds something
            else, a finished run, or one with other settings.
        Interrupted: Ctrl-C or SIGTERM, after the last step was saved.
    """
    request = RunRequest(
        shards=shards,
        config=config,
        out=out,
        replay=replay,
        slow_dir=slow_dir,
        init_from=init_from,
        rank_options=rank_options or ExchangeOptions(),
    )
    with joined_ranks(rank_timeout()) as ranks:
        # Rank 0 alone writes to the folder, so it knows whether there is a run to resume.
        is_resumed = bool(ranks.gather(torch.tensor([ranks.rank == 0 and is_unfinished(out)]))[0])
        # Everything that can be refused is refused before the first file is written.
        start = agree(ranks, partial(prepare_run, request, ranks, is_resumed=is_resumed))
        if ranks.num_ranks > 1:
            compared = compared_by_ranks(start, request.rank_options)
            agree(ranks, partial(refuse_other_settings_of_ranks, ranks, compared))
        with claimed(out) if ranks.rank == 0 else nullcontext():
            settings = checkpoints or CheckpointSettings()
            # Before anything is built on it, all ranks have found the same checkpoint.
            checkpoint = agree(ranks, partial(find_checkpoint, start, out, ranks, is_resumed=is_resumed))
            step = checkpoint.record.state.step if checkpoint else None
            agree(ranks, partial(refuse_other_settings_of_ranks, ranks, {"checkpoint": step}))
            build = partial(build_run, start, request, ranks, settings, model_source, checkpoint)
            trainer = agree(ranks, build)
            description = start.description
            if start.leaves_codecs_open:
                from .trainer_building.choose_exchange import choose_exchange

                trainer.coded.use(choose_exchange(trainer, request.rank_options))
                description = description | coding_of(trainer.coded.chosen, ranks)
            extras = RunExtras(provenance, tensorboard, progress)
            return _run(trainer, out, description, checkpoint, settings, start.threads, extras)


@dataclass(frozen=True, slots=True)
class RunExtras:
    """The arguments of a run that change no weight."""

    provenance: Mapping[str, Any] | None
    """The command and the machine that made the run."""
    tensorboard: Path | None
    """Folder of a file that TensorBoard reads."""
    progress: TrainProgress


def _run(
    trainer: Trainer,
    out: Path,
    description: dict[str, Any],
    checkpoint: Checkpoint | None,
    settings: CheckpointSettings,
    threads: int,
    extras: RunExtras,
) -> TrainSummary:
    """Train what is left of a run, and write its results."""
    _log.info(
        "%s on %s with %s threads: %s",
        trainer.config.placement,
        trainer.device,
        threads,
        ", ".join(f"{name} {setting}" for name, setting in _chosen(trainer).items()),
    )
    if trainer.device.type == "cpu":
        warn_of_slow_bf16(trainer.dense.dtype, cpu_features())
    ranks = trainer.ranks
    begin = partial(begin_run, trainer, out, description, checkpoint, settings, extras.tensorboard)
    # Every rank begins, or none: a folder that one of them cannot write stops them all.
    folder, saved = agree(ranks, begin)
    best = trainer.resumables.get("best_weights")
    assert best is None or isinstance(best, BestWeights)
    interrupts = Interrupts()
    log = RunLog(folder, extras.progress, saved, interrupts, best, has_ranks=ranks.num_ranks > 1)
    try:
        # Signals are noted from here on, and obeyed between two steps.
        with interrupts.noted():
            # An evaluation that was due when the checkpoint was written is made first, as the unbroken run
            # did.
            if checkpoint is not None and not checkpoint.record.state.is_logged:
                log.evaluate(trainer)
            if trainer.stopping is None or trainer.stopping.reason is None:
                run_steps(trainer, log)
            if saved is not None:
                saved.go_on(trainer, to_end=True)
            log.log_loss(trainer)
            is_last = log.choose_weights(trainer)
            quality = trainer.predictor.score_run(progress=log.evaluating)
    except NotFiniteRowError as error:
        log.refuse_divergence(trainer, str(error))
    except Interrupted:
        log.save_last(trainer)
        raise
    finally:
        if saved is not None:
            saved.close()
    _warn_of_passes(trainer)

    # Results in the order of their names in the folder; the manifest comes last and ends the run.
    summary = replace(summarize(trainer, threads, out, quality), provenance=extras.provenance)
    if quality.validation is not None:
        folder.log({"step": trainer.step, "validation": quality.validation.to_dict()})
    folder.log({"step": trainer.step, "evaluation": quality.of_test()})
    folder.save_weights(trainer.weights())
    # States go with the weights of the last step alone.
    if is_last:
        folder.save_states(optimizer_states(trainer))
    folder.save_batch_order(trainer.numbers)
    if best is not None:
        best.remove()
    # A signal that comes now is too late: the run is sealed, and nothing would remove its checkpoints later.
    with Interrupts().noted():
        folder.finish(summary.to_dict())
    return summary


def _chosen(trainer: Trainer) -> dict[str, Any]:
    """The settings that the shards decided where the user did not."""
    return asdict(trainer.optimizers) | {
        name: getattr(trainer.config, name) for name in ("staging_bytes", "prefetch")
    }


def _warn_of_passes(trainer: Trainer) -> None:
    """Warn of batches with more cold rows than there are slots, which fetch rows twice, and name a size that
    would be enough."""
    # With slots enough for every batch there is nothing to say.
    source = trainer.step_source
    if not source.num_split:
        return
    # The bytes of the slots there are: each width has one slot at least, even with fewer staging bytes.
    staged = sum(
        width.placement.num_staging_slots * width.executor.fast.row_bytes
        for width in trainer.embeddings.widths
    )
    assert trainer.config.staging_bytes is not None, "build_trainer chooses it"
    enough = math.ceil(max(staged, trainer.config.staging_bytes) * source.slots_wanted / KIB) + 1
    _log.warning(
        "%s of %s batches had more cold rows than staging slots and ran in passes: "
        "--staging-bytes %sKiB would be enough",
        source.num_split,
        trainer.step,
        enough,
    )
