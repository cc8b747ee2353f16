"""Exact counts of categories, in memory proportional to the distinct ones and not to the log."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .hash_table import MAX_LOAD, add_counts, copy_entries, new_table


class CategoryCounter:
    """Counts the look-ups of one table's categories, chunk by chunk; exact."""

    def __init__(self) -> None:
        self._table = new_table(1 << 12)
        self._num_used = 0
        self.num_missing = 0
        """Look-ups without a category so far."""

    def add(self, categories: NDArray[np.uint32], is_valid: NDArray[np.uint8]) -> None:
        """Count a chunk.

        Args:
            categories: (num_lookups,), uint32 or uint64.
            is_valid: Arrow validity bitmap, or length 0 where none is missing.
        """
        done = 0
        while True:
            max_used = int(self._table.shape[0] * MAX_LOAD)
            done, self._num_used, num_missing = add_counts(
                categories, is_valid, done, self._table, self._num_used, max_used
            )
            self.num_missing += num_missing
            if done == categories.shape[0]:
                return
            grown = np.zeros((4 * self._table.shape[0], 2), np.uint64)
            copy_entries(self._table, grown)
            self._table = grown

    def result(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Distinct categories, ascending, and how often each was looked up; missing left out."""
        taken = self._table[self._table[:, 1] != 0]
        taken = taken[np.argsort(taken[:, 0], kind="stable")]
        return taken[:, 0].copy(), taken[:, 1].astype(np.int64)
