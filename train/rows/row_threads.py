"""Splits the distinct rows of a batch over threads: ranges with about as many lookups each.

Rows are in one range each and their sums do not depend on where ranges end, so bits do not depend on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...stats.batches.lookups_by_row import LookupsByRow

_LEAST_LOOKUPS = 16_384
"""Lookups of a range at least, some 0.4 ms of work; to wake a thread takes a tenth of that."""


def row_ranges(lookups: LookupsByRow, num_threads: int) -> list[tuple[int, int]]:
    """Return at most one range of rows for each thread, with about as many lookups each."""
    num_lookups = lookups.order_N.shape[0]
    num_ranges = max(1, min(num_threads, num_lookups // _LEAST_LOOKUPS))
    # A range ends with the row that reaches its share; a row with several shares leaves ranges empty.
    shares = np.arange(1, num_ranges) * (num_lookups / num_ranges)
    bounds = np.searchsorted(lookups.starts_U1, shares).clip(max=lookups.num_rows).tolist()
    return [(first, last) for first, last in pairwise([0, *bounds, lookups.num_rows]) if first < last]


def for_row_ranges(lookups: LookupsByRow, num_threads: int, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, last)`` for ranges of rows, at the same time; the caller's thread does the last."""
    ranges = row_ranges(lookups, num_threads)
    if not ranges:
        return
    others = [_pool(num_threads).submit(work, *rows) for rows in ranges[:-1]]
    try:
        work(*ranges[-1])
    finally:
        # The others work on the caller's arrays: they are waited for even after an error.
        errors = [other.exception() for other in others]
    for error in errors:
        if error is not None:
            raise error


@lru_cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads - 1, "rows")
