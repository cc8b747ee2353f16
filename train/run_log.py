"""Writes the log and the summary of a run, and shows its progress.

The log has losses, evaluations and checkpoints as they come; the summary has the quality that a finished run
reached, and its cost.
"""

from __future__ import annotations

import logging
import math
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np
import torch

from ..pipeline.errors import HotsetError, SaidElsewhereError, ShardError, first_line
from ..pipeline.runtime.progress import Progress
from ..pipeline.schema.schema import WEIGHT
from .checkpoints.resume import Interrupted, Interrupts, RunCheckpoints
from .checkpoints.writer import NotFiniteError
from .config import RUN_HINT, SUMMARY, read_config, read_object
from .config_parts import ExchangePrediction, seconds_of
from .data.batch import UnfitBatchError
from .loop import Trainer
from .metrics import Kind, Quality, RunQuality, Scores
from .ranks.ranks import first_says, gather_arrays, gather_numbers
from .run_folder.files import RunFolder

if TYPE_CHECKING:
    from .checkpoints.best_weights import BestWeights
    from .evaluate import EvaluationCheck
    from .rows.tiers import Way

_log = logging.getLogger(__name__)
_DAMAGED = 2**16
"""What a rank says of damaged shards in place of the number of a signal."""
_ABSURD_LOSS = 100.0
"""Mean loss in nats of predictions that are surely wrong."""


class ShardsElsewhereError(ShardError, SaidElsewhereError):
    """Another rank says which shard cannot be read."""


class RunLog:
    """Writes losses, evaluations and checkpoints during training; shows progress."""

    def __init__(
        self,
        trainer: Trainer,
        folder: RunFolder,
        saved: RunCheckpoints | None,
        best: BestWeights | None,
        progress: Progress,
        check: EvaluationCheck | None = None,
    ) -> None:
        self._trainer = trainer
        self._check = check
        self._is_agreed = False
        """Whether all ranks stop because of a damaged shard."""
        self._best = best
        self._folder = folder
        self._saved = saved
        self._progress = progress
        self.interrupts = Interrupts()
        # What is decided by the validation part needs evaluations, once an epoch at least.
        self._evaluate_every = trainer.config.evaluate_every
        """Steps or time between two evaluations; None: there are none."""
        if self._evaluate_every is None and trainer.config.recipe.needs_validation is not None:
            self._evaluate_every = trainer.shards.num_training_batches
        self._last_evaluation = (-1, time.monotonic())
        """Step and time of the last evaluation."""
        self._is_logged = True
        """Whether the evaluation that is due after the last step was made."""
        self._loss: float | None = None
        """Mean loss of the last line, nats per sample; before the first one, that of all steps."""
        self._first_losses: float | None = 0.0
        """Sum of the losses before the first line; None: there was one."""
        self._auc: float | None = None
        """AUC of the last evaluation."""
        self._has_warned = False
        """Whether a loss was far too large."""
        self._note = ""
        """The last loss and AUC, as far as there are any."""

    def __call__(self, loss_sum: torch.Tensor) -> None:
        """Note the loss of a step, and do what is due after it."""
        trainer = self._trainer
        trainer.losses.append(loss_sum)
        # A loss on the host can be looked at without waiting for a device, or for other ranks.
        is_on_host = trainer.runner.is_synchronous and loss_sum.device.type == "cpu"
        is_on_host &= trainer.whole_losses is None
        if is_on_host and not math.isfinite(float(loss_sum)):
            self.refuse_divergence(f"the training loss is {float(loss_sum)} at step {trainer.step}")
        # First the log, then the evaluation, then the checkpoint: each contains what came before it.
        if trainer.step % trainer.config.log_every == 0:
            self.log_loss()
        # Until the first line the progress shows the mean so far, where it is there without waiting.
        elif self._first_losses is not None and is_on_host:
            self._first_losses = self._first_losses or sum(map(float, trainer.losses[:-1]))
            self._first_losses += float(loss_sum)
            self._loss = self._first_losses / trainer.unlogged_samples
            self._take_note()
        if self._evaluate_every is not None and self._is_evaluation_due(self._evaluate_every):
            self.evaluate()
        # Ranks ask the clock of the first, so that all of them stop after the same step.
        has_limit = trainer.config.recipe.max_time is not None
        is_time_over = has_limit and first_says(trainer.ranks, trainer.stopping.is_time_over)
        trainer.stopping.note_step(trainer.step, is_time_over=is_time_over)
        # A checkpoint of a loss that is no number would be one to resume a broken run from.
        if self._saved is not None:
            if self._saved.is_under_way:
                self._saved.advance()
                try:
                    self._saved.settle()
                except NotFiniteError as error:
                    self._refuse(str(error))
            if self._saved.is_due(trainer.step):
                self._refuse_bad_losses()
                self._saved.take(self._folder.metrics)
        total = trainer.shards.num_training_samples * trainer.config.epochs
        self._progress("train", trainer.num_samples, total, self._note, trainer.step)
        if self.interrupts.number or trainer.ranks.num_ranks > 1 or self._check is not None:
            self._stop_if_interrupted()

    def evaluate(self) -> None:
        """Evaluate the run after its last step, and log it."""
        trainer = self._trainer
        self._is_logged = False
        self.check_evaluation()
        part = trainer.predictor.steering_part
        quality = trainer.predictor.score(part=part, progress=self.evaluating)
        name = "validation" if part == "validation" else "evaluation"
        self._folder.log({"step": trainer.step, name: quality.to_dict()})
        # The best weights are saved before the evaluation counts as made: a resumed run makes it again.
        if part == "validation":
            is_best = trainer.stopping.note_evaluation(trainer.step, quality)
            if is_best and self._best is not None:
                with trainer.meter.during("checkpoint"):
                    self._best.save(trainer)
        self._is_logged = True
        self._last_evaluation = trainer.step, time.monotonic()
        self._auc = quality.auc
        self._take_note()
        _log.info("step %s: %s", trainer.step, quality)

    def choose_weights(self) -> bool:
        """Set the run to its final weights; return whether these are the last step's."""
        trainer = self._trainer
        stopping = trainer.stopping
        if stopping.reason is not None:
            num_steps = trainer.config.epochs * trainer.shards.num_training_batches
            _log.info("stopped at step %s of %s: %s", trainer.step, num_steps, stopping.reason)
        if self._best is None:
            return True
        if self._last_evaluation[0] != trainer.step:
            self.evaluate()
        if not self._best.load(trainer):
            return True
        _log.info("the weights are those of step %s", stopping.best_step)
        return stopping.best_step == trainer.step

    def _is_evaluation_due(self, every: int | str) -> bool:
        """Return whether the run is to be evaluated after this step."""
        if isinstance(every, int):
            return self._trainer.step % every == 0
        seconds = seconds_of(every)
        assert seconds is not None, "the options refuse what is no time"
        return first_says(self._trainer.ranks, time.monotonic() - self._last_evaluation[1] >= seconds)

    def evaluating(self, done: int, total: int) -> None:
        """Show how far an evaluation is."""
        self._progress("evaluate", done, total, self._note)
        # Ranks stop together, after a step.
        if self._trainer.ranks.num_ranks == 1:
            self._stop_if_interrupted()

    def check_evaluation(self) -> None:
        """Wait until evaluation shards are hashed in the background; raises ShardError at every rank."""
        if self._check is None:
            return
        try:
            self._check.wait()
        except HotsetError as error:
            self._is_agreed = True
            raise error if isinstance(error, ShardError) else ShardsElsewhereError(str(error)) from None

    def close(self) -> None:
        """End what runs in the background."""
        if self._check is not None:
            self._check.close()

    def refuse_shards(self, error: ShardError) -> NoReturn:
        """Save the run after its last step, and raise the error with how to go on."""
        # Saving is the work of all ranks: one that raises alone cannot wait for the others.
        is_alone = self._trainer.ranks.num_ranks > 1 and not self._is_agreed
        if self._saved is None or not self._trainer.step or is_alone:
            raise error
        self.save_last()
        # The same command cannot go on with a batch that its model does not take.
        if isinstance(error, (ShardsElsewhereError, UnfitBatchError)):
            raise error
        raise type(error)(
            f"{error}; the checkpoint of step {self._saved.last_written} is kept",
            hint=f"{error.hint}; then the same command resumes the run" if error.hint else None,
        ) from error

    def save_last(self) -> None:
        """Save the run after its last step, if it is saved."""
        if self._saved is not None:
            self._refuse_bad_losses()
            self._saved.save_last(self._folder.metrics, is_logged=self._is_logged)

    def log_loss(self) -> None:
        """Write the mean loss since the last line, where there were steps since."""
        trainer = self._trainer
        if not trainer.losses:
            return
        # The only copy of losses from the device, so that steps in between do not wait for it.
        mean_loss = float(trainer.step_losses().sum()) / trainer.unlogged_samples
        if not math.isfinite(mean_loss):
            self._refuse_bad_losses()
        self._folder.log({"step": trainer.step, "samples": trainer.num_samples, "loss": mean_loss})
        # Of an own loss, and of sample weights, nobody knows how large it may be.
        is_log_loss = trainer.config.loss is None and WEIGHT not in trainer.shards.sample_columns
        if mean_loss > _ABSURD_LOSS and is_log_loss and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "the training loss is %.2g at step %s, where that of the click rate is below 1: dense values "
                "may be too large, or learning rates too high",
                mean_loss,
                trainer.step,
            )
        self._loss = mean_loss
        self._take_note()
        self._first_losses = None
        trainer.losses.clear()
        trainer.unlogged_samples = 0

    def _refuse_bad_losses(self) -> None:
        """Raise HotsetError where a loss since the last line is no finite number."""
        trainer = self._trainer
        if not trainer.losses:
            return
        losses = trainer.step_losses().tolist()
        for step, loss in enumerate(losses, trainer.step - len(losses) + 1):
            if not math.isfinite(loss):
                self.refuse_divergence(f"the training loss is {loss} at step {step}")

    def refuse_divergence(self, fault: str) -> NoReturn:
        """Raise HotsetError: numbers of the run are no longer finite."""
        self._trainer.shards.refuse_damage()  # which explains such a loss better than a learning rate does
        if self._saved is not None:
            # The one under way may be good, or hold what led to this loss.
            with suppress(NotFiniteError):
                self._saved.settle(wait=True)
        self._refuse(fault)

    def _refuse(self, fault: str) -> NoReturn:
        """Raise HotsetError with the command that goes on with lower rates."""
        last = None if self._saved is None else self._saved.last_written
        if last is None:
            raise HotsetError(
                fault,
                hint="lower --embedding-lr or --dense-lr, and give another --out or remove the folder",
            )
        # From the checkpoint the run continues at a tenth of the rates.
        run = self._folder.path
        shards = self._trainer.shards
        rates = self._trainer.config.optimizers(shards.embedding_optimizer)
        command = (
            f"hotset train {shlex.quote(str(shards.manifest.folder))} --init-from {shlex.quote(str(run))} "
            f"--out {shlex.quote(f'{run}-lower')} "
            f"--embedding-lr {rates.embedding_lr / 10:g} --dense-lr {rates.dense_lr / 10:g}"
        )
        raise HotsetError(
            f"{fault}; the checkpoint of step {last} is kept",
            hint=f"`{command}` continues from it with lower rates",
        )

    def _stop_if_interrupted(self) -> None:
        """Raise Interrupted, at every rank, if a signal has arrived at any."""
        number = self.interrupts.number or 0
        ranks = self._trainer.ranks
        # What is wrong with shards is known to the rank that reads them, and stops all after the same step.
        fault = self._trainer.fault or (self._check.fault if self._check is not None else None)
        number = number if fault is None else _DAMAGED
        if ranks.num_ranks > 1:
            number = max(gather_numbers(ranks, number))
        if number == _DAMAGED:
            self._is_agreed = True
            raise fault or ShardsElsewhereError("another rank names a shard that cannot be read")
        if number:
            num_steps = self._trainer.config.epochs * self._trainer.shards.num_training_batches
            kept = (
                "its checkpoint is kept" if self._saved is not None else "without checkpoints, none is kept"
            )
            raise Interrupted(number, f"stopped after step {self._trainer.step:,} of {num_steps:,}; {kept}")

    def _take_note(self) -> None:
        known = (("loss", self._loss), ("AUC", self._auc))
        self._note = ", ".join(f"{name} {figure:.4f}" for name, figure in known if figure is not None)


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
    """Share of the transfers' time that overlapped with compute."""
    shortened: int
    """Transfers that waited for a later batch than the prefetch depth requires."""
    split: int
    """Batches that ran in passes."""
    prefetch: int
    """Batches that transfers were to run ahead."""
    mover: str | None
    """The mover of rows on a device: kernel; None where the host moved them, or none moved."""
    file_bytes_read: int
    """Bytes of blocks read from the spill file, where it keeps cold rows by their next use."""
    file_bytes_written: int
    """Bytes of blocks written to it."""


@dataclass(frozen=True, slots=True)
class ExchangeSummary:
    """The traffic between ranks in training steps, since the run was begun or resumed."""

    ranks: int
    codecs: dict[str, str]
    """Codec of vectors, gradients, and the dense layers' gradients."""
    has_equal_bits: bool
    """Whether the weights are those of any number of ranks: everything crossed as it is."""
    bytes_by_rank: list[dict[str, int]]
    """Bytes that each rank sent, by kind."""
    num_saturated: int
    """Numbers that were too large for their code and became its largest."""
    seconds_per_step: float
    """Seconds of a step for coding and waiting, at the slowest rank."""
    prediction: ExchangePrediction | None
    """The measurement by which `--exchange auto` chose; None where codecs were named."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
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
    exchange: ExchangeSummary | None = None
    """Traffic between the ranks of a run; None where it has one."""
    test_losses: list[float]
    """Test loss after each switch of ``fae``, nats per sample."""


_Record = TypeVar("_Record", bound=Scores)


def read_summary(run: Path) -> TrainSummary:
    """Read the summary of a finished run.

    Raises:
        HotsetError: the run is unfinished, or its summary is damaged.
    """
    read_config(run)
    path = run / SUMMARY
    found = read_object(path)
    try:
        own: dict[str, Any] = {"transfers": TransferSummary(**found["transfers"])}
        if (exchange := found.get("exchange")) is not None:
            prediction = exchange["prediction"] and ExchangePrediction(**exchange["prediction"])
            own["exchange"] = ExchangeSummary(**exchange | {"prediction": prediction})
        return _scores_of(TrainSummary, found | own)
    except (KeyError, TypeError, AttributeError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}", hint=RUN_HINT) from error


def _scores_of(kind: type[_Record], found: Mapping[str, Any]) -> _Record:
    """Build a record of scores from plain data, and those inside it."""
    own = {each.name: found[each.name] for each in fields(kind) if each.name in found}
    for name, inner in (("hot", Scores), ("mixed", Scores), ("oov", Scores), ("validation", Quality)):
        if own.get(name) is not None:
            own[name] = _scores_of(inner, own[name])
    if own.get("labels") is not None:
        own["labels"] = {name: _scores_of(Scores, of_label) for name, of_label in own["labels"].items()}
    return kind(**own)


def summarize(trainer: Trainer, threads: int, out: Path, quality: RunQuality) -> TrainSummary:
    """Put together what the trainer counted; its clock must be stopped."""
    meter = trainer.meter
    # Evaluations and checkpoints are clocked apart, and are no part of these figures.
    bytes_to_fast, bytes_to_slow = meter.training_bytes()
    names = [table.name for table in trainer.shards.tables]
    return TrainSummary(
        **{field.name: getattr(quality, field.name) for field in fields(quality)},
        placement=trainer.config.placement if trainer.config.engine == "hotset" else trainer.config.engine,
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
        exchange=_summarize_exchange(trainer),
        threads=threads,
        best_step=trainer.stopping.best_step,
        stopped=trainer.stopping.reason,
        test_losses=list(trainer.order.test_losses),
    )


def _summarize_exchange(trainer: Trainer) -> ExchangeSummary | None:
    """Bring together what all ranks have sent; every rank calls this."""
    ranks = trainer.ranks
    coded = trainer.rank_codecs
    if coded is None:
        return None
    counts = coded.counts
    own = [np.array([*counts.sent_bytes.values(), counts.num_saturated]), np.array([counts.seconds])]
    sent, seconds = zip(*gather_arrays(ranks, own), strict=True)
    chosen = coded.chosen
    return ExchangeSummary(
        ranks=ranks.num_ranks,
        codecs={kind: getattr(chosen, kind) for kind in ("vectors", "gradients", "dense")},
        has_equal_bits=chosen.is_exact,
        bytes_by_rank=[dict(zip(counts.sent_bytes, each.tolist()[:-1], strict=True)) for each in sent],
        num_saturated=sum(int(each[-1]) for each in sent),
        seconds_per_step=float(max(seconds)[0]) / max(counts.num_steps, 1),
        prediction=coded.prediction,
    )


def summarize_transfers(trainer: Trainer) -> TransferSummary:
    """Put together how the transfers of a run went."""
    thread = trainer.embeddings.transfers
    source = trainer.step_source
    prefetch = trainer.config.prefetch
    assert prefetch is not None, "build_trainer chooses it"
    read, written = trainer.embeddings.file_bytes()
    moves = trainer.runner.moves
    # The share of the transfers' time in which batches did not wait for them.
    hidden = 1 - thread.stall_seconds / thread.busy_seconds if thread.busy_seconds else 1.0
    return TransferSummary(
        seconds=thread.busy_seconds,
        stall_seconds=thread.stall_seconds,
        stalls=thread.num_stalls,
        # Waits may add up to more than the transfers took: then nothing was hidden.
        overlap=max(hidden, 0.0),
        shortened=source.num_shortened,
        split=source.num_split,
        prefetch=prefetch,
        mover=moves.name if moves else None,
        file_bytes_read=read,
        file_bytes_written=written,
    )
