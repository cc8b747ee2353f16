"""The rows of each sample and the samples of each row.

`peeling` reads both. Rows are numbered by their place in the order by frequency (by lookups per byte where
widths differ), without those that are certainly hot. The incidence takes 8 bytes per lookup. The lists are
filled in blocks whose memory is prefetched.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import inlined_kernel, kernel
from ..simd import prefetch

_BLOCK_LOOKUPS = 512
"""Lookups whose rows are prefetched together: their lines fit in the L2 cache."""
_LOOKUPS_AHEAD = 32
"""Prefetch distance, lookups."""


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


class Entries(NamedTuple):
    """The order in which rows enter the peeling, see `entry_order`."""

    rows: NDArray[np.int32]
    """(num_rows,), the lone ones first."""
    lone_samples: NDArray[np.uint32]
    """(num_lone,), the one sample of each lone row."""


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


@kernel
def entry_order(
    row_starts: NDArray[np.int64],
    row_ends: NDArray[np.int64],
    row_samples: NDArray[np.uint32],
    num_samples: int,
    order: NDArray[np.int32],
    lone_samples: NDArray[np.uint32],
) -> int:
    """Write the order in which rows enter the queue, which breaks its ties; return how many are lone.

    Rows of a single sample, the lone ones, are first, those whose sample has most of them before the others
    (one sample is lost, many rows are freed); then all other rows. Otherwise the least looked-up row is
    first.

    Args:
        row_starts: (num_rows + 1,); see `append_samples`.
        row_ends: (num_rows,).
        row_samples: (num_lookups,).
        num_samples: samples of the log.
        order: (num_rows,) out.
        lone_samples: (num_rows,) out, the one sample of each row that is lone; these are first in ``order``.
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
        if is_lone:
            lone_samples[starts[rest]] = row_samples[row_starts[row]]
        starts[rest] += 1
    # The lone rows end where the last but one of the groups does, and the last one held the others.
    num_lone: int = starts[most]
    return num_lone


@inlined_kernel
def _ask_for_sample(
    row: int, row_starts: NDArray[np.int64], row_samples: NDArray[np.uint32], lone: NDArray[np.int32]
) -> None:
    """Prefetch the entry in ``lone`` of a row's first sample, if the row exists."""
    if 0 <= row < row_starts.shape[0] and row_starts[row] < row_samples.shape[0]:
        prefetch(lone, np.uint64(row_samples[row_starts[row]]))


@kernel
def hot_samples_of_prefixes(
    sample_starts: NDArray[np.int64],
    sample_rows: NDArray[np.int32],
    num_rows_of: NDArray[np.int64],
    hot_samples: NDArray[np.int64],
) -> None:
    """Count the fully hot samples under several prefixes of the rows by number, each hot as a whole. Exact.

    Args:
        sample_starts: (num_samples + 1,); see `list_rows`.
        sample_rows: (num_lookups,).
        num_rows_of: (num_prefixes,), rows of each prefix, rising.
        hot_samples: (num_prefixes,) out.
    """
    hot_samples[:] = 0
    for sample in range(sample_starts.shape[0] - 1):
        # A sample is fully hot under a prefix that ends after its last row, which is the largest.
        needed = np.int64(0)
        stop = sample_starts[sample + 1]
        if stop > sample_starts[sample]:
            needed = np.int64(sample_rows[stop - 1]) + 1
        smallest = np.searchsorted(num_rows_of, needed)
        if smallest < hot_samples.shape[0]:
            hot_samples[smallest] += 1
    # What a prefix serves, every longer one serves too.
    for prefix in range(1, hot_samples.shape[0]):
        hot_samples[prefix] += hot_samples[prefix - 1]
