"""Writes the losses, evaluations and checkpoints of a run while it trains, and shows its progress."""

from __future__ import annotations

import logging
import math
import shlex
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch

from ...pipeline.errors import HotsetError
from ..checkpoints.checkpoint_writer import NotFiniteError
from ..checkpoints.interrupts import Interrupted, Interrupts
from ..data.batch import Batch
from ..options.interval import parse_interval
from ..ranks.ranks import OneRank, Ranks, first_says
from ..resuming.best_weights import BestWeights
from ..resuming.run_checkpoints import RunCheckpoints
from ..run_folder.run_writer import RunFolder
from ..trainer import Trainer

if TYPE_CHECKING:
    from ..resuming.rank_checkpoints import RankCheckpoints

_log = logging.getLogger(__name__)


class TrainProgress(Protocol):
    """Called as ``progress("train" or "evaluate", done, total, note)``, in samples."""

    def __call__(self, stage: str, done: int, total: int, note: str = "", /) -> None: ...


def no_progress(stage: str, done: int, total: int, note: str = "", /) -> None:
    """Show no progress."""


class RunLog:
    """Writes the losses, evaluations and checkpoints of a run during training, and shows its progress."""

    def __init__(
        self,
        folder: RunFolder,
        progress: TrainProgress,
        saved: RunCheckpoints | RankCheckpoints | None,
        interrupts: Interrupts,
        best: BestWeights | None,
        *,
        has_ranks: bool = False,
    ) -> None:
        self._best = best
        self._has_ranks = has_ranks
        self._last_evaluation = (-1, time.monotonic())
        """Step and time of the last evaluation."""
        self._folder = folder
        self._progress = progress
        self._saved = saved
        self._interrupts = interrupts
        self._is_logged = True
        """Whether the evaluation that is due after the last step was made."""
        self._loss: float | None = None
        """Mean loss of the last line, nats per sample; before the first one, that of all steps."""
        self._first_losses: float | None = 0.0
        """Sum of the losses before the first line; None: there was one."""
        self._auc: float | None = None
        """AUC of the last evaluation."""

    def __call__(self, trainer: Trainer, batch: Batch, loss_sum: torch.Tensor) -> None:
        trainer.losses.append(loss_sum)
        # A loss on the host can be looked at without waiting for a device.
        if trainer.runner.is_at_once and loss_sum.device.type == "cpu" and not math.isfinite(float(loss_sum)):
            self.refuse_divergence(trainer, f"the training loss is {float(loss_sum)} at step {trainer.step}")
        # First the log, then the evaluation, then the checkpoint: each contains what came before it.
        if trainer.step % trainer.config.log_every == 0:
            self.log_loss(trainer)
        # Until the first line the progress shows the mean so far, where it is there without waiting.
        elif self._first_losses is not None and trainer.runner.is_at_once and loss_sum.device.type == "cpu":
            self._first_losses = self._first_losses or sum(map(float, trainer.losses[:-1]))
            self._first_losses += float(loss_sum)
            self._loss = self._first_losses / trainer.unlogged_samples
        if self._is_evaluation_due(trainer):
            self.evaluate(trainer)
        if trainer.stopping is not None:
            trainer.stopping.note_step(trainer.step, is_time_over=self._is_time_over(trainer))
        # A checkpoint of a loss that is no number would be one to resume a broken run from.
        if self._saved is not None:
            self._saved.go_on(trainer)
            self._settle(trainer, self._saved)
            if self._saved.is_due(trainer.step):
                self._refuse_bad_losses(trainer)
                self._saved.take(trainer, self._folder.metrics)
        total = trainer.shards.num_training_samples * trainer.config.epochs
        self._progress("train", trainer.num_samples, total, self._note())
        self._stop_if_interrupted(trainer.ranks)

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

    def _is_time_over(self, trainer: Trainer) -> bool:
        """Whether the run has reached its limit of time, where it has one."""
        # Ranks ask the clock of the first, so that all of them stop after the same step.
        if trainer.stopping is None or trainer.config.recipe.max_time is None:
            return False
        return first_says(trainer.ranks, trainer.stopping.is_time_over)

    def _is_evaluation_due(self, trainer: Trainer) -> bool:
        """Whether the run is to be evaluated after this step."""
        every = trainer.config.evaluate_every
        recipe = trainer.config.recipe
        if recipe.evaluate_time is not None:
            seconds = parse_interval(recipe.evaluate_time).seconds
            assert seconds is not None, "the options refuse steps"
            return first_says(trainer.ranks, time.monotonic() - self._last_evaluation[1] >= seconds)
        if every is None and recipe.needs_validation is not None:
            every = trainer.shards.num_training_batches
        return every is not None and trainer.step % every == 0

    def evaluating(self, done: int, total: int) -> None:
        """Show how far an evaluation is."""
        self._progress("evaluate", done, total, self._note())
        # Ranks stop together, after a step.
        if not self._has_ranks:
            self._stop_if_interrupted(OneRank())

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
        trainer.runner.synchronize()
        mean_loss = float(torch.stack(trainer.losses).sum()) / trainer.unlogged_samples
        if not math.isfinite(mean_loss):
            self._refuse_bad_losses(trainer)
        self._folder.log({"step": trainer.step, "samples": trainer.num_samples, "loss": mean_loss})
        self._loss = mean_loss
        self._first_losses = None
        trainer.losses.clear()
        trainer.unlogged_samples = 0

    def _refuse_bad_losses(self, trainer: Trainer) -> None:
        """Raise HotsetError where a loss since the last line is no finite number."""
        if not trainer.losses:
            return
        trainer.runner.synchronize()
        losses = torch.stack(trainer.losses).tolist()
        for step, loss in enumerate(losses, trainer.step - len(losses) + 1):
            if not math.isfinite(loss):
                self.refuse_divergence(trainer, f"the training loss is {loss} at step {step}")

    def refuse_divergence(self, trainer: Trainer, fault: str) -> NoReturn:
        """Raise HotsetError: numbers of the run are no longer finite."""
        trainer.shards.refuse_damage()  # which explains such a loss better than a learning rate does
        last = None
        if self._saved is not None:
            # The one under way may be good, or hold what led to this loss.
            with suppress(NotFiniteError):
                self._saved.settle(trainer, wait=True)
            last = self._saved.last_written
        self._refuse(trainer, fault, last)

    def _settle(self, trainer: Trainer, saved: RunCheckpoints | RankCheckpoints) -> None:
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
        # Without a checkpoint the run must begin again; with one it continues from there, at a tenth of the
        # rates.
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
            hint=f"`{command}` continues from it with lower rates",
        )

    def _stop_if_interrupted(self, ranks: Ranks) -> None:
        """Raise Interrupted where a signal has arrived, at any rank: all of them stop after the same step."""
        own = self._interrupts.number or 0
        number = max(int(each) for each in ranks.gather(torch.tensor([own])))
        if number:
            raise Interrupted(number)

    def _note(self) -> str:
        """The last loss and AUC, as far as there are any."""
        known = (("loss", self._loss), ("AUC", self._auc))
        return ", ".join(f"{name} {figure:.4f}" for name, figure in known if figure is not None)


def divergence(fault: str) -> HotsetError:
    """Return the error of a run whose loss or weights are no finite numbers."""
    return HotsetError(
        fault,
        hint="lower --embedding-lr or --dense-lr, and give another --out or remove the folder",
    )
