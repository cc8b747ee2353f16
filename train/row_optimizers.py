"""Optimizers of embedding rows: which state a row carries and the numbers of its update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..stats.row_bytes import OPTIMIZERS, row_bytes, state_width

ADAGRAD_EPS = 1e-10
"""Torch's default: about the 11th digit of the first step, so that a zero gradient divides by no zero."""


@dataclass(frozen=True, slots=True)
class RowOptimizer:
    """One embedding optimizer; ``lr`` and ``eps`` are rounded to float32 once, here."""

    name: str
    lr: float
    eps: float = ADAGRAD_EPS

    def __post_init__(self) -> None:
        if self.name not in OPTIMIZERS:
            raise ValueError(f"no embedding optimizer {self.name!r}")
        object.__setattr__(self, "lr", float(np.float32(self.lr)))
        object.__setattr__(self, "eps", float(np.float32(self.eps)))

    def state_width(self, embedding_dim: int) -> int:
        """Float32 numbers of state beside each row."""
        return state_width(embedding_dim, self.name)

    def row_bytes(self, embedding_dim: int) -> int:
        """Bytes of a row with its state."""
        return row_bytes(embedding_dim, self.name)
