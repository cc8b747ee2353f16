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
    """One embedding optimizer; ``lr`` is rounded to float32 once, here."""

    name: str
    lr: float

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"no embedding optimizer {self.name!r}")
        object.__setattr__(self, "lr", float(np.float32(self.lr)))

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

    @cached_property
    def adam_tables(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """``lr / (1 - b1**t)`` and ``sqrt(1 - b2**t)`` for t = 0, 1, ... until float32 sees no change.

        Computed once by repeated products in float64, as powers differ between machines; entry 0 is unused.
        """
        # The correction with the slower beta is the last to vanish.
        num_steps = 2 + math.ceil(math.log(_CORRECTED_BELOW) / math.log(max(ADAM_BETAS)))
        powers = [np.multiply.accumulate(np.full(num_steps, beta)) for beta in ADAM_BETAS]
        step_sizes = self.lr / (1 - powers[0])
        root_scales = np.sqrt(1 - powers[1])
        first = np.ones(1)
        return (
            np.concatenate([first, step_sizes]).astype(np.float32),
            np.concatenate([first, root_scales]).astype(np.float32),
        )
