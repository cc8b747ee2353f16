"""Splits the distinct rows of a batch over threads: ranges with about as many lookups each.

Rows are in one range each and their sums do not depend on where ranges end, so bits do not depend on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from ...stats.batch_rows import LookupsByRow
from ...stats.batch_work import most_row_ranges, num_row_ranges
from ..work_threads import WorkThreads


def row_ranges(lookups: LookupsByRow, most: int) -> list[tuple[int, int]]:
    """Return at most so many ranges of rows, with about as many lookups each."""
    num_lookups = lookups.order_N.shape[0]
    num_ranges = num_row_ranges(num_lookups, most)
    if num_ranges == 1:
        return [(0, lookups.num_rows)] if lookups.num_rows else []
    # A range ends with the row that reaches its share; a row with several shares leaves ranges empty.
    shares = np.arange(1, num_ranges) * (num_lookups / num_ranges)
    bounds = np.searchsorted(lookups.starts_U1, shares).clip(max=lookups.num_rows).tolist()
    return [(first, last) for first, last in pairwise([0, *bounds, lookups.num_rows]) if first < last]


def for_row_ranges(lookups: LookupsByRow, threads: WorkThreads, work: Callable[[int, int], None]) -> None:
    """Call ``work(first, last)`` for ranges of rows, at the same time as far as there are threads."""
    ranges = row_ranges(lookups, most_row_ranges(threads.num_threads))
    threads.run(lambda piece, _: work(*ranges[piece]), len(ranges))
