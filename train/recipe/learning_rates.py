"""Learning rates as a function of the step: warm-up, then constant or a decay.

The rate of a step is that of its batch, whenever a placement updates a row, so it is given to the update. A
cosine and a power may differ in the last bit between machines, as exp does in the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..config import Optimizers
from ..options.recipe_options import RecipeOptions


@dataclass(frozen=True, slots=True)
class StepRates:
    """The learning rates of one step."""

    dense: float
    rows: float
    """A float32."""


class LearningRates:
    """The learning rates of a run.

    Args:
        options: schedule, warm-up and decay.
        full: rates at the end of warm-up.
        num_steps: steps of the whole run.
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
        self._start = options.warmup_steps if options.decay_start is None else options.decay_start
        self._last_factor = 1.0
        self._last = self._by(1.0)
        left = max(num_steps - self._start, 1)
        self._num_decay_steps = left if options.decay_steps is None else options.decay_steps

    def of_step(self, step: int) -> StepRates:
        """Return the rates of the step with this number, from 0: one object for as long as they stay."""
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
        """Return the share of the full rate at the step with this number, from 0.

        Warm-up rises by equal parts, and its last step has the full rate. A decay begins after the step
        ``decay_start``, counted from 1, and keeps its end value.

        Source:
            facebookresearch/dlrm, ``LRPolicyScheduler``, for warm-up and the polynomial, there of degree 2;
            it keeps the last rate before the end, this one the end; Loshchilov and Hutter, arXiv 1608.03983,
            equation 5, for the cosine; torch's ``ReduceLROnPlateau`` for plateau, there with a threshold.
        """
        options = self._options
        number = step + 1
        if number < options.warmup_steps:
            return number / options.warmup_steps
        if options.lr_schedule == "plateau":
            return max(math.pow(options.plateau_factor, self._num_reductions()), options.final_lr)
        if options.lr_schedule == "constant" or number <= self._start:
            return 1.0
        left = max(self._num_decay_steps - (number - self._start), 0) / self._num_decay_steps
        if options.lr_schedule == "cosine":
            left = (1 - math.cos(math.pi * left)) / 2
            return options.final_lr + (1 - options.final_lr) * left
        if options.lr_schedule == "polynomial":
            # DLRM bounds its polynomial from below; the others run to their end value.
            return max(math.pow(left, options.decay_power), options.final_lr)
        return options.final_lr + (1 - options.final_lr) * left
