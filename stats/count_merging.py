"""Add up sorted counts of several sources.

Sources are days, or runs of a table larger than memory.

Sources, which may be mapped files, are merged a range of categories at a time. So memory holds only some
chunks, whatever the length of the sources, and each is read once, in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernel import kernel

Counts = tuple[NDArray[Any], NDArray[Any]]
"""Categories, ascending, uint32 or uint64; and as many counts, int64."""
CHUNK_ROWS = 1 << 16
"""Rows of all sources together that are merged at a time: 2 MiB of buffers."""


def merge_counts(sources: Sequence[Counts], categories: NDArray[Any], counts: NDArray[np.int64]) -> int:
    """Merge ``sources``, adding the counts of equal categories.

    Args:
        sources: any number of them, none is changed.
        categories: (num_distinct or more,) out, uint32 or uint64.
        counts: (num_distinct or more,) out.

    Returns:
        num_distinct, the distinct categories. Exact.
    """
    num_merged = 0
    for chunk, chunk_counts in merge_chunks(sources):
        stop = num_merged + chunk.shape[0]
        categories[num_merged:stop] = chunk
        counts[num_merged:stop] = chunk_counts
        num_merged = stop
    return num_merged


def count_distinct(sources: Sequence[Counts]) -> int:
    """Distinct categories of all sources together, by a pass over them."""
    return sum(chunk.shape[0] for chunk, _ in merge_chunks(sources))


def merge_chunks(sources: Sequence[Counts]) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Yield the merged categories and counts, ascending, in chunks that are valid until the next one."""
    heads = [0] * len(sources)
    share = max(1, CHUNK_ROWS // max(1, len(sources)))
    while True:
        windows = [cats[head : head + share] for (cats, _), head in zip(sources, heads, strict=True)]
        if not any(window.shape[0] for window in windows):
            return
        # A source's categories beyond its window are above the window's last one: up to the least of these
        # last ones, nothing is missing.
        lasts = [
            int(window[-1])
            for window, (cats, _), head in zip(windows, sources, heads, strict=True)
            if head + share < cats.shape[0]
        ]
        lengths = [_up_to(min(lasts), window) if lasts else window.shape[0] for window in windows]
        yield _merge_windows(sources, heads, lengths)
        heads = [head + length for head, length in zip(heads, lengths, strict=True)]


def _up_to(limit: int, window: NDArray[Any]) -> int:
    """Return how many of a window's categories are ``limit`` or below."""
    if limit >= np.iinfo(window.dtype).max:
        return int(window.shape[0])
    return int(np.searchsorted(window, window.dtype.type(limit), "right"))


def _merge_windows(
    sources: Sequence[Counts], heads: list[int], lengths: list[int]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    # Concatenate the windows, because the kernel merges runs of one array; sources may be mapped, strided or
    # of another width.
    stops = np.cumsum(np.array(lengths, np.int64))
    total = int(stops[-1])
    categories = np.empty(total, np.uint64)
    counts = np.empty(total, np.int64)
    for (cats, nums), head, length, stop in zip(sources, heads, lengths, stops.tolist(), strict=True):
        categories[stop - length : stop] = cats[head : head + length]
        counts[stop - length : stop] = nums[head : head + length]
    merged = np.empty(total, np.uint64)
    totals = np.empty(total, np.int64)
    num_merged = merge_runs(categories, counts, stops - np.array(lengths, np.int64), stops, merged, totals)
    return merged[:num_merged], totals[:num_merged]


@kernel
def _sift_down(heap: NDArray[np.int64], num_runs: int, keys: NDArray[np.uint64]) -> None:
    """Restore the order of a heap whose first run has another key now; ``keys`` by run."""
    place = 0
    run = heap[0]
    # The run sinks below every child with a smaller key; those move up.
    while 2 * place + 1 < num_runs:
        child = 2 * place + 1
        if child + 1 < num_runs and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if keys[run] <= keys[heap[child]]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = run


@kernel
def merge_runs(
    categories: NDArray[np.uint64],
    counts: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    merged: NDArray[np.uint64],
    totals: NDArray[np.int64],
) -> int:
    """Merge runs of ascending categories, adding the counts of equal ones, by a heap of the runs' heads.

    Args:
        categories: the runs, concatenated.
        counts: of each category in its run.
        starts: (num_runs,), where each run begins.
        stops: (num_runs,), where it ends.
        merged: (len(categories),) out, distinct categories, ascending.
        totals: (len(categories),) out.

    Returns:
        Distinct categories. Exact.
    """
    heads = starts.copy()
    heap = np.empty(starts.shape[0], np.int64)
    keys = np.zeros(starts.shape[0], np.uint64)
    # Build the heap of the runs that are not empty, by their first category.
    num_runs = 0
    num_merged = 0
    for run in range(starts.shape[0]):
        if starts[run] < stops[run]:
            keys[run] = categories[starts[run]]
            place = num_runs
            while place > 0 and keys[heap[(place - 1) >> 1]] > keys[run]:
                heap[place] = heap[(place - 1) >> 1]
                place = (place - 1) >> 1
            heap[place] = run
            num_runs += 1

    # Take the least head repeatedly; equal categories are consecutive.
    while num_runs > 0:
        run = heap[0]
        head = heads[run]
        if num_merged > 0 and merged[num_merged - 1] == categories[head]:
            totals[num_merged - 1] += counts[head]
        else:
            merged[num_merged] = categories[head]
            totals[num_merged] = counts[head]
            num_merged += 1
        # The run sinks in the heap with its next category, or is removed.
        heads[run] = head + 1
        if head + 1 < stops[run]:
            keys[run] = categories[head + 1]
        else:
            num_runs -= 1
            heap[0] = heap[num_runs]
        if num_runs > 0:
            _sift_down(heap, num_runs, keys)
    return num_merged
