"""The order of rows that keeps most samples fully hot: peeling.

Start with all rows, and repeatedly drop the row with the fewest samples per byte that are still fully hot.
Those samples are then lost to other rows, too. The reverse of the dropping order nests the hot sets of all
budgets. It is linear in lookups by a bucket queue of rows by samples, whose rows may fall below the current
level (clipping them there, as code for k-cores does, loses points).

There is a queue for each width and worth. A row joins a queue when it reaches that worth, and its entry
stays, stale, when it leaves: no neighbor has to be found, and rows still come out in order. A row's worth
only falls, so every queue has its place from the start.

Most rows of a log have one sample. If all rows have one width, a separate pass drops these lone rows,
following the list of their samples. It reads neither their worth nor their lists, and the remaining worths
fit in the caches. Every step of a row towards its end takes 4 bytes per lookup.

Source: greedy peeling for densest sub-hypergraphs; Charikar, APPROX 2000, with the weights of a knapsack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import inlined_kernel, kernel
from ..simd import prefetch
from .sample_lists import Entries, Incidence

_ENTRIES_AHEAD = 4
"""Entries between the prefetches of two values, the second of which depends on the first."""
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
    """(num_lookups + num_rows,); the entries, queue by queue."""
    heads: NDArray[np.int64]
    """(num_widths, most samples of a row + 1); the first entry of each queue."""
    tails: NDArray[np.int64]
    """The same shape; the end of each queue, exclusive."""
    levels: NDArray[np.int64]
    """(num_widths,); at most the least worth of each width."""


@kernel
def begin_queues(queues: RowQueues, first_row: int, stop_row: int) -> None:
    """Write where each queue begins to its head and its tail.

    A queue has room for the rows that ever reach its worth: those that have it or more at the start, and
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

    Also removes stale entries at the head of that row's queue.
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
    """Append ``row`` to the rows of its width that have ``left`` samples."""
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
    """Prefetch what the next entries of a queue need, in stages, as each address depends on a load."""
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


BYTES_PER_LOOKUP = 12
BYTES_PER_ROW = 80
BYTES_PER_SAMPLE = 32
"""Memory of the incidence, the queue and the orders built from it, together."""
_NONE = -1
_LOOKUPS_AHEAD = 32
"""Prefetch distance, lookups."""
_LONE_AHEAD = 8
"""Lone rows between the prefetches of two values, the second of which depends on the first."""


class PeelMemory(NamedTuple):
    """Workspace of peeling, allocated by the caller, because NumPy requests large pages for it."""

    worth: NDArray[np.int32]
    """(num_rows,)."""
    queued: NDArray[np.int32]
    """(num_lookups + num_rows,)."""


class _Rows(NamedTuple):
    """The rows that may be dropped, by their numbers."""

    first: int
    stop: int
    first_tail: int
    """From here on rows have one sample at most, and no worth: they go with their sample."""
    num_lone: int
    """Entries that are lone rows, which are dropped in a separate pass."""


class _Outputs(NamedTuple):
    """The arrays that peeling writes, see `peel`."""

    dropped: NDArray[np.int32]
    budgets: NDArray[np.int64]
    hot_samples: NDArray[np.int64]


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

    Rows before them are never dropped; those after them are dropped before the start.

    A row's worth is its number of samples none of whose rows was dropped, divided by its bytes. A row that
    lost its last sample is dropped immediately. Ties: the width that comes first in ``widths``; then the row
    that reached its number of samples first, by ``entries`` for numbers of the start. Exact.

    Args:
        incidence: of rows and samples.
        width_of_row: (num_rows,), positions in ``widths``.
        widths: (num_widths,), bytes of a row; products with numbers of samples fit int64.
        entries: each row once.
        first_row: the first row that may be dropped.
        stop_row: the first row that is dropped before the start.
        budgets: (num_budgets,), bytes of these rows that may stay, rising, fewer than all of them have.
        memory: workspace.
        dropped: (stop_row - first_row,) out.
        hot_samples: (num_budgets,) out, samples none of whose rows is dropped once what is left of these rows
            fits in the budget.
    """
    num_samples = incidence.sample_starts.shape[0] - 1
    has_one_width = widths.shape[0] == 1
    num_lone = entries.lone_samples.shape[0] if has_one_width else 0
    first_tail = _first_tail(incidence) if num_lone > 0 else incidence.row_ends.shape[0]
    rows = _Rows(first_row, stop_row, first_tail, num_lone)
    outputs = _Outputs(dropped, budgets, hot_samples)

    # Samples with a row that is dropped before the start are lost from the start. They take a bit each,
    # since the access is random: those of a million samples fit in the L2 cache.
    lost = np.zeros(num_samples // 8 + 1, np.uint8)
    num_lost = _lose_with_gone_rows(incidence, stop_row, lost)
    most = _count_left(incidence, rows, lost, num_lost, memory.worth)

    # All rows join the queues, but those that nothing depends on.
    heads = np.zeros((widths.shape[0], most + 1), np.int64)
    tails = np.zeros((widths.shape[0], most + 1), np.int64)
    levels = np.zeros(widths.shape[0], np.int64)
    queues = RowQueues(memory.worth, width_of_row, widths, memory.queued, heads, tails, levels)
    begin_queues(queues, first_row, min(stop_row, first_tail))
    number = _queue_rows(entries, rows, lost, queues, dropped)

    # The remaining lone rows have a worth of 1, and reached it before any other row.
    budget = budgets.shape[0] - 1
    if has_one_width:
        bytes_left = (dropped.shape[0] - number) * widths[0]
        budget = _tell_hot(budget, bytes_left, num_samples - num_lost, outputs)
    number, num_lost, budget = _drop_lone_rows(
        incidence, entries, rows, lost, queues, outputs, number, num_lost, budget
    )
    _drop_by_worth(incidence, rows, lost, queues, outputs, number, num_lost, budget)


@kernel
def _first_tail(incidence: Incidence) -> int:
    """Return the first row from which on all have one sample at most."""
    row: int = incidence.row_ends.shape[0]
    while row > 0 and incidence.row_ends[row - 1] - incidence.row_starts[row - 1] <= 1:
        row -= 1
    return row


@kernel
def _lose_with_gone_rows(incidence: Incidence, stop_row: int, lost: NDArray[np.uint8]) -> int:
    """Set the bit of each sample with a row from ``stop_row`` on; return how many these are."""
    sample_starts = incidence.sample_starts
    sample_rows = incidence.sample_rows
    num_lost = 0
    if stop_row < incidence.row_ends.shape[0]:
        for sample in range(sample_starts.shape[0] - 1):
            stop = sample_starts[sample + 1]
            if stop > sample_starts[sample] and sample_rows[stop - 1] >= stop_row:
                lost[sample >> 3] |= _bit_of(sample)
                num_lost += 1
    return num_lost


@kernel
def _count_left(
    incidence: Incidence, rows: _Rows, lost: NDArray[np.uint8], num_lost: int, worth: NDArray[np.int32]
) -> int:
    """Write the worth of each row, the number of its samples that are left; return the most of any row."""
    row_starts = incidence.row_starts
    row_ends = incidence.row_ends
    worth[: rows.first_tail] = _NONE
    most = 0
    for row in range(rows.first, min(rows.stop, rows.first_tail)):
        left = row_ends[row] - row_starts[row]
        if num_lost > 0:
            for k in range(row_starts[row], row_ends[row]):
                left -= _is_lost(incidence.row_samples[k], lost)
        worth[row] = left
        most = max(most, left)
    return most


@kernel
def _queue_rows(
    entries: Entries, rows: _Rows, lost: NDArray[np.uint8], queues: RowQueues, dropped: NDArray[np.int32]
) -> int:
    """Add rows to their queues in the order of their entries; return how many are dropped instead."""
    worth = queues.worth
    has_one_width = queues.widths.shape[0] == 1
    num_rows = entries.rows.shape[0]
    number = 0
    for i in range(num_rows):
        if i + _LOOKUPS_AHEAD < num_rows and entries.rows[i + _LOOKUPS_AHEAD] < rows.first_tail:
            prefetch(worth, np.uint64(entries.rows[i + _LOOKUPS_AHEAD]))
        row = entries.rows[i]
        if not rows.first <= row < rows.stop:
            continue
        left = worth[row] if row < rows.first_tail else 0
        if i < rows.num_lone:
            left = 0 if _is_lost(entries.lone_samples[i], lost) else 1
        if left == 0 and has_one_width:
            # Nothing else is worth as little, and nothing depends on it.
            dropped[number] = row
            number += 1
            if row < rows.first_tail:
                worth[row] = _NONE
        elif i >= rows.num_lone:
            append_row(row, left, queues.width_of_row[row], queues)
    return number


@kernel
def _drop_lone_rows(
    incidence: Incidence,
    entries: Entries,
    rows: _Rows,
    lost: NDArray[np.uint8],
    queues: RowQueues,
    outputs: _Outputs,
    number: int,
    num_lost: int,
    budget: int,
) -> tuple[int, int, int]:
    """Drop the lone rows that are left, each with its sample.

    Args:
        incidence: as for `peel`.
        entries: the lone ones first.
        rows: that may be dropped.
        lost: bits of samples, updated.
        queues: of the other rows, updated; of one width.
        outputs: written.
        number: rows that are dropped.
        num_lost: samples that are lost.
        budget: the next one to be met.

    Returns:
        The last three once they are dropped.
    """
    dropped = outputs.dropped
    num_samples = incidence.sample_starts.shape[0] - 1
    for i in range(rows.num_lone):
        _ask_ahead_of_lone(i, entries.lone_samples, rows, lost, incidence, queues.worth)
        sample = entries.lone_samples[i]
        row = entries.rows[i]
        if not rows.first <= row < rows.stop or _is_lost(sample, lost):
            continue  # of another part, or dropped with its sample
        if row < rows.first_tail:
            queues.worth[row] = _NONE
        dropped[number] = row
        lost[sample >> 3] |= _bit_of(sample)
        num_lost += 1
        number = _lose_rows(sample, row, rows, incidence, queues, dropped, number + 1)
        # If several rows are dropped together, none of them has a sample left.
        bytes_left = (dropped.shape[0] - number) * queues.widths[0]
        budget = _tell_hot(budget, bytes_left, num_samples - num_lost, outputs)
    return number, num_lost, budget


@kernel
def _drop_by_worth(
    incidence: Incidence,
    rows: _Rows,
    lost: NDArray[np.uint8],
    queues: RowQueues,
    outputs: _Outputs,
    number: int,
    num_lost: int,
    budget: int,
) -> None:
    """Drop all rows that are left, that of least worth first; arguments as for `_drop_lone_rows`."""
    row_starts, row_ends, row_samples, sample_starts, sample_rows = incidence
    worth, width_of_row, widths, queued, heads, tails, levels = queues
    dropped = outputs.dropped
    num_samples = sample_starts.shape[0] - 1
    has_one_width = widths.shape[0] == 1
    left_samples = np.empty(heads.shape[1], np.uint32)
    bytes_left = 0
    if not has_one_width:
        for row in range(rows.first, rows.stop):
            bytes_left += widths[width_of_row[row]]
    while number < dropped.shape[0]:
        width = next_width(worth, widths, queued, heads, tails, levels)
        head = heads[width, levels[width]]
        ask_for_entries(queued, head, tails[width, levels[width]], worth, row_starts, row_ends, row_samples)
        row = queued[head]
        heads[width, levels[width]] = head + 1
        left = worth[row]
        worth[row] = _NONE
        first_dropped = number
        dropped[number] = row
        number += 1
        # Its samples are lost, and every other row of theirs loses one for each. First find those that are
        # left, without a branch; then prefetch step by step towards their rows.
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
            number = _lose_rows(sample, row, rows, incidence, queues, dropped, number)
        num_lost += left
        # What is left of the samples is hot under each budget that is met by now.
        for n in range(first_dropped, 0 if has_one_width else number):
            bytes_left -= widths[width_of_row[dropped[n]]]
        if has_one_width:
            bytes_left = (dropped.shape[0] - number) * widths[0]
        budget = _tell_hot(budget, bytes_left, num_samples - num_lost, outputs)


@inlined_kernel
def _tell_hot(budget: int, bytes_left: int, num_hot: int, outputs: _Outputs) -> int:
    """Write the hot samples of the budgets that are met now, the largest first; return the next one."""
    while budget >= 0 and bytes_left <= outputs.budgets[budget]:
        outputs.hot_samples[budget] = num_hot
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
    rows: _Rows,
    incidence: Incidence,
    queues: RowQueues,
    dropped: NDArray[np.int32],
    number: int,
) -> int:
    """Remove a sample lost with ``row`` from its other rows; return the number of dropped rows.

    A row that loses its last sample is dropped. The rows of a sample ascend.
    """
    sample_starts = incidence.sample_starts
    sample_rows = incidence.sample_rows
    worth = queues.worth
    # They are scattered: prefetch all of them before the first is needed.
    for j in range(sample_starts[sample], sample_starts[sample + 1]):
        if sample_rows[j] < rows.first_tail:
            prefetch(worth, np.uint64(sample_rows[j]))
    for j in range(sample_starts[sample], sample_starts[sample + 1]):
        other = sample_rows[j]
        left = 0
        if other < rows.first_tail:
            left = worth[other] - 1
            if left < 0:
                continue  # dropped, or never to be
            worth[other] = left if left > 0 else _NONE
        elif other < rows.first or other == row:
            continue
        if left > 0:
            width = 0 if queues.widths.shape[0] == 1 else queues.width_of_row[other]
            append_row(other, left, width, queues)
            queues.levels[width] = min(queues.levels[width], left)
        else:
            dropped[number] = other
            number += 1
    return number


@inlined_kernel
def _ask_for_rows(
    sample: int, lost: NDArray[np.uint8], sample_starts: NDArray[np.int64], sample_rows: NDArray[np.int32]
) -> None:
    """Prefetch the rows of a sample that is not lost."""
    if not _is_lost(sample, lost):
        prefetch(sample_rows, np.uint64(sample_starts[sample]))


@inlined_kernel
def _ask_ahead_of_lone(
    i: int,
    lone_samples: NDArray[np.uint32],
    rows: _Rows,
    lost: NDArray[np.uint8],
    incidence: Incidence,
    worth: NDArray[np.int32],
) -> None:
    """Prefetch what the next lone rows need, in stages, as each address depends on a load."""
    if i + 3 * _LONE_AHEAD >= rows.num_lone:
        return
    sample_starts = incidence.sample_starts
    sample_rows = incidence.sample_rows
    sample = lone_samples[i + 3 * _LONE_AHEAD]
    if not _is_lost(sample, lost):
        prefetch(sample_starts, np.uint64(sample))
    _ask_for_rows(lone_samples[i + 2 * _LONE_AHEAD], lost, sample_starts, sample_rows)
    sample = lone_samples[i + _LONE_AHEAD]
    if not _is_lost(sample, lost):
        for j in range(sample_starts[sample], sample_starts[sample + 1]):
            if sample_rows[j] < rows.first_tail:
                prefetch(worth, np.uint64(sample_rows[j]))
