"""Exact counts of categories, in memory proportional to the distinct ones and not to the log.

Where even those are too many, a counter is emptied into a run, ascending, as often as need be, and the
runs are merged: see `count_merging`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..kernel import read_only
from .counting_loop import add_counts
from .hash_probing import HALF, LOW_HALF, most_used
from .hash_table import compact_entries, copy_entries
from .packed_counts import compact_short_entries, copy_short_entries, widened

SMALLEST_ENTRIES = 1 << 12
_LARGE_ENTRIES = 1 << 18
BYTES_PER_TABLE_BYTE = 2.25
"""Memory at most of a table and its run, or of a table and its next size, in bytes of the table."""


class CategoryCounter:
    """Counts the lookups of one table's categories, chunk by chunk; exact.

    In short entries, until a category or a count needs more than 32 bits.
    """

    def __init__(self) -> None:
        self.num_missing = 0
        """Lookups without a category so far."""
        self._start_empty()

    def _start_empty(self) -> None:
        self._table = np.zeros(SMALLEST_ENTRIES, np.uint64)
        self._num_used = 0

    @property
    def _is_short(self) -> bool:
        return self._table.ndim == 1

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
        # Of logs in memory and of mapped files alike.
        categories, is_valid = read_only(categories), read_only(is_valid)
        while True:
            # Wide categories fit in no short entry.
            if self._is_short and categories.dtype != np.uint32:
                self._table = widened(self._table)
            # Count until the chunk ends, the table is full or a count needs more bits.
            max_used = most_used(self._table.shape[0])
            done, self._num_used, num_missing = add_counts(
                categories, is_valid, done, self._table, self._num_used, max_used
            )
            self.num_missing += num_missing
            if done == categories.shape[0]:
                return
            if self._num_used < max_used:  # a count is full
                self._table = widened(self._table)
            else:
                (make_room or self.grow)()

    def grow(self) -> None:
        """Move to a table four times as large, or twice where it is large already."""
        factor = 4 if self._table.shape[0] < _LARGE_ENTRIES else 2
        grown = np.zeros((factor * self._table.shape[0], *self._table.shape[1:]), np.uint64)
        (copy_short_entries if self._is_short else copy_entries)(self._table, grown)
        self._table = grown

    def take(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the distinct categories, ascending, and how often each was looked up, and empty the table.

        Missing lookups are left out, and ``num_missing`` keeps its value.
        """
        if self._is_short:
            # The category is the upper half of a word, so words sort by category.
            words = self._table[: compact_short_entries(self._table)]
            words.sort()
            categories = words >> HALF
            words &= LOW_HALF
            counts = words.view(np.int64)  # in place: the words are half of the table
        else:
            taken = self._table[: compact_entries(self._table)]
            order = np.argsort(taken[:, 0])
            categories = taken[order, 0]
            counts = taken[order, 1].view(np.int64)
        self._start_empty()
        return categories, counts
