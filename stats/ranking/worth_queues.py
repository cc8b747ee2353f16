"""Queues of rows by width and worth, from which `peeling` takes the row that is worth least.

A row joins a queue when it comes to that worth, and its entry stays, stale, when it leaves: no neighbor has
to be found, and rows still come out in their order. A row only ever falls, so every queue has its place from
the start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import prefetch
from ..kernel import inlined_kernel, kernel

_LOOKUPS_AHEAD = 32
"""Entries between asking for the worth of one and reading it."""
_ENTRIES_AHEAD = 4
"""Entries between asking for one thing and for the next that follows from it."""
_LINE_SAMPLES = 16
"""Numbers of samples in a cache line."""


class RowQueues(NamedTuple):
    """The rows that are left, in a queue for each width and worth."""

    worth: NDArray[np.int32]
    """(num_rows,); samples of each row that are left; below 0 where it is dropped, or never will be."""
    width_of_row: NDArray[np.uint8]
    widths: NDArray[np.int64]
    """(num_widths,), bytes of a row."""
    queued: NDArray[np.int32]
    """(num_lookups + num_rows,); the entries, queue behind queue."""
    heads: NDArray[np.int64]
    """(num_widths, most samples of a row + 1); the first entry of each queue."""
    tails: NDArray[np.int64]
    """The same shape; behind the last one."""
    levels: NDArray[np.int64]
    """(num_widths,); at most the least worth of each width."""


@kernel
def begin_queues(queues: RowQueues, first_row: int, stop_row: int) -> None:
    """Write where each queue begins to its head and its tail.

    A queue has room for the rows that ever come to its worth: those that have it or more at the start, and
    for worth 0, which no row falls to in a queue, those that have it at the start.
    """
    heads = queues.heads
    for row in range(first_row, stop_row):
        heads[queues.width_of_row[row], queues.worth[row]] += 1
    total = np.int64(0)
    for width in range(heads.shape[0]):
        num_rows = np.int64(0)
        for level in range(heads.shape[1] - 1, -1, -1):
            num_rows = heads[width, level] + (num_rows if level > 0 else 0)
            heads[width, level] = total
            queues.tails[width, level] = total
            total += num_rows


@inlined_kernel
def next_width(
    worth: NDArray[np.int32],
    widths: NDArray[np.int64],
    queued: NDArray[np.int32],
    heads: NDArray[np.int64],
    tails: NDArray[np.int64],
    levels: NDArray[np.int64],
) -> int:
    """Raise each level to the fewest samples a row of that width has; returns the width of least worth.

    Stale entries at the head of that row's queue are gone then.
    """
    best = -1
    num_levels = heads.shape[1]
    for width in range(widths.shape[0]):
        level = levels[width]
        while level < num_levels:
            head = heads[width, level]
            tail = tails[width, level]
            while head < tail and worth[queued[head]] != level:
                head += 1
                if head + _LOOKUPS_AHEAD < tail:
                    prefetch(worth, np.uint64(queued[head + _LOOKUPS_AHEAD]))
            heads[width, level] = head
            if head < tails[width, level]:
                break
            level += 1
        if level == num_levels:
            levels[width] = level - 1  # no row of this width is left
            continue
        levels[width] = level
        # Samples per byte, compared by cross products, exactly.
        if best < 0 or levels[width] * widths[best] < levels[best] * widths[width]:
            best = width
    return best


@inlined_kernel
def append_row(row: int, left: int, width: int, queues: RowQueues) -> None:
    """Put ``row`` behind the others of its width that have ``left`` samples."""
    queues.queued[queues.tails[width, left]] = row
    queues.tails[width, left] += 1


@inlined_kernel
def ask_for_entries(
    queued: NDArray[np.int32],
    head: int,
    tail: int,
    worth: NDArray[np.int32],
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    row_samples: NDArray[np.uint32],
) -> None:
    """Ask for what the next entries of a queue will need, each thing when what leads to it has come."""
    if head + 2 * _ENTRIES_AHEAD >= tail:
        return
    row = np.uint64(queued[head + 2 * _ENTRIES_AHEAD])
    prefetch(worth, row)
    prefetch(row_starts, row)
    prefetch(row_ends, row)
    # Of a long list the first two lines: the others are read in turn.
    start = row_starts[queued[head + _ENTRIES_AHEAD]]
    prefetch(row_samples, np.uint64(start))
    prefetch(row_samples, np.uint64(start + _LINE_SAMPLES))
