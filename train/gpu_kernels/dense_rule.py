"""The optimizer of all dense parameters as one vector: what is fixed in a run, and the numbers of one step.

The numbers of a step are a tensor of the device, so that a step that was recorded once runs with any learning
rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..rows.row_optimizers import ADAGRAD_EPS, ADAM_BETAS, ADAM_EPS
from ..rows.row_steps import ADAM_KEEP, ADAM_TAKE

DenseOptimizerName = Literal["sgd", "adagrad", "adam"]


@dataclass(frozen=True, slots=True)
class DenseRule:
    """The optimizer of all dense parameters: torch's formulas, in the order of operations of rows."""

    name: DenseOptimizerName
    decay: float = 0.0
    """Share of the weights that is added to their gradient."""

    @property
    def num_states(self) -> int:
        """Numbers of state beside each weight."""
        return {"sgd": 0, "adagrad": 1, "adam": 2}[self.name]

    @property
    def eps(self) -> float:
        """The number added to roots, a float32."""
        return float(np.float32(ADAM_EPS if self.name == "adam" else ADAGRAD_EPS))

    @property
    def keep(self) -> tuple[float, float]:
        """Shares of Adam's averages that stay, float32 values."""
        return float(ADAM_KEEP[0]), float(ADAM_KEEP[1])

    @property
    def take(self) -> tuple[float, float]:
        """Shares of the gradient and of its square that are added to them, float32 values."""
        return float(ADAM_TAKE[0]), float(ADAM_TAKE[1])

    def rates(self, rate: float, step: int) -> NDArray[np.float32]:
        """The (2,) numbers of a step: learning rate, and 1; of Adam both corrected for bias.

        Args:
            rate: learning rate.
            step: steps of the run, this one included.
        """
        if self.name != "adam":
            return np.array([rate, 1], np.float32)
        first, second = (1 - beta**step for beta in ADAM_BETAS)
        return np.array([rate / first, math.sqrt(second)], np.float32)
