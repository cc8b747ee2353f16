"""The order of rows that keeps most samples fully hot: peeling.

Start with all rows, and drop again and again the row with the fewest samples per byte that are still fully
hot; with it go those samples, and other rows lose them. The reverse of the dropping order nests the hot sets
of all budgets. Linear in lookups: a bucket queue of rows by samples, whose rows may fall below the level
it is at (clipping them there, as code for k-cores does, loses points).

Rows are numbered by their place in the order by frequency (by lookups per byte where widths differ), those
that are certainly hot left out. The incidence of rows and samples is stored both ways: 8 bytes a lookup.

Source: greedy peeling for densest sub-hypergraphs; Charikar, APPROX 2000, with the weights of a knapsack.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import prefetch
from ..kernel import inlined_kernel, kernel

BYTES_PER_LOOKUP = 8
BYTES_PER_ROW = 88
BYTES_PER_SAMPLE = 16
"""Memory of the incidence, the queue and the orders built from it, together."""
_NONE = -1
_AFTER, _BEFORE, _WORTH, _WIDTH = range(4)
"""Columns of a row's entry in the queue: its neighbors, its samples that are still fully hot, its width."""
_FIRST, _LAST = range(2)
"""The ends of a bucket."""


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
    for i in range(offsets.shape[0] - 1):
        sample = np.uint32(first_sample + i)
        for j in range(offsets[i], offsets[i + 1]):
            if ids[j] < first_id:
                # Rows before the first one are never peeled and need no list.
                continue
            row = rows[ids[j] - first_id]
            end = row_ends[row]
            if end > row_starts[row] and row_samples[end - 1] == sample:
                continue  # looked up twice by one sample
            # The room was counted before; more lookups than that mean another log.
            if end >= row_starts[row + 1]:
                return False
            row_samples[end] = sample
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
    # Count the rows of each sample, then add up: each count becomes the end of the sample's list.
    # Count the rows of each sample, then sum up: the running sums are where the lists end.
    for row in range(row_ends.shape[0]):
        for k in range(row_starts[row], row_ends[row]):
            sample_starts[row_samples[k]] += 1
    total = 0
    for sample in range(sample_starts.shape[0]):
        total += sample_starts[sample]
        sample_starts[sample] = total
    for row in range(row_ends.shape[0] - 1, -1, -1):  # from the back, so that ends become starts
        for k in range(row_starts[row], row_ends[row]):
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
        if row_ends[row] - row_starts[row] == 1:
            lone[row_samples[row_starts[row]]] += 1
    most = 0
    for sample in range(num_samples):
        most = max(most, lone[sample])
    # A counting sort by it, falling: the rows with most, most - 1, ... 1 in their sample, then all others.
    starts = np.zeros(most + 2, np.int64)
    for row in range(num_rows):
        is_lone = row_ends[row] - row_starts[row] == 1
        starts[most + 1 - lone[row_samples[row_starts[row]]] if is_lone else most + 1] += 1
    total = 0
    for rest in range(most + 2):
        length = starts[rest]
        starts[rest] = total
        total += length
    for row in range(num_rows - 1, -1, -1):
        is_lone = row_ends[row] - row_starts[row] == 1
        rest = most + 1 - lone[row_samples[row_starts[row]]] if is_lone else most + 1
        order[starts[rest]] = row
        starts[rest] += 1


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
    num_widths = widths.shape[0]
    most = 0

    # Samples with a row that is gone before it begins are lost from the start.
    is_lost = np.zeros(sample_starts.shape[0] - 1, np.uint8)
    for sample in range(is_lost.shape[0]):
        stop = sample_starts[sample + 1]
        is_lost[sample] = stop > sample_starts[sample] and sample_rows[stop - 1] >= stop_row

    # The worth of a row is the number of its samples that are left; its four numbers share a cache line.
    queue = np.empty((num_rows, 4), np.int32)
    for row in range(num_rows):
        queue[row, _WIDTH] = width_of_row[row]
        queue[row, _WORTH] = _NONE
        if first_row <= row < stop_row:
            left = row_ends[row] - row_starts[row]
            if stop_row < num_rows:
                for k in range(row_starts[row], row_ends[row]):
                    left -= is_lost[row_samples[k]]
            queue[row, _WORTH] = left
            most = max(most, left)

    # A bucket, a list from first to last, for each width and worth.
    ends = np.full((num_widths, most + 1, 2), _NONE, np.int32)
    for i in range(num_rows):
        if first_row <= entries[i] < stop_row:
            _append(entries[i], queue, ends)

    # Drop the row of least worth; ``levels`` are at most the least worth of each width.
    levels = np.zeros(num_widths, np.int64)
    number = 0
    while number < dropped.shape[0]:
        width = _next_width(ends, levels, widths)
        row = ends[width, levels[width], _FIRST]
        _remove(row, queue, ends)
        queue[row, _WORTH] = _NONE
        dropped[number] = row
        number += 1
        # The row behind it is most often the next.
        prefetch(row_starts, np.uint64(max(queue[row, _AFTER], 0)))
        prefetch(row_ends, np.uint64(max(queue[row, _AFTER], 0)))
        # Its samples are lost, and every other row of theirs falls by one bucket for each.
        for k in range(row_starts[row], row_ends[row]):
            sample = row_samples[k]
            if is_lost[sample]:
                continue
            is_lost[sample] = 1
            # Its rows are all over the queue: ask for all of them before the first is needed.
            for j in range(sample_starts[sample], sample_starts[sample + 1]):
                prefetch(queue, np.uint64(4 * sample_rows[j]))
            for j in range(sample_starts[sample], sample_starts[sample + 1]):
                other = sample_rows[j]
                left = queue[other, _WORTH] - 1
                if left < 0:
                    continue  # dropped, or never to be
                _remove(other, queue, ends)
                if left > 0:
                    queue[other, _WORTH] = left
                    _append(other, queue, ends)
                    width = queue[other, _WIDTH]
                    levels[width] = min(levels[width], left)
                else:
                    queue[other, _WORTH] = _NONE
                    dropped[number] = other
                    number += 1


@inlined_kernel
def _next_width(ends: NDArray[np.int32], levels: NDArray[np.int64], widths: NDArray[np.int64]) -> int:
    """Raise each level to the fewest samples a row of that width has; returns the width of least worth."""
    best = -1
    for width in range(widths.shape[0]):
        while levels[width] < ends.shape[1] and ends[width, levels[width], _FIRST] == _NONE:
            levels[width] += 1
        if levels[width] == ends.shape[1]:
            levels[width] -= 1  # no row of this width is left
            continue
        # Samples per byte, compared by cross products, exactly.
        if best < 0 or levels[width] * widths[best] < levels[best] * widths[width]:
            best = width
    return best


@inlined_kernel
def _append(row: int, queue: NDArray[np.int32], ends: NDArray[np.int32]) -> None:
    """Put ``row`` behind the others of its width and worth."""
    width = queue[row, _WIDTH]
    worth = queue[row, _WORTH]
    before = ends[width, worth, _LAST]
    queue[row, _AFTER] = _NONE
    queue[row, _BEFORE] = before
    if before == _NONE:
        ends[width, worth, _FIRST] = row
    else:
        queue[before, _AFTER] = row
    ends[width, worth, _LAST] = row


@inlined_kernel
def _remove(row: int, queue: NDArray[np.int32], ends: NDArray[np.int32]) -> None:
    """Take ``row`` out of the rows of its width and worth."""
    # A list that is linked both ways: both neighbours, or the ends of the list, close the gap.
    width = queue[row, _WIDTH]
    worth = queue[row, _WORTH]
    before = queue[row, _BEFORE]
    after = queue[row, _AFTER]
    if before == _NONE:
        ends[width, worth, _FIRST] = after
    else:
        queue[before, _AFTER] = after
    if after == _NONE:
        ends[width, worth, _LAST] = before
    else:
        queue[after, _BEFORE] = before


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
                needed = max(needed, np.int64(places[sample_rows[j]]) + 1)
        smallest = np.searchsorted(num_rows_of, needed)
        if smallest < hot_samples.shape[0]:
            hot_samples[smallest] += 1
    # What a prefix serves, every longer one serves too.
    for prefix in range(1, hot_samples.shape[0]):
        hot_samples[prefix] += hot_samples[prefix - 1]
