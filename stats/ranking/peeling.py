"""The order of rows that keeps most samples fully hot: peeling.

Start with all rows, and drop again and again the row with the fewest samples per byte that are still fully
hot; with it go those samples, and other rows lose them. The reverse of the dropping order nests the hot sets
of all budgets. Linear in lookups: a bucket queue of rows by samples, whose rows may fall below the level
it is at (clipping them there, as code for k-cores does, loses points).

Most rows of a log have one sample. Where all rows have one width these lone rows are dropped in a pass of
their own, which follows the list of their samples: neither their worth nor their lists are read, and what is
left of the worths fits in the caches. Every step of a row towards its end takes 4 bytes a lookup.

Source: greedy peeling for densest sub-hypergraphs; Charikar, APPROX 2000, with the weights of a knapsack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import prefetch
from ..kernel import inlined_kernel, kernel
from .sample_lists import Entries, Incidence

BYTES_PER_LOOKUP = 12
BYTES_PER_ROW = 80
BYTES_PER_SAMPLE = 32
"""Memory of the incidence, the queue and the orders built from it, together."""
_NONE = -1
_LOOKUPS_AHEAD = 32
"""Lookups between asking for what one needs and using it."""
_ENTRIES_AHEAD = 4
"""Entries of a queue between asking for one thing and for the next that follows from it."""
_LONE_AHEAD = 8
"""The same of lone rows."""
_LINE_SAMPLES = 16
"""Numbers of samples in a cache line."""


class PeelMemory(NamedTuple):
    """Memory that peeling works in; the caller's, for which NumPy asks the system for large pages."""

    worth: NDArray[np.int32]
    """(num_rows,)."""
    queued: NDArray[np.int32]
    """(num_lookups + num_rows,)."""


@kernel
def peel(
    incidence: Incidence,
    width_of_row: NDArray[np.uint8],
    widths: NDArray[np.int64],
    entries: Entries,
    first_row: int,
    stop_row: int,
    budgets: NDArray[np.int64],
    memory: PeelMemory,
    dropped: NDArray[np.int32],
    hot_samples: NDArray[np.int64],
) -> None:
    """Write the rows from ``first_row`` to ``stop_row`` to ``dropped``, the least worth keeping first.

    Rows before them are kept for good, those behind are gone before it begins.

    A row's worth is its number of samples none of whose rows was dropped, divided by its bytes. A row that
    lost its last sample is dropped at once. Ties: the width that comes first in ``widths``; then the row that
    came to its number of samples first, as they entered by ``entries`` where that was the start. Exact.

    Args:
        incidence: of rows and samples.
        width_of_row: (num_rows,), positions in ``widths``.
        widths: (num_widths,), bytes of a row; products with numbers of samples fit int64.
        entries: each row once.
        first_row: the first row that may be dropped.
        stop_row: the first row that is gone.
        budgets: (num_budgets,), bytes of these rows that may stay, rising, fewer than all of them have.
        memory: to work in.
        dropped: (stop_row - first_row,) out.
        hot_samples: (num_budgets,) out, samples none of whose rows is dropped once what is left of these rows
            fits in the budget.
    """
    row_starts, row_ends, row_samples, sample_starts, sample_rows = incidence
    worth, queued = memory
    num_rows = row_ends.shape[0]
    num_samples = sample_starts.shape[0] - 1
    # Rows from ``first_tail`` on have one sample at most, and no worth: they go with their sample.
    has_one_width = widths.shape[0] == 1
    num_lone = entries.lone_samples.shape[0] if has_one_width else 0
    first_tail = num_rows
    while num_lone > 0 and first_tail > 0 and row_ends[first_tail - 1] - row_starts[first_tail - 1] <= 1:
        first_tail -= 1

    # Samples with a row that is gone before it begins are lost from the start. A bit for each of them, since
    # they are asked for in any order: those of a million samples fit in the second cache.
    lost = np.zeros(num_samples // 8 + 1, np.uint8)
    num_lost = 0
    if stop_row < num_rows:
        for sample in range(num_samples):
            stop = sample_starts[sample + 1]
            if stop > sample_starts[sample] and sample_rows[stop - 1] >= stop_row:
                lost[sample >> 3] |= _bit_of(sample)
                num_lost += 1

    # The worth of a row is the number of its samples that are left.
    worth[:first_tail] = _NONE
    most = 0
    for row in range(first_row, min(stop_row, first_tail)):
        left = row_ends[row] - row_starts[row]
        if num_lost > 0:
            for k in range(row_starts[row], row_ends[row]):
                left -= _is_lost(row_samples[k], lost)
        worth[row] = left
        most = max(most, left)

    # A queue of rows for each width and worth. A row joins one when it comes to that worth, and its entry
    # stays, stale, when it leaves: no neighbor has to be found, and rows still come out in their order.
    heads = np.zeros((widths.shape[0], most + 1), np.int64)
    tails = np.zeros((widths.shape[0], most + 1), np.int64)
    _begin_queues(worth, width_of_row, first_row, min(stop_row, first_tail), heads, tails)
    number = 0
    for i in range(num_rows):
        if i + _LOOKUPS_AHEAD < num_rows and entries.rows[i + _LOOKUPS_AHEAD] < first_tail:
            prefetch(worth, np.uint64(entries.rows[i + _LOOKUPS_AHEAD]))
        row = entries.rows[i]
        if not first_row <= row < stop_row:
            continue
        left = worth[row] if row < first_tail else 0
        if i < num_lone:
            left = 0 if _is_lost(entries.lone_samples[i], lost) else 1
        if left == 0 and has_one_width:
            # Nothing else is worth as little, and nothing depends on it.
            dropped[number] = row
            number += 1
            if row < first_tail:
                worth[row] = _NONE
        elif i >= num_lone:
            _append(row, left, width_of_row[row], queued, tails)

    # The lone rows that are left have a worth of 1, and came to it before any other row.
    budget = budgets.shape[0] - 1
    if has_one_width:
        bytes_left = (dropped.shape[0] - number) * widths[0]
        budget = _tell_hot(budget, budgets, bytes_left, num_samples - num_lost, hot_samples)
    levels = np.zeros(widths.shape[0], np.int64)
    for i in range(num_lone):
        _ask_ahead_of_lone(
            i, entries.lone_samples, num_lone, lost, sample_starts, sample_rows, worth, first_tail
        )
        sample = entries.lone_samples[i]
        row = entries.rows[i]
        if not first_row <= row < stop_row or _is_lost(sample, lost):
            continue  # of another part, or dropped with its sample
        if row < first_tail:
            worth[row] = _NONE
        dropped[number] = row
        number += 1
        lost[sample >> 3] |= _bit_of(sample)
        num_lost += 1
        number = _lose_rows(
            sample,
            row,
            first_row,
            first_tail,
            sample_starts,
            sample_rows,
            worth,
            width_of_row,
            queued,
            tails,
            levels,
            dropped,
            number,
        )
        # Where several rows go at once, none of them has a sample that is left.
        bytes_left = (dropped.shape[0] - number) * widths[0]
        budget = _tell_hot(budget, budgets, bytes_left, num_samples - num_lost, hot_samples)

    # Drop the row of least worth; ``levels`` are at most the least worth of each width.
    left_samples = np.empty(most + 1, np.uint32)
    bytes_left = 0
    if not has_one_width:
        for row in range(first_row, stop_row):
            bytes_left += widths[width_of_row[row]]
    while number < dropped.shape[0]:
        width = _next_width(worth, queued, heads, tails, levels, widths)
        head = heads[width, levels[width]]
        _ask_ahead(queued, head, tails[width, levels[width]], worth, row_starts, row_ends, row_samples)
        row = queued[head]
        heads[width, levels[width]] = head + 1
        left = worth[row]
        worth[row] = _NONE
        first_dropped = number
        dropped[number] = row
        number += 1
        # Its samples are lost, and every other row of theirs falls by one for each. Those that are left are
        # found first, without a branch, and what leads to their rows is asked for step by step.
        found = 0
        k = row_starts[row]
        while found < left:
            left_samples[found] = row_samples[k]
            found += not _is_lost(row_samples[k], lost)
            k += 1
        for n in range(left):
            prefetch(sample_starts, np.uint64(left_samples[n]))
        for n in range(left):
            prefetch(sample_rows, np.uint64(sample_starts[left_samples[n]]))
        for n in range(left):
            sample = left_samples[n]
            lost[sample >> 3] |= _bit_of(sample)
            number = _lose_rows(
                sample,
                row,
                first_row,
                first_tail,
                sample_starts,
                sample_rows,
                worth,
                width_of_row,
                queued,
                tails,
                levels,
                dropped,
                number,
            )
        num_lost += left
        # What is left of the samples is hot under each budget that is met by now.
        for n in range(first_dropped, 0 if has_one_width else number):
            bytes_left -= widths[width_of_row[dropped[n]]]
        if has_one_width:
            bytes_left = (dropped.shape[0] - number) * widths[0]
        budget = _tell_hot(budget, budgets, bytes_left, num_samples - num_lost, hot_samples)


@inlined_kernel
def _tell_hot(
    budget: int, budgets: NDArray[np.int64], bytes_left: int, num_hot: int, hot_samples: NDArray[np.int64]
) -> int:
    """Write the hot samples of the budgets that are met now, the largest first; return the next one."""
    while budget >= 0 and bytes_left <= budgets[budget]:
        hot_samples[budget] = num_hot
        budget -= 1
    return budget


@inlined_kernel
def _bit_of(sample: int) -> np.uint8:
    """Return the bit of a sample in its byte of eight."""
    return np.uint8(1 << (sample & 7))


@inlined_kernel
def _is_lost(sample: int, lost: NDArray[np.uint8]) -> bool:
    """Return whether the bit of a sample is set."""
    is_lost: bool = (lost[sample >> 3] & np.uint8(1 << (sample & 7))) != 0
    return is_lost


@inlined_kernel
def _lose_rows(
    sample: int,
    row: int,
    first_row: int,
    first_tail: int,
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
    worth: NDArray[np.int32],
    width_of_row: NDArray[np.uint8],
    queued: NDArray[np.int32],
    tails: NDArray[np.int64],
    levels: NDArray[np.int64],
    dropped: NDArray[np.int32],
    number: int,
) -> int:
    """Take a sample that is lost with ``row`` from its other rows; return how many rows are dropped by then.

    A row whose last sample it is goes with it. The rows of a sample ascend.
    """
    # They are anywhere: ask for all of them before the first is needed.
    for j in range(sample_starts[sample], sample_starts[sample + 1]):
        if sample_rows[j] < first_tail:
            prefetch(worth, np.uint64(sample_rows[j]))
    for j in range(sample_starts[sample], sample_starts[sample + 1]):
        other = sample_rows[j]
        left = 0
        if other < first_tail:
            left = worth[other] - 1
            if left < 0:
                continue  # dropped, or never to be
            worth[other] = left if left > 0 else _NONE
        elif other < first_row or other == row:
            continue
        if left > 0:
            width = 0 if tails.shape[0] == 1 else width_of_row[other]
            _append(other, left, width, queued, tails)
            levels[width] = min(levels[width], left)
        else:
            dropped[number] = other
            number += 1
    return number


@inlined_kernel
def _ask_for_rows(
    sample: int, lost: NDArray[np.uint8], sample_starts: NDArray[np.int64], sample_rows: NDArray[np.int32]
) -> None:
    """Ask for the rows of a sample that is not lost."""
    if not _is_lost(sample, lost):
        prefetch(sample_rows, np.uint64(sample_starts[sample]))


@inlined_kernel
def _ask_ahead_of_lone(
    i: int,
    lone_samples: NDArray[np.uint32],
    num_lone: int,
    lost: NDArray[np.uint8],
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
    worth: NDArray[np.int32],
    first_tail: int,
) -> None:
    """Ask for what the next lone rows will need, each thing when what leads to it has come."""
    if i + 3 * _LONE_AHEAD >= num_lone:
        return
    sample = lone_samples[i + 3 * _LONE_AHEAD]
    if not _is_lost(sample, lost):
        prefetch(sample_starts, np.uint64(sample))
    _ask_for_rows(lone_samples[i + 2 * _LONE_AHEAD], lost, sample_starts, sample_rows)
    sample = lone_samples[i + _LONE_AHEAD]
    if not _is_lost(sample, lost):
        for j in range(sample_starts[sample], sample_starts[sample + 1]):
            if sample_rows[j] < first_tail:
                prefetch(worth, np.uint64(sample_rows[j]))


@kernel
def _begin_queues(
    worth: NDArray[np.int32],
    width_of_row: NDArray[np.uint8],
    first_row: int,
    stop_row: int,
    heads: NDArray[np.int64],
    tails: NDArray[np.int64],
) -> None:
    """Write where each queue begins to ``heads`` and ``tails``.

    A queue has room for the rows that ever come to its worth: those that have it or more at the start, and
    for worth 0, which no row falls to in a queue, those that have it at the start.
    """
    for row in range(first_row, stop_row):
        heads[width_of_row[row], worth[row]] += 1
    total = np.int64(0)
    for width in range(heads.shape[0]):
        num_rows = np.int64(0)
        for level in range(heads.shape[1] - 1, -1, -1):
            num_rows = heads[width, level] + (num_rows if level > 0 else 0)
            heads[width, level] = total
            tails[width, level] = total
            total += num_rows


@inlined_kernel
def _next_width(
    worth: NDArray[np.int32],
    queued: NDArray[np.int32],
    heads: NDArray[np.int64],
    tails: NDArray[np.int64],
    levels: NDArray[np.int64],
    widths: NDArray[np.int64],
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
def _append(row: int, left: int, width: int, queued: NDArray[np.int32], tails: NDArray[np.int64]) -> None:
    """Put ``row`` behind the others of its width that have ``left`` samples."""
    queued[tails[width, left]] = row
    tails[width, left] += 1


@inlined_kernel
def _ask_ahead(
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
