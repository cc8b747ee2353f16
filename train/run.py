"""Train on shards: from a config to a run folder."""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from ..pipeline.errors import ConfigError, HotsetError
from ..pipeline.folders.manifest import checksum_of
from ..pipeline.sizes import KIB
from .checkpoints.checkpoint_files import CHECKPOINTS, newest_whole
from .checkpoints.checkpoint_settings import CheckpointSettings
from .checkpoints.checkpoint_writer import NotFiniteError
from .checkpoints.dense_state import restore_dense
from .checkpoints.interrupts import Interrupted, Interrupts
from .config import TrainConfig
from .data.batch import Batch
from .data.batch_order import BATCH_ORDER, RecordedOrder
from .data.shards import Shards, with_hot_bytes
from .execution.traffic import Way
from .meter import Kind
from .metrics.scores import RunQuality
from .model.dense_dtype import cpu_features, warn_of_slow_bf16
from .model_building.choose_model import choose_model
from .model_building.user_code import ModelSource
from .options.interval import parse_interval
from .resuming.best_weights import BestWeights
from .resuming.run_checkpoints import (
    Checkpoint,
    RunCheckpoints,
    file_bytes,
    optimizer_states,
    restore,
    table_sizes,
)
from .resuming.source_run import open_source
from .run_folder.run_description import describe, refuse_other_settings, settings_of
from .run_folder.run_files import make_folder, refuse_missing_folder
from .run_folder.run_reader import read_manifest, refuse_changed_files
from .run_folder.run_writer import RunFolder
from .run_folder.unfinished_run import is_unfinished, locked, refuse_occupied, remove_begun
from .trainer import RunStart, Trainer, build_trainer, divergence, resolve, run_steps, set_threads

_log = logging.getLogger(__name__)


class TrainProgress(Protocol):
    """Called as ``progress("train" or "evaluate", done, total, note)``, in samples."""

    def __call__(self, stage: str, done: int, total: int, note: str = "", /) -> None: ...


def _silent(stage: str, done: int, total: int, note: str = "", /) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class TransferSummary:
    """How the transfers of a staging placement went; zeros for the other placements."""

    seconds: float
    """Seconds spent in transfers."""
    stall_seconds: float
    """Seconds that batches waited for transfers."""
    stalls: int
    """Batches that waited at all."""
    overlap: float
    """Share of the transfers' time that was hidden behind compute."""
    shortened: int
    """Transfers that waited for a later batch than the prefetch depth asks for."""
    split: int
    """Batches that ran in passes."""
    prefetch: int
    """Batches that transfers were to run ahead."""
    file_bytes_read: int
    """Bytes of blocks read from the spill file, where cold rows lie in one by their next use."""
    file_bytes_written: int
    """Bytes of blocks written to it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSummary(RunQuality):
    """The quality that a run reached on the test part, and its cost."""

    placement: str
    samples_per_second: float
    """Training samples per second of training steps and switches, evaluation apart."""
    bytes_to_fast: int
    """Bytes of rows and vectors from the slow tier, evaluation apart."""
    bytes_to_slow: int
    """Bytes of rows and gradients to the slow tier, evaluation apart."""
    run: str
    num_rows: int
    """Rows of all tables."""
    num_hot_rows: int
    num_training_samples: int
    """Training samples of all epochs together."""
    num_steps: int
    seconds_by_kind: dict[Kind, float]
    bytes_to_fast_by_kind: dict[Kind, int]
    bytes_to_slow_by_kind: dict[Kind, int]
    rows_by_table: dict[str, dict[Way, int]]
    """Rows (or their vectors) of each table moved to the fast tier and to the slow one, and rows initialized
    on the fast tier at their first use; evaluation apart."""
    transfers: TransferSummary
    threads: int
    """Threads of the dense layers."""
    best_step: int | None
    """Steps before the best evaluation of the validation part, whose weights these are where best weights are
    kept; None where nothing was decided by it."""
    stopped: str | None
    """Why training stopped before its last step; None where it did not."""
    provenance: Mapping[str, Any] | None = None
    """The command, the machine and the commit that made the run; None where a program does not say."""
    test_losses: list[float]
    """Test loss after each switch of ``fae``, nats per sample."""

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain data, as ``summary.json`` holds it."""
        return asdict(self)


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
    id_map: Path | None = None,
    progress: TrainProgress = _silent,
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
        id_map: where the ids of that run have become others: what `map-ids` wrote.
        provenance: what made the run, as plain data for its summary; decides nothing.
        progress: called after every step with the samples so far, the mean loss of the last logged steps and
            the last AUC.

    Raises:
        HotsetError: shards that cannot be used, a config that does not fit them; ``out`` holds something
            else, a finished run, or one with other settings.
        Interrupted: Ctrl-C or SIGTERM, after the last step was saved.
    """
    # Everything that can be refused is refused before the first file is written.
    is_resumed = is_unfinished(out)
    if not is_resumed:
        refuse_occupied(out)
    if slow_dir is not None:
        refuse_missing_folder(slow_dir)
    opened = Shards.open(shards)
    if config.hot_bytes is not None:
        opened = with_hot_bytes(opened, config.hot_bytes, config.row_optimizer(opened.embedding_optimizer))
    opened.refuse_damage()
    threads = set_threads(config.threads)
    if replay is not None and (recorded := read_manifest(replay)) is not None:
        refuse_changed_files(recorded, (BATCH_ORDER,))
    order = RecordedOrder.of_run(replay, opened.num_training_batches, config.epochs) if replay else None
    config = resolve(opened, config)
    description = describe(opened, config, threads, is_replay=replay is not None)
    source = None
    if init_from is not None:
        chosen = config.optimizers(opened.embedding_optimizer)
        source = open_source(init_from, id_map, opened, chosen, choose_model(config, opened.embedding_dim))
        description["init_from"] = source.fingerprint
    elif id_map is not None:
        raise ConfigError("--id-map maps the ids of a run", hint="name the run: --init-from RUN")
    if is_resumed:
        refuse_other_settings(out, description)

    make_folder(out)
    with locked(out):
        if is_unfinished(out) != is_resumed:
            refuse_occupied(out)  # by a run that has begun or ended since
        checkpoint = _last_checkpoint(out, opened, config, description) if is_resumed else None
        start = checkpoint.start if checkpoint else RunStart(source.rows) if source else None
        settings = checkpoints or CheckpointSettings()
        trainer = build_trainer(
            opened,
            config,
            order,
            spill_folder=slow_dir or out,
            model_source=model_source,
            start=start,
            tracks_changes=not settings.checkpoint_every.is_off,
        )
        if source is not None and checkpoint is None:
            restore_dense(trainer.model, trainer.dense_optimizers, source.dense, source.where)
        if config.recipe.keeps_best:
            trainer.resumables["best_weights"] = BestWeights(out, settings.keep_checkpoints)
        return _run(trainer, out, description, checkpoint, settings, threads, provenance, progress)


def _run(
    trainer: Trainer,
    out: Path,
    description: dict[str, Any],
    checkpoint: Checkpoint | None,
    settings: CheckpointSettings,
    threads: int,
    provenance: Mapping[str, Any] | None,
    progress: TrainProgress,
) -> TrainSummary:
    """Train what is left of a run, and write its results."""
    _log.info(
        "%s on %s with %s threads: %s",
        trainer.config.placement,
        trainer.device,
        threads,
        ", ".join(f"{name} {setting}" for name, setting in _chosen(trainer).items()),
    )
    warn_of_slow_bf16(trainer.dense.dtype, cpu_features())
    weight_bytes = trainer.weights().num_bytes
    if settings.save_states:
        weight_bytes += optimizer_states(trainer).num_bytes
    if checkpoint is None:
        folder = RunFolder.begin(out, description, weight_bytes=weight_bytes)
    else:
        restore(trainer, checkpoint)
        folder = RunFolder.resume(out, checkpoint.record.state.metrics, weight_bytes=weight_bytes)
    saved = None
    if not settings.checkpoint_every.is_off:
        run = checksum_of(settings_of(description))
        last = checkpoint.record if checkpoint else None
        saved = RunCheckpoints(out / CHECKPOINTS, run, settings, trainer, last)
    best = trainer.resumables.get("best_weights")
    assert best is None or isinstance(best, BestWeights)
    interrupts = Interrupts()
    log = _Log(folder, progress, saved, interrupts, best)
    try:
        with interrupts.noted():
            if checkpoint is not None and not checkpoint.record.state.is_logged:
                log.evaluate(trainer)
            if trainer.stopping is None or trainer.stopping.reason is None:
                run_steps(trainer, log)
            log.log_loss(trainer)
            is_last = log.choose_weights(trainer)
            quality = trainer.predictor.score_run(progress=log.evaluating)
    except Interrupted:
        log.save_last(trainer)
        raise
    finally:
        if saved is not None:
            saved.close()
    _warn_of_passes(trainer)

    summary = replace(summarize(trainer, threads, out, quality), provenance=provenance)
    if quality.validation is not None:
        folder.log({"step": trainer.step, "validation": quality.validation.to_dict()})
    folder.log({"step": trainer.step, "evaluation": quality.of_test()})
    folder.save_weights(trainer.weights())
    # States go with the weights of the last step alone.
    if settings.save_states and is_last:
        folder.save_states(optimizer_states(trainer))
    folder.save_batch_order(trainer.numbers)
    if best is not None:
        best.remove()
    folder.finish(summary.to_dict())
    return summary


def _last_checkpoint(
    out: Path, shards: Shards, config: TrainConfig, description: dict[str, Any]
) -> Checkpoint | None:
    """The checkpoint from which an unfinished run goes on; None, with a warning, where it has none."""
    record = newest_whole(out / CHECKPOINTS, checksum_of(settings_of(description)))
    if record is None:
        _log.warning("%s was stopped before its first checkpoint: training starts from the first step", out)
        remove_begun(out)
        return None
    _log.warning("%s is resumed from its checkpoint of step %s", out, record.state.step)
    return Checkpoint.open(out / CHECKPOINTS, record, table_sizes(shards, config))


def _chosen(trainer: Trainer) -> dict[str, Any]:
    """The settings that the shards decided where the user did not."""
    return asdict(trainer.optimizers) | {
        name: getattr(trainer.config, name) for name in ("staging_bytes", "prefetch", "plan")
    }


def summarize(trainer: Trainer, threads: int, out: Path, quality: RunQuality) -> TrainSummary:
    """Put together what the trainer counted; its clock must be stopped."""
    meter = trainer.meter
    bytes_to_fast, bytes_to_slow = meter.training_bytes()
    names = [table.name for table in trainer.shards.tables]
    return TrainSummary(
        **{field.name: getattr(quality, field.name) for field in fields(quality)},
        placement=trainer.config.placement,
        samples_per_second=trainer.num_samples / max(meter.training_seconds, 1e-9),
        bytes_to_fast=bytes_to_fast,
        bytes_to_slow=bytes_to_slow,
        run=str(out),
        num_rows=sum(table.num_rows for table in trainer.shards.tables),
        num_hot_rows=sum(table.num_hot for table in trainer.shards.tables),
        num_training_samples=trainer.num_samples,
        num_steps=trainer.step,
        seconds_by_kind=dict(meter.seconds),
        bytes_to_fast_by_kind=dict(meter.bytes_to_fast),
        bytes_to_slow_by_kind=dict(meter.bytes_to_slow),
        rows_by_table=dict(zip(names, trainer.embeddings.rows_by_table(), strict=True)),
        transfers=summarize_transfers(trainer),
        threads=threads,
        best_step=trainer.stopping.best_step if trainer.stopping else None,
        stopped=trainer.stopping.reason if trainer.stopping else None,
        test_losses=list(trainer.scheduler.losses) if trainer.scheduler else [],
    )


def summarize_transfers(trainer: Trainer) -> TransferSummary:
    """Put together how the transfers of a run went."""
    thread = trainer.embeddings.transfer_thread
    source = trainer.step_source
    prefetch = trainer.config.prefetch
    assert prefetch is not None, "build_trainer chooses it"
    # The share of the transfers' time in which batches did not wait for them.
    read, written = file_bytes(trainer)
    hidden = 1 - thread.stall_seconds / thread.busy_seconds if thread.busy_seconds else 1.0
    return TransferSummary(
        seconds=thread.busy_seconds,
        stall_seconds=thread.stall_seconds,
        stalls=thread.num_stalls,
        overlap=max(hidden, 0.0),
        shortened=source.num_shortened,
        split=source.num_split,
        prefetch=prefetch,
        file_bytes_read=read,
        file_bytes_written=written,
    )


def _warn_of_passes(trainer: Trainer) -> None:
    """Warn of batches with more cold rows than there are slots, which fetch rows twice, and name a size that
    would be enough."""
    source = trainer.step_source
    if not source.num_split:
        return
    assert trainer.config.staging_bytes is not None, "build_trainer chooses it"
    enough = math.ceil(trainer.config.staging_bytes * source.slots_wanted / KIB) + 1
    _log.warning(
        "%s of %s batches had more cold rows than staging slots and ran in passes: "
        "--staging-bytes %sKiB would be enough",
        source.num_split,
        trainer.step,
        enough,
    )


class _Log:
    """Writes the losses, evaluations and checkpoints of a run during training, and shows its progress."""

    def __init__(
        self,
        folder: RunFolder,
        progress: TrainProgress,
        saved: RunCheckpoints | None,
        interrupts: Interrupts,
        best: BestWeights | None,
    ) -> None:
        self._best = best
        self._last_evaluation = (-1, time.monotonic())
        """Step and time of the last evaluation."""
        self._folder = folder
        self._progress = progress
        self._saved = saved
        self._interrupts = interrupts
        self._is_logged = True
        """Whether the evaluation that is due after the last step was made."""
        self._loss: float | None = None
        """Mean loss of the last line, nats per sample."""
        self._auc: float | None = None
        """AUC of the last evaluation."""

    def __call__(self, trainer: Trainer, batch: Batch, loss_sum: torch.Tensor) -> None:
        trainer.losses.append(loss_sum)
        trainer.unlogged_samples += batch.num_samples
        # A loss on the host can be looked at without waiting for a device.
        if loss_sum.device.type == "cpu" and not math.isfinite(float(loss_sum)):
            self._refuse_divergence(trainer, float(loss_sum), trainer.step)
        if trainer.step % trainer.config.log_every == 0:
            self.log_loss(trainer)
        if self._is_evaluation_due(trainer):
            self.evaluate(trainer)
        if trainer.stopping is not None:
            trainer.stopping.note_step(trainer.step)
        if self._saved is not None:
            self._settle(trainer, self._saved)
            if self._saved.is_due(trainer.step):
                self._refuse_bad_losses(trainer)
                self._saved.take(trainer, self._folder.metrics)
        total = trainer.shards.num_training_samples * trainer.config.epochs
        self._progress("train", trainer.num_samples, total, self._note())
        self._stop_if_interrupted()

    def evaluate(self, trainer: Trainer) -> None:
        """Evaluate the run after its last step, and log it."""
        self._is_logged = False
        part = trainer.predictor.steering_part
        quality = trainer.predictor.score(part=part, progress=self.evaluating)
        name = "validation" if part == "validation" else "evaluation"
        self._folder.log({"step": trainer.step, name: quality.to_dict()})
        # The best weights are saved before the evaluation counts as made: a resumed run makes it again.
        if part == "validation" and trainer.stopping is not None:
            is_best = trainer.stopping.note_evaluation(trainer.step, quality)
            if is_best and self._best is not None:
                with trainer.meter.during("checkpoint"):
                    self._best.save(trainer)
        self._is_logged = True
        self._last_evaluation = trainer.step, time.monotonic()
        self._auc = quality.auc
        _log.info("step %s: %s", trainer.step, quality)

    def choose_weights(self, trainer: Trainer) -> bool:
        """Set the run to the weights that it ends with; return whether they are those of its last step."""
        stopping = trainer.stopping
        if stopping is not None and stopping.reason is not None:
            _log.info("stopped at step %s of %s: %s", trainer.step, trainer.num_steps, stopping.reason)
        if self._best is None:
            return True
        if self._last_evaluation[0] != trainer.step:
            self.evaluate(trainer)
        if not self._best.load(trainer) or stopping is None:
            return True
        _log.info("the weights are those of step %s", stopping.best_step)
        return stopping.best_step == trainer.step

    def _is_evaluation_due(self, trainer: Trainer) -> bool:
        """Whether the run is to be evaluated after this step."""
        every = trainer.config.evaluate_every
        recipe = trainer.config.recipe
        if recipe.evaluate_time is not None:
            seconds = parse_interval(recipe.evaluate_time).seconds
            assert seconds is not None, "the options refuse steps"
            return time.monotonic() - self._last_evaluation[1] >= seconds
        if every is None and recipe.needs_validation is not None:
            every = trainer.shards.num_training_batches
        return every is not None and trainer.step % every == 0

    def evaluating(self, done: int, total: int) -> None:
        """Show how far an evaluation is."""
        self._progress("evaluate", done, total, self._note())
        self._stop_if_interrupted()

    def save_last(self, trainer: Trainer) -> None:
        """Save the run as it is after its last step, where it is saved at all."""
        if self._saved is not None:
            self._refuse_bad_losses(trainer)
            self._saved.save_last(trainer, self._folder.metrics, is_logged=self._is_logged)

    def log_loss(self, trainer: Trainer) -> None:
        """Write the mean loss since the last line, where there were steps since."""
        if not trainer.losses:
            return
        # The only copy of losses from the device, so that steps in between do not wait for it.
        mean_loss = float(torch.stack(trainer.losses).sum()) / trainer.unlogged_samples
        if not math.isfinite(mean_loss):
            self._refuse_bad_losses(trainer)
        self._folder.log({"step": trainer.step, "samples": trainer.num_samples, "loss": mean_loss})
        self._loss = mean_loss
        trainer.losses.clear()
        trainer.unlogged_samples = 0

    def _refuse_bad_losses(self, trainer: Trainer) -> None:
        """Raise HotsetError where a loss since the last line is no finite number."""
        if not trainer.losses:
            return
        losses = torch.stack(trainer.losses).tolist()
        for step, loss in enumerate(losses, trainer.step - len(losses) + 1):
            if not math.isfinite(loss):
                self._refuse_divergence(trainer, loss, step)

    def _refuse_divergence(self, trainer: Trainer, loss: float, step: int) -> NoReturn:
        trainer.shards.refuse_damage()  # which explains such a loss better than a learning rate does
        last = None
        if self._saved is not None:
            # The one under way may be good, or hold what led to this loss.
            with suppress(NotFiniteError):
                self._saved.settle(trainer, wait=True)
            last = self._saved.last_written
        self._refuse(trainer, f"the training loss is {loss} at step {step}", last)

    def _settle(self, trainer: Trainer, saved: RunCheckpoints) -> None:
        """Note how the last checkpoint ended; raises HotsetError where weights are not finite."""
        try:
            saved.settle(trainer)
        except NotFiniteError as error:
            self._refuse(trainer, str(error), saved.last_written)

    def _refuse(self, trainer: Trainer, fault: str, last: int | None) -> NoReturn:
        """Raise HotsetError with the command that goes on with lower rates, from the checkpoint if there is
        one."""
        if last is None:
            raise divergence(fault)
        run = self._folder.path
        shards = trainer.shards.manifest.folder
        rates = trainer.optimizers
        command = (
            f"hotset train {shlex.quote(str(shards))} --init-from {shlex.quote(str(run))} "
            f"--out {shlex.quote(f'{run}-lower')} "
            f"--embedding-lr {rates.embedding_lr / 10:g} --dense-lr {rates.dense_lr / 10:g}"
        )
        raise HotsetError(
            f"{fault}; the checkpoint of step {last} is kept",
            hint=f"`{command}` goes on from it with lower rates",
        )

    def _stop_if_interrupted(self) -> None:
        if self._interrupts.number is not None:
            raise Interrupted(self._interrupts.number)

    def _note(self) -> str:
        """The last loss and AUC, as far as there are any."""
        known = (("loss", self._loss), ("AUC", self._auc))
        return ", ".join(f"{name} {figure:.4f}" for name, figure in known if figure is not None)
