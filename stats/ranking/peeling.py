"""The order of rows that keeps most samples fully hot: peeling.

Start with all rows, and drop again and again the row with the fewest samples per byte that are still fully
hot; with it go those samples, and other rows lose them. The reverse of the dropping order nests the hot sets
of all budgets. Linear in lookups: a bucket queue of rows by samples, whose rows may fall below the level
it is at (clipping them there, as code for k-cores does, loses points).

Rows are numbered by their place in the order by frequency (by lookups per byte where widths differ), those
that are certainly hot left out. The incidence of rows and samples is stored both ways, and every step of
a row towards its end: 12 bytes a lookup.

Source: greedy peeling for densest sub-hypergraphs; Charikar, APPROX 2000, with the weights of a knapsack.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import prefetch
from ..kernel import inlined_kernel, kernel

BYTES_PER_LOOKUP = 12
BYTES_PER_ROW = 76
BYTES_PER_SAMPLE = 32
"""Memory of the incidence, the queue and the orders built from it, together."""
_NONE = -1
_BLOCK_LOOKUPS = 512
"""Lookups whose rows are asked for together: their lines fit in the second cache."""
_LOOKUPS_AHEAD = 32
"""Lookups between asking for what one needs and using it."""
_ENTRIES_AHEAD = 4
"""Entries of a queue between asking for one thing and for the next that follows from it."""


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
    # Count the rows of each sample, then sum up: the running sums are where the lists end. What lies between
    # two lists is undefined, and may be asked for, but is never used.
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


@kernel
def entry_order(
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    row_samples: NDArray[np.uint32],
    num_samples: int,
    order: NDArray[np.int32],
) -> None:
    """Write the order in which rows enter the queue, which breaks its ties.

    Rows of a single sample come first, those whose sample has most of them before the others (one sample is
    lost, many rows are freed); then all other rows. Else the least looked-up row comes first.

    Args:
        row_starts: (num_rows + 1,); see `append_samples`.
        row_ends: (num_rows,).
        row_samples: (num_lookups,).
        num_samples: samples of the log.
        order: (num_rows,) out.
    """
    num_rows = row_ends.shape[0]
    # How many rows of each sample have no other sample.
    lone = np.zeros(num_samples, np.int32)
    for row in range(num_rows):
        _ask_for_sample(row + _LOOKUPS_AHEAD, row_starts, row_samples, lone)
        if row_ends[row] - row_starts[row] == 1:
            lone[row_samples[row_starts[row]]] += 1
    most = 0
    for sample in range(num_samples):
        most = max(most, lone[sample])
    # A counting sort by it, falling: the rows with most, most - 1, ... 1 in their sample, then all others.
    starts = np.zeros(most + 2, np.int64)
    for row in range(num_rows):
        _ask_for_sample(row + _LOOKUPS_AHEAD, row_starts, row_samples, lone)
        is_lone = row_ends[row] - row_starts[row] == 1
        starts[most + 1 - lone[row_samples[row_starts[row]]] if is_lone else most + 1] += 1
    total = 0
    for rest in range(most + 2):
        length = starts[rest]
        starts[rest] = total
        total += length
    for row in range(num_rows - 1, -1, -1):
        _ask_for_sample(row - _LOOKUPS_AHEAD, row_starts, row_samples, lone)
        is_lone = row_ends[row] - row_starts[row] == 1
        rest = most + 1 - lone[row_samples[row_starts[row]]] if is_lone else most + 1
        order[starts[rest]] = row
        starts[rest] += 1


@inlined_kernel
def _ask_for_sample(
    row: int, row_starts: NDArray[np.int64], row_samples: NDArray[np.uint32], lone: NDArray[np.int32]
) -> None:
    """Ask for the entry in ``lone`` of the first sample of a row, if there is such a row."""
    if 0 <= row < row_starts.shape[0] and row_starts[row] < row_samples.shape[0]:
        prefetch(lone, np.uint64(row_samples[row_starts[row]]))


@kernel
def peel(
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    row_samples: NDArray[np.uint32],
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
    width_of_row: NDArray[np.uint8],
    widths: NDArray[np.int64],
    entries: NDArray[np.int32],
    first_row: int,
    stop_row: int,
    dropped: NDArray[np.int32],
) -> None:
    """Write the rows from ``first_row`` to ``stop_row`` to ``dropped``, the least worth keeping first.

    Rows before them are kept for good, those behind are gone before it begins.

    A row's worth is its number of samples none of whose rows was dropped, divided by its bytes. A row that
    lost its last sample is dropped at once. Ties: the width that comes first in ``widths``; then the row that
    came to its number of samples first, as they entered by ``entries`` where that was the start. Exact.

    Args:
        row_starts: (num_rows + 1,); see `append_samples`.
        row_ends: (num_rows,).
        row_samples: (num_lookups,).
        sample_starts: (num_samples + 1,); see `list_rows`.
        sample_rows: (num_lookups,).
        width_of_row: (num_rows,), positions in ``widths``.
        widths: (num_widths,), bytes of a row; products with numbers of samples fit int64.
        entries: (num_rows,), each row once.
        first_row: the first row that may be dropped.
        stop_row: the first row that is gone.
        dropped: (stop_row - first_row,) out.
    """
    num_rows = row_ends.shape[0]
    most = 0

    # Samples with a row that is gone before it begins are lost from the start.
    is_lost = np.zeros(sample_starts.shape[0] - 1, np.uint8)
    for sample in range(is_lost.shape[0]):
        stop = sample_starts[sample + 1]
        is_lost[sample] = stop > sample_starts[sample] and sample_rows[stop - 1] >= stop_row

    # The worth of a row is the number of its samples that are left.
    worth = np.full(num_rows, _NONE, np.int32)
    for row in range(first_row, stop_row):
        left = row_ends[row] - row_starts[row]
        if stop_row < num_rows:
            for k in range(row_starts[row], row_ends[row]):
                left -= is_lost[row_samples[k]]
        worth[row] = left
        most = max(most, left)

    # A queue of rows for each width and worth. A row joins one when it comes to that worth, and its entry
    # stays, stale, when it leaves: no neighbor has to be found, and rows still come out in their order.
    heads = np.zeros((widths.shape[0], most + 1), np.int64)
    tails = np.zeros((widths.shape[0], most + 1), np.int64)
    queued = _empty_queues(worth, width_of_row, first_row, stop_row, heads, tails)
    for i in range(num_rows):
        row = entries[i]
        if first_row <= row < stop_row:
            _append(row, worth[row], width_of_row[row], queued, tails)

    # Drop the row of least worth; ``levels`` are at most the least worth of each width.
    levels = np.zeros(widths.shape[0], np.int64)
    number = 0
    while number < dropped.shape[0]:
        width = _next_width(worth, queued, heads, tails, levels, widths)
        head = heads[width, levels[width]]
        _ask_ahead(
            queued,
            head,
            tails[width, levels[width]],
            worth,
            row_starts,
            row_ends,
            row_samples,
            sample_starts,
            sample_rows,
            is_lost,
        )
        row = queued[head]
        heads[width, levels[width]] = head + 1
        worth[row] = _NONE
        dropped[number] = row
        number += 1
        # Its samples are lost, and every other row of theirs falls by one for each.
        for k in range(row_starts[row], row_ends[row]):
            sample = row_samples[k]
            if is_lost[sample]:
                continue
            is_lost[sample] = 1
            # Its rows are anywhere: ask for all of them before the first is needed.
            for j in range(sample_starts[sample], sample_starts[sample + 1]):
                prefetch(worth, np.uint64(sample_rows[j]))
            for j in range(sample_starts[sample], sample_starts[sample + 1]):
                other = sample_rows[j]
                left = worth[other] - 1
                if left < 0:
                    continue  # dropped, or never to be
                if left > 0:
                    worth[other] = left
                    width = width_of_row[other]
                    _append(other, left, width, queued, tails)
                    levels[width] = min(levels[width], left)
                else:
                    worth[other] = _NONE
                    dropped[number] = other
                    number += 1


@kernel
def _empty_queues(
    worth: NDArray[np.int32],
    width_of_row: NDArray[np.uint8],
    first_row: int,
    stop_row: int,
    heads: NDArray[np.int64],
    tails: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Return memory for all queues, (num_entries,); write where each begins to ``heads`` and ``tails``.

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
    return np.empty(total, np.int32)


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
            while head < tails[width, level] and worth[queued[head]] != level:
                head += 1
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
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
    is_lost: NDArray[np.uint8],
) -> None:
    """Ask for what the next entries of a queue will need, each thing when what leads to it has come."""
    if head + 4 * _ENTRIES_AHEAD >= tail:
        return
    row = np.uint64(queued[head + 4 * _ENTRIES_AHEAD])
    prefetch(worth, row)
    prefetch(row_starts, row)
    prefetch(row_ends, row)
    prefetch(row_samples, np.uint64(row_starts[queued[head + 3 * _ENTRIES_AHEAD]]))
    # A row of worth 0 may have no samples, and none that could be read behind those of the last row.
    start = row_starts[queued[head + 2 * _ENTRIES_AHEAD]]
    if start < row_samples.shape[0]:
        prefetch(sample_starts, np.uint64(row_samples[start]))
        prefetch(is_lost, np.uint64(row_samples[start]))
    start = row_starts[queued[head + _ENTRIES_AHEAD]]
    if start < row_samples.shape[0]:
        prefetch(sample_rows, np.uint64(sample_starts[row_samples[start]]))


@kernel
def hot_samples_of_prefixes(
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
    places: NDArray[np.int32],
    num_rows_of: NDArray[np.int64],
    hot_samples: NDArray[np.int64],
) -> None:
    """Count the fully hot samples under several prefixes of an order of rows, each hot as a whole. Exact.

    Args:
        sample_starts: (num_samples + 1,); see `list_rows`.
        sample_rows: (num_lookups,).
        places: (num_rows,), of each row in the order; none where the order is that of their numbers.
        num_rows_of: (num_prefixes,), rows of each prefix, rising.
        hot_samples: (num_prefixes,) out.
    """
    # A sample is fully hot from the first prefix on that has the last of its rows.
    hot_samples[:] = 0
    is_by_number = places.shape[0] == 0
    for sample in range(sample_starts.shape[0] - 1):
        # A sample is fully hot under a prefix that reaches behind its last row.
        needed = np.int64(0)
        stop = sample_starts[sample + 1]
        # Where rows are listed by number, the last one is the largest.
        if is_by_number and stop > sample_starts[sample]:
            needed = np.int64(sample_rows[stop - 1]) + 1
        elif not is_by_number:
            for j in range(sample_starts[sample], stop):
                if j + _LOOKUPS_AHEAD < sample_rows.shape[0]:
                    prefetch(places, np.uint64(sample_rows[j + _LOOKUPS_AHEAD]))
                needed = max(needed, np.int64(places[sample_rows[j]]) + 1)
        smallest = np.searchsorted(num_rows_of, needed)
        if smallest < hot_samples.shape[0]:
            hot_samples[smallest] += 1
    # What a prefix serves, every longer one serves too.
    for prefix in range(1, hot_samples.shape[0]):
        hot_samples[prefix] += hot_samples[prefix - 1]
