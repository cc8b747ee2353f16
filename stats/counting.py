"""Exact counts of categories, in memory proportional to the distinct ones and not to the log.

Where even those are too many, a counter is emptied into a run, ascending, as often as need be, and the
runs are merged: see `merging`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .hash_table import MAX_LOAD, add_counts, compact_entries, copy_entries

_HALF, _LOW_HALF = np.uint64(32), np.uint64(2**32 - 1)
SMALLEST_ENTRIES = 1 << 12
BYTES_PER_TABLE_BYTE = 2.25
"""What a table and its run or its next size take at the most, in bytes of the table."""


class CategoryCounter:
    """Counts the look-ups of one table's categories, chunk by chunk; exact."""

    def __init__(self) -> None:
        self.num_missing = 0
        """Look-ups without a category so far."""
        self._begin()

    def _begin(self) -> None:
        self._table = np.zeros((SMALLEST_ENTRIES, 2), np.uint64)
        self._num_used = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def add(
        self,
        categories: NDArray[np.uint32],
        is_valid: NDArray[np.uint8],
        make_room: Callable[[], None] | None = None,
    ) -> None:
        """Count a chunk.

        Args:
            categories: (num_lookups,), uint32 or uint64.
            is_valid: Arrow validity bitmap, or length 0 where none is missing.
            make_room: called when the table is full, to `grow` it or to `take` what it holds; None grows.
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
            (make_room or self.grow)()

    def grow(self) -> None:
        """Move to a table four times as large."""
        grown = np.zeros((4 * self._table.shape[0], 2), np.uint64)
        copy_entries(self._table, grown)
        self._table = grown

    def take(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Distinct categories, ascending, and how often each was looked up; the table begins anew.

        Missing look-ups are left out, and go on being counted.
        """
        taken = self._table[: compact_entries(self._table)]
        if taken.size and taken.max() <= _LOW_HALF:  # one word holds both: sorted four times as fast
            words = (taken[:, 0] << _HALF) | taken[:, 1]
            words.sort()
            categories, counts = words >> _HALF, (words & _LOW_HALF).view(np.int64)
        else:
            order = np.argsort(taken[:, 0])
            categories, counts = taken[order, 0], taken[order, 1].view(np.int64)
        self._begin()
        return categories, counts
