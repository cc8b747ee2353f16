"""The order of rows that keeps most samples fully hot: peeling.

Start with all rows, and repeatedly drop the row with the fewest samples per byte that are still fully hot.
Those samples are then lost to other rows, too. The reverse of the dropping order nests the hot sets of all
budgets. It is linear in lookups by a bucket queue of rows by samples, whose rows may fall below the current
level (clipping them there, as code for k-cores does, loses points).

There is a queue for each width and worth. A row joins a queue when it reaches that worth, and its entry
stays, stale, when it leaves: no neighbor has to be found, and rows still come out in order. A row's worth
only falls, so every queue has its place from the start. Every step of a row towards its end takes 4 bytes per
lookup.

Rows are numbered by their place in the order by frequency (by lookups per byte where widths differ), without
those that are certainly hot. The rows of each sample and the samples of each row take 8 bytes per lookup. The
lists are filled in blocks whose memory is prefetched.

Source: greedy peeling for densest sub-hypergraphs; Charikar, APPROX 2000, with the weights of a knapsack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernel import inlined_kernel, kernel
from .simd import prefetch

BYTES_PER_LOOKUP = 12
BYTES_PER_ROW = 80
BYTES_PER_SAMPLE = 32
"""Memory of the incidence, the queue and the orders built from it, together."""
_BLOCK_LOOKUPS = 512
"""Lookups whose rows are prefetched together: their lines fit in the L2 cache."""
_LOOKUPS_AHEAD = 32
"""Prefetch distance, lookups."""
_ENTRIES_AHEAD = 4
"""Entries between the prefetches of two values, the second of which depends on the first."""
_LINE_SAMPLES = 16
"""Numbers of samples in a cache line."""
_NONE = -1
"""Worth of a row that is dropped, or never will be."""


class Incidence(NamedTuple):
    """Which rows each sample looks up, both ways; see `append_samples` and `list_rows`."""

    row_starts: NDArray[np.int64]
    """(num_rows + 1,), where the samples of each row begin."""
    row_ends: NDArray[np.int64]
    """(num_rows,), where they end."""
    row_samples: NDArray[np.uint32]
    """(num_lookups,); the samples of each row, ascending."""
    sample_starts: NDArray[np.int64]
    """(num_samples + 1,), where the rows of each sample begin."""
    sample_rows: NDArray[np.int32]
    """(num_lookups,); the rows of each sample, ascending."""


@kernel
def append_samples(
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    first_sample: int,
    first_id: int,
    rows: NDArray[np.int32],
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    row_samples: NDArray[np.uint32],
) -> bool:
    """Append the number of each sample to the lists of the rows it looks up, once a row.

    Args:
        ids: (num_lookups,), of one table.
        offsets: (num_samples + 1,); sample i has the lookups from ``offsets[i]`` to ``offsets[i + 1]``.
        first_sample: number of the first sample; calls come in the order of samples.
        first_id: smaller ids are certainly hot, and left out.
        rows: (num_ids - first_id,), number of each other id's row.
        row_starts: (num_rows + 1,), where the list of each row begins.
        row_ends: (num_rows,), where it ends; moved.
        row_samples: (num_lookups of all rows,), lists of samples, written.

    Returns:
        False where a list would grow into the next; it and what follows are left unwritten.
    """
    # In blocks: first the lookups of rows that may be dropped, without a branch for each, then what they
    # need from memory, one thing after another, and the lists last.
    kept_rows = np.empty(_BLOCK_LOOKUPS, np.int32)
    kept_samples = np.empty(_BLOCK_LOOKUPS, np.uint32)
    sample = 0
    for first in range(offsets[0], offsets[-1], _BLOCK_LOOKUPS):
        stop = min(first + _BLOCK_LOOKUPS, offsets[-1])
        num_kept = 0
        for j in range(first, stop):
            while offsets[sample + 1] <= j:
                sample += 1
            kept_rows[num_kept] = ids[j] - first_id
            kept_samples[num_kept] = first_sample + sample
            num_kept += ids[j] >= first_id
        for k in range(num_kept):
            prefetch(rows, np.uint64(kept_rows[k]))
        for k in range(num_kept):
            row = rows[kept_rows[k]]
            kept_rows[k] = row
            prefetch(row_starts, np.uint64(row))
            prefetch(row_ends, np.uint64(row))
        for k in range(num_kept):
            prefetch(row_samples, np.uint64(row_ends[kept_rows[k]]))
        for k in range(num_kept):
            row = kept_rows[k]
            end = row_ends[row]
            if end > row_starts[row] and row_samples[end - 1] == kept_samples[k]:
                continue  # looked up twice by one sample
            # The room was counted before; more lookups than that mean another log.
            if end >= row_starts[row + 1]:
                return False
            row_samples[end] = kept_samples[k]
            row_ends[row] = end + 1
    return True


@kernel
def list_rows(
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    row_samples: NDArray[np.uint32],
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
) -> None:
    """List the rows of each sample, from the samples of each row.

    Args:
        row_starts: (num_rows + 1,); see `append_samples`.
        row_ends: (num_rows,).
        row_samples: (num_lookups,).
        sample_starts: (num_samples + 1,) zeros; out, where the list of each sample begins.
        sample_rows: (num_lookups,) out, rows ascending in each sample.
    """
    # Count the rows of each sample, then sum up: the running sums are where the lists end. The memory between
    # two lists is undefined, and may be prefetched, but is never used.
    num_lookups = row_samples.shape[0]
    num_samples = sample_starts.shape[0] - 1
    for row in range(row_ends.shape[0]):
        for k in range(row_starts[row], row_ends[row]):
            if k + 2 * _LOOKUPS_AHEAD < num_lookups:
                prefetch(sample_starts, np.uint64(row_samples[k + 2 * _LOOKUPS_AHEAD]))
            sample_starts[row_samples[k]] += 1
    total = 0
    for sample in range(sample_starts.shape[0]):
        total += sample_starts[sample]
        sample_starts[sample] = total
    for row in range(row_ends.shape[0] - 1, -1, -1):  # from the back, so that ends become starts
        for k in range(row_starts[row], row_ends[row]):
            if k >= 2 * _LOOKUPS_AHEAD:
                prefetch(sample_starts, np.uint64(row_samples[k - 2 * _LOOKUPS_AHEAD]))
                later = row_samples[k - _LOOKUPS_AHEAD]
                if later < num_samples:
                    prefetch(sample_rows, np.uint64(sample_starts[later]))
            sample = row_samples[k]
            sample_starts[sample] -= 1
            sample_rows[sample_starts[sample]] = row


def entry_order(incidence: Incidence) -> NDArray[np.int32]:
    """Return the order, (num_rows,), in which rows enter the queues, which breaks their ties.

    Rows of a single sample, the lone ones, are first, those whose sample has most of them before the others
    (one sample is lost, many rows are freed); then all other rows. Otherwise the least looked-up row is
    first.
    """
    is_lone = incidence.row_ends - incidence.row_starts[:-1] == 1
    lone_rows = np.flatnonzero(is_lone)[::-1]
    samples = incidence.row_samples[incidence.row_starts[lone_rows]]
    num_lone = np.bincount(samples)[samples]
    # A stable sort of small integers goes by their digits, in linear time.
    most = num_lone.max(initial=0)
    order = np.argsort((most - num_lone).astype(np.min_scalar_type(most)), kind="stable")
    return np.concatenate([lone_rows[order], np.flatnonzero(~is_lone)[::-1]]).astype(np.int32)


def _prefixes_of(incidence: Incidence) -> NDArray[np.int32]:
    """Return the fewest first rows by number that make each sample fully hot: (num_samples,)."""
    # The rows of a sample ascend.
    starts = incidence.sample_starts
    needed = np.zeros(starts.size - 1, np.int32)
    has_rows = starts[1:] > starts[:-1]
    needed[has_rows] = incidence.sample_rows[starts[1:][has_rows] - 1] + 1
    return needed


def hot_samples_of_prefixes(incidence: Incidence, num_rows_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the fully hot samples under several prefixes of the rows by number, each hot as a whole. Exact.

    Args:
        incidence: of rows and samples.
        num_rows_of: (num_prefixes,), rows of each prefix, rising.
    """
    smallest = np.searchsorted(num_rows_of, _prefixes_of(incidence))
    # What a prefix serves, every longer one serves too.
    return np.cumsum(np.bincount(smallest, minlength=num_rows_of.size + 1)[:-1])


class _Queues(NamedTuple):
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


def _starts_of_queues(
    worth: NDArray[np.int32], width_of_row: NDArray[np.uint8], num_widths: int
) -> NDArray[np.int64]:
    """Return where each queue begins, (num_widths, most worth + 1), from the rows to be queued.

    A queue has room for the rows that ever reach its worth: those that have it or more at the start, and
    for worth 0, which no row falls to in a queue, those that have it at the start.
    """
    num_levels = int(worth.max(initial=0)) + 1
    queues = width_of_row * np.int64(num_levels) + worth
    counts = np.bincount(queues, minlength=num_widths * num_levels).reshape(num_widths, num_levels)
    room = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1].copy()
    room[:, 0] = counts[:, 0]
    return (np.cumsum(room) - room.ravel()).reshape(room.shape)


@inlined_kernel
def _next_width(worth, widths, queued, heads, tails, levels):  # type: ignore[no-untyped-def]
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
def _append_row(row: int, left: int, queues: _Queues) -> None:
    """Append ``row`` to the rows of its width that have ``left`` samples."""
    width = queues.width_of_row[row]
    queues.queued[queues.tails[width, left]] = row
    queues.tails[width, left] += 1
    queues.levels[width] = min(queues.levels[width], left)


@inlined_kernel
def _ask_for_entries(queued, head, tail, worth, row_starts, row_ends, row_samples):  # type: ignore[no-untyped-def]
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


def peel(
    incidence: Incidence,
    width_of_row: NDArray[np.uint8],
    widths: NDArray[np.int64],
    entries: NDArray[np.int32],
    first_row: int,
    stop_row: int,
    budgets: NDArray[np.int64],
    workspace: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the rows from ``first_row`` to ``stop_row``, the least worth keeping first.

    Rows before them are never dropped; those after them are dropped before the start.

    A row's worth is its number of samples none of whose rows was dropped, divided by its bytes. A row that
    lost its last sample is dropped immediately. Ties: the width that comes first in ``widths``; then the row
    that reached its number of samples first, by ``entries`` for numbers of the start. Exact.

    Args:
        incidence: of rows and samples.
        width_of_row: (num_rows,), positions in ``widths``.
        widths: (num_widths,), bytes of a row; products with numbers of samples fit int64.
        entries: (num_rows,), see `entry_order`.
        first_row: the first row that may be dropped.
        stop_row: the first row that is dropped before the start.
        budgets: (num_budgets,), bytes of these rows that may stay, rising, fewer than all of them have.
        workspace: (2 * num_rows + num_lookups,), overwritten.

    Returns:
        (stop_row - first_row,), the rows as they are dropped; and (num_budgets,), samples none of whose rows
        is dropped once what is left of these rows fits in the budget.
    """
    num_rows = incidence.row_ends.shape[0]
    # Samples with a row that is dropped before the start are lost from the start. They take a bit each,
    # since the access is random: those of a million samples fit in the L2 cache.
    is_lost = _prefixes_of(incidence) > stop_row
    num_hot = is_lost.size - int(np.count_nonzero(is_lost))
    lost = np.packbits(is_lost, bitorder="little")
    worth = workspace[:num_rows]
    _count_left(incidence, first_row, stop_row, lost, num_hot < is_lost.size, worth)
    own = slice(first_row, stop_row)
    heads = _starts_of_queues(worth[own], width_of_row[own], widths.size)
    levels = np.zeros(widths.size, np.int64)
    queues = _Queues(worth, width_of_row, widths, workspace[num_rows:], heads, heads.copy(), levels)
    dropped = np.empty(stop_row - first_row, np.int32)
    hot_samples = np.empty_like(budgets)
    bytes_left = _queue_rows(entries, queues)
    _drop_by_worth(incidence, lost, queues, num_hot, bytes_left, budgets, dropped, hot_samples)
    return dropped, hot_samples


@kernel
def _count_left(
    incidence: Incidence,
    first_row: int,
    stop_row: int,
    lost: NDArray[np.uint8],
    has_lost: bool,
    worth: NDArray[np.int32],
) -> None:
    """Write the worth of each row: the number of its samples that are left."""
    worth[:] = _NONE
    for row in range(first_row, stop_row):
        left = incidence.row_ends[row] - incidence.row_starts[row]
        if has_lost:
            for k in range(incidence.row_starts[row], incidence.row_ends[row]):
                left -= _is_lost(incidence.row_samples[k], lost)
        worth[row] = left


@kernel
def _queue_rows(entries: NDArray[np.int32], queues: _Queues) -> int:
    """Queue all rows that have a worth, in the order of ``entries``; return their bytes."""
    num_bytes = 0
    for i in range(entries.shape[0]):
        if i + _LOOKUPS_AHEAD < entries.shape[0]:
            prefetch(queues.worth, np.uint64(entries[i + _LOOKUPS_AHEAD]))
        row = entries[i]
        if queues.worth[row] >= 0:
            _append_row(row, queues.worth[row], queues)
            num_bytes += queues.widths[queues.width_of_row[row]]
    return num_bytes


@kernel
def _drop_by_worth(
    incidence: Incidence,
    lost: NDArray[np.uint8],
    queues: _Queues,
    num_hot: int,
    bytes_left: int,
    budgets: NDArray[np.int64],
    dropped: NDArray[np.int32],
    hot_samples: NDArray[np.int64],
) -> None:
    """Drop all rows that are queued, that of least worth first.

    Args:
        incidence: as for `peel`.
        lost: bits of samples, updated.
        queues: updated.
        num_hot: samples that are not lost.
        bytes_left: bytes of the rows queued.
        budgets: as for `peel`.
        dropped: (rows queued,) out.
        hot_samples: (num_budgets,) out, as `peel` returns it.
    """
    row_starts, row_ends, row_samples, sample_starts, sample_rows = incidence
    worth, width_of_row, widths, queued, heads, tails, levels = queues
    left_samples = np.empty(heads.shape[1], np.uint32)
    budget = budgets.shape[0] - 1
    number = 0
    while number < dropped.shape[0]:
        width = _next_width(worth, widths, queued, heads, tails, levels)
        head = heads[width, levels[width]]
        tail = tails[width, levels[width]]
        _ask_for_entries(queued, head, tail, worth, row_starts, row_ends, row_samples)
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
            lost[left_samples[n] >> 3] |= np.uint8(1 << (left_samples[n] & 7))
            number = _lose_rows(left_samples[n], sample_starts, sample_rows, queues, dropped, number)
        num_hot -= left
        for n in range(first_dropped, number):
            bytes_left -= widths[width_of_row[dropped[n]]]
        # What is left of the samples is hot under each budget that is met by now, the largest first.
        while budget >= 0 and bytes_left <= budgets[budget]:
            hot_samples[budget] = num_hot
            budget -= 1


@inlined_kernel
def _is_lost(sample: int, lost: NDArray[np.uint8]) -> bool:
    """Return whether the bit of a sample is set."""
    is_lost: bool = (lost[sample >> 3] & np.uint8(1 << (sample & 7))) != 0
    return is_lost


@inlined_kernel
def _lose_rows(
    sample: int,
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
    queues: _Queues,
    dropped: NDArray[np.int32],
    number: int,
) -> int:
    """Remove a lost sample from its rows; return the number of dropped rows.

    A row that loses its last sample is dropped. The rows of a sample ascend.
    """
    worth = queues.worth
    # They are scattered: prefetch all of them before the first is needed.
    for j in range(sample_starts[sample], sample_starts[sample + 1]):
        prefetch(worth, np.uint64(sample_rows[j]))
    for j in range(sample_starts[sample], sample_starts[sample + 1]):
        row = sample_rows[j]
        left = worth[row] - 1
        if left < 0:
            continue  # dropped, or never to be
        worth[row] = left if left > 0 else _NONE
        if left > 0:
            _append_row(row, left, queues)
        else:
            dropped[number] = row
            number += 1
    return number
