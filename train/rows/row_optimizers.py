"""Optimizers of embedding rows: which state a row carries and the numbers of its update.

All are lazy: a step touches the rows a batch looks up and no others, state included. For Adam this means
that the averages of a row decay, and are corrected for bias, by the steps that row has taken. Torch's
SparseAdam corrects by the steps of the run, which makes the first steps of a rare row far too large.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.row_bytes import OPTIMIZERS, row_bytes, state_width

ADAGRAD_EPS = 1e-10
"""Torch's default: about the 11th digit of the first step, so that a zero gradient divides by no zero."""
ADAM_EPS = 1e-8
"""Torch's and the paper's default."""
ADAM_BETAS = (0.9, 0.999)
"""Torch's and the paper's defaults."""
MOMENTUM = 0.9
"""Share of a row's last step that stays."""
_CORRECTED_BELOW = 2.0**-26
"""``1 - x`` rounds to 1 in float32 below this."""


@dataclass(frozen=True)
class RowOptimizer:
    """One embedding optimizer; ``lr`` and ``decay`` are rounded to float32 once, here."""

    name: str
    lr: float
    """Learning rate of steps that are not given another."""
    decay: float = 0.0
    """Share of a row's weights that is added to its gradient at each of its steps (L2)."""

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"no embedding optimizer {self.name!r}")
        object.__setattr__(self, "lr", float(np.float32(self.lr)))
        object.__setattr__(self, "decay", float(np.float32(self.decay)))

    @property
    def eps(self) -> float:
        """The number added to the root of the squares, a float32."""
        return float(np.float32(ADAM_EPS if self.name == "adam" else ADAGRAD_EPS))

    def state_width(self, embedding_dim: int) -> int:
        """Float32 numbers of state beside each row."""
        return state_width(embedding_dim, self.name)

    def row_bytes(self, embedding_dim: int) -> int:
        """Bytes of a row with its state."""
        return row_bytes(embedding_dim, self.name)

    def adam_step_sizes(self, lr: float) -> NDArray[np.float32]:
        """``lr / (1 - b1**t)`` for t = 0, 1, ... until float32 sees no change; entry 0 is unused."""
        return np.concatenate([np.ones(1), lr / (1 - self._adam_powers[0])]).astype(np.float32)

    @cached_property
    def adam_root_scales(self) -> NDArray[np.float32]:
        """``sqrt(1 - b2**t)`` for t = 0, 1, ... until float32 sees no change; entry 0 is unused."""
        return np.concatenate([np.ones(1), np.sqrt(1 - self._adam_powers[1])]).astype(np.float32)

    def step_rates(self, lr: float) -> NDArray[np.float32]:
        """The numbers of a step with this learning rate, as many for any: those of Adam, else the rate."""
        return self.adam_step_sizes(lr) if self.name == "adam" else np.array([lr], np.float32)

    @property
    def root_scales(self) -> NDArray[np.float32]:
        """Those of Adam, none for others."""
        return self.adam_root_scales if self.name == "adam" else np.empty(0, np.float32)

    @cached_property
    def _adam_powers(self) -> list[NDArray[np.float64]]:
        """Powers of both betas, by repeated products in float64, as powers differ between machines."""
        num_steps = [2 + math.ceil(math.log(_CORRECTED_BELOW) / math.log(beta)) for beta in ADAM_BETAS]
        return [
            np.multiply.accumulate(np.full(count, beta))
            for count, beta in zip(num_steps, ADAM_BETAS, strict=True)
        ]
