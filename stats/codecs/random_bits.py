"""Random bits of stochastic rounding: they follow from a message's stream, a row's key and a column alone."""

from __future__ import annotations

import numpy as np

from ..hashing import mix64, mix64_pair
from ..kernel import inlined_kernel

COLUMNS_OF_WORD = 4
"""Columns that one hash of 64 bits serves, with 16 bits each."""


@inlined_kernel
def seed_of_row(stream: np.uint64, key: np.int64) -> np.uint64:
    """Return the seed of a row: every rank rounds it alike."""
    return mix64_pair(np.uint64(stream), np.uint64(key))


@inlined_kernel
def word_of_columns(seed: np.uint64, first_column: int) -> np.uint64:
    """Return the bits of `COLUMNS_OF_WORD` columns, the lowest 16 for the first of them."""
    return mix64(np.uint64(seed) ^ np.uint64(first_column))
