"""The steps of the host, the parts of a step, learning rates, and when a run stops.

The learning rate is a function of the step: warm-up, then constant or a decay. An update uses the rate of its
batch, whenever a placement runs it. A cosine and a power may differ in the last bit between machines, as exp
does in the loss.

A run stops, and its best evaluation is chosen, by evaluations of the validation part alone, never by the test
part. That state is plain JSON and part of a checkpoint (`Resumable`), so a resumed run stops where the
unbroken one does; only a limit of time depends on the machine, and does not count the time between two
processes of a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from .config import Optimizers
from .config_parts import RecipeOptions, parse_best_by, seconds_of
from .metrics import Scores
from .model.dense_step import DenseStep
from .rows.embeddings import Embeddings
from .rows.step_plan import PlannedStep
from .threads import WorkThreads

_PLATEAU_FACTOR = 0.1
"""Number by which the schedule plateau multiplies the rates: the default of torch's ReduceLROnPlateau."""


class DenseUpdate:
    """Sets the learning rate of a step, and clips its gradient.

    Args:
        clip_gradient: largest norm of the gradient of all parameters together; None: any.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        clip_gradient: float | None = None,
    ) -> None:
        self._parameters = tuple(parameters)
        self._optimizers = tuple(optimizers)
        self._most = clip_gradient

    def prepare(self, lr: float) -> None:
        """Prepare the step that the optimizers take next, once the gradients are there."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
        if self._most is not None:
            clip_gradients([each.grad for each in self._parameters if each.grad is not None], self._most)


def clip_gradients(gradients: Sequence[torch.Tensor], most: float) -> None:
    """Scale the gradients down, in place, to a total norm of ``most``.

    The squares are summed in float64 in an order that no number of threads changes, unlike torch's own sums
    on the host. There a gradient that is not finite is left as it is: the loss says so.
    """
    if not gradients:
        return
    if gradients[0].device.type != "cpu":
        # Without waiting for the device: the factor is 1 where nothing is to be clipped.
        norms = torch.stack([torch.linalg.vector_norm(each, dtype=torch.float64) for each in gradients])
        factor = (most / torch.linalg.vector_norm(norms)).clamp(max=1.0)
        for each in gradients:
            each.mul_(factor.to(each.dtype))
        return
    squares = (float(np.square(each.numpy(), dtype=np.float64).sum()) for each in gradients)
    norm = math.sqrt(math.fsum(squares))
    if math.isfinite(norm) and norm > most:
        for each in gradients:
            each.mul_(most / norm)


@dataclass(frozen=True, slots=True)
class StepRates:
    """The learning rates of one step."""

    dense: float
    rows: float
    """A float32."""


class LearningRates:
    """The learning rates of a run.

    Args:
        full: rates at the end of warm-up.
        num_reductions: how often the schedule plateau has lowered the rates so far.
    """

    def __init__(
        self,
        options: RecipeOptions,
        full: Optimizers,
        num_steps: int,
        num_reductions: Callable[[], int] = lambda: 0,
    ) -> None:
        self._num_reductions = num_reductions
        self._options = options
        self._full = full
        self._last_factor = 1.0
        self._last = self._by(1.0)
        left = max(num_steps - options.warmup_steps, 1)
        self._num_decay_steps = left if options.decay_steps is None else options.decay_steps

    def of_step(self, step: int) -> StepRates:
        """Return the rates of step ``step``, from 0; unchanged rates are one object."""
        factor = self.factor(step)
        if factor != self._last_factor:
            self._last_factor = factor
            self._last = self._by(factor)
        return self._last

    def _by(self, factor: float) -> StepRates:
        """The full rates times ``factor``, of the parameters that the schedule is for."""
        dense, rows = (
            factor if self._options.lr_schedule_of in ("all", of) else 1.0 for of in ("dense", "rows")
        )
        return StepRates(
            self._full.dense_lr * dense, float(np.float32(np.float32(self._full.embedding_lr) * rows))
        )

    def factor(self, step: int) -> float:
        """Return the share of the full rate at a step, from 0.

        Warm-up rises by equal parts, and its last step has the full rate. A decay follows it, and keeps its
        end value.

        Source:
            facebookresearch/dlrm, ``LRPolicyScheduler``, for warm-up and the polynomial; it keeps the last
            rate before the end, this one the end; Loshchilov and Hutter, arXiv 1608.03983,
            equation 5, for the cosine; torch's ``ReduceLROnPlateau`` for plateau, there with a threshold.
        """
        options = self._options
        number = step + 1
        if number < options.warmup_steps:
            return number / options.warmup_steps
        if options.lr_schedule == "plateau":
            return max(math.pow(_PLATEAU_FACTOR, self._num_reductions()), options.final_lr)
        if options.lr_schedule == "constant" or number <= options.warmup_steps:
            return 1.0
        left = max(self._num_decay_steps - (number - options.warmup_steps), 0) / self._num_decay_steps
        if options.lr_schedule == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
            return options.final_lr + (1 - options.final_lr) * left
        if options.lr_schedule == "polynomial":
            # DLRM bounds its polynomial from below; the others run to their end value.
            return max(left * left, options.final_lr)
        return options.final_lr + (1 - options.final_lr) * left


_KINDS: dict[str, tuple[type, ...]] = {
    "best_score": (float, type(None)),
    "best_step": (int, type(None)),
    "num_without_progress": (int,),
    "num_reductions": (int,),
    "reason": (str, type(None)),
    "seconds": (float,),
}
"""The state of `Stopping` by its names, and the types of each."""


class Stopping:
    """Watches the steps and evaluations of a run.

    Args:
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, options: RecipeOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._start = clock()
        self._most_seconds = None if options.max_time is None else seconds_of(options.max_time)
        self.best_score: float | None = None
        """The best score so far; log loss with its sign turned."""
        self.best_step: int | None = None
        """Steps before the evaluation that had it."""
        self.num_without_progress = 0
        """Evaluations since."""
        self.num_reductions = 0
        """How often the schedule plateau has lowered the learning rates."""
        self.reason: str | None = None
        """Why training stops before its last step; None while it continues."""

    @property
    def seconds(self) -> float:
        """Seconds of the run so far, evaluations and earlier processes included."""
        return self._clock() - self._start

    @property
    def is_time_over(self) -> bool:
        """Return whether the limit of time has passed, by the clock of this process."""
        return self._most_seconds is not None and self.seconds >= self._most_seconds

    def note_step(self, step: int, *, is_time_over: bool) -> None:
        """Note a step; set the reason to stop at either limit."""
        if self._options.max_steps is not None and step >= self._options.max_steps:
            self.reason = self.reason or f"--max-steps {self._options.max_steps}"
        if is_time_over:
            self.reason = self.reason or f"--max-time {self._options.max_time}"

    def note_evaluation(self, step: int, scores: Scores) -> bool:
        """Note an evaluation of the validation part; return whether it is best."""
        options = self._options
        label, name = parse_best_by(options.best_by)
        labels = getattr(scores, "labels", None) or {}
        of_label = scores if label is None else labels.get(label, scores)
        score = getattr(of_label, name.replace("-", "_"))
        # Values have an error alone.
        if of_label.mean_squared_error is not None:
            name, score = "log-loss", of_label.mean_squared_error
        # Without a score, as where all labels are equal, nothing is decided.
        if score is None:
            return False
        score = -score if name == "log-loss" else score
        is_best = self.best_score is None or score > self.best_score
        if is_best:
            self.best_score = score
            self.best_step = step
            self.num_without_progress = 0
        else:
            self.num_without_progress += 1
            self.num_reductions += 1
        # The first reason found is kept: an evaluation may give several.
        if options.stop_at_auc is not None and scores.auc is not None and scores.auc >= options.stop_at_auc:
            reached = f"AUC {scores.auc:.6f} has reached --stop-at-auc {options.stop_at_auc}"
            self.reason = self.reason or reached
        if options.patience is not None and self.num_without_progress >= options.patience:
            self.reason = self.reason or (
                f"{self.num_without_progress} evaluations without progress (--patience {options.patience})"
            )
        return is_best

    def state(self) -> Mapping[str, Any]:
        """Return what `restore` takes."""
        return {name: getattr(self, name) for name in _KINDS}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; raises ValueError where it is none."""
        # Types are checked before anything is set, so that a damaged state changes nothing.
        for name, allowed in _KINDS.items():
            if type(state[name]) not in allowed:
                raise ValueError(f"{name} is {state[name]!r}")
        for name in _KINDS.keys() - {"seconds"}:
            setattr(self, name, state[name])
        self._start = self._clock() - state["seconds"]


@dataclass(frozen=True, slots=True)
class StepParts:
    """The layers and rows that steps work on."""

    embeddings: Embeddings
    dense: DenseStep
    prepare_dense: Callable[[float], None]
    """Sets the learning rate of the next step of the dense layers, once the gradients are there."""
    step_dense: Sequence[Callable[[], object]]
    """Take that step, each of a part of the layers."""
    threads: WorkThreads


class StepRunner(Protocol):
    """Runs the training steps of a run, in order."""

    is_synchronous: bool
    """Whether a step is done when `train` returns."""

    @property
    def moves(self) -> Any:
        """What moves rows on a device, `gpu.queued_steps.RowMover`; None on the host."""

    @property
    def prepare(self) -> Callable[[PlannedStep], PlannedStep] | None:
        """Does what can be done ahead of a step, in the thread that reads ahead; None: nothing can."""

    def train(self, step: PlannedStep, number: int, rates: StepRates) -> torch.Tensor:
        """Run a step; return the loss in nats, summed over the samples.

        What a device was given may be done later: see `synchronize`.

        Args:
            number: of the step in the run.
            rates: learning rates of the step.
        """

    def synchronize(self) -> None:
        """Return once all steps are done: losses, weights and rows can be read."""


class HostSteps:
    """Runs each step synchronously on the host."""

    is_synchronous = True
    prepare = moves = None

    def __init__(self, parts: StepParts) -> None:
        self._parts = parts

    def train(self, step: PlannedStep, number: int, rates: StepRates) -> torch.Tensor:
        parts = self._parts
        parts.embeddings.wait_for_rows(step)
        embeddings = parts.embeddings.look_up(step)
        loss_sum = parts.dense.train(step.batch, embeddings, number)  # forward and backward: leaves gradients
        parts.prepare_dense(rates.dense)
        # Embedding rows by our optimizer, dense layers by torch's, in parallel.
        update_rows = partial(parts.embeddings.update, step, embeddings, rates.rows)
        parts.threads.run_all(update_rows, *parts.step_dense)
        return loss_sum

    def synchronize(self) -> None: ...


class Resumable(Protocol):
    """A part of a run whose state a checkpoint keeps.

    What `state` returns after a step and `restore` is given before the next one in another process: plain
    JSON values (numbers, strings, lists, dicts, None), and tensors on the host. Tensors must be copies:
    training continues while they are written. A file is not trusted: `restore` raises HotsetError or
    ValueError on values that `state` does not return.
    """

    def state(self) -> Mapping[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...
