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
    # Sources may be mapped, strided or of another width.
    windows = [
        (categories[head : head + length].astype(np.uint64), counts[head : head + length])
        for (categories, counts), head, length in zip(sources, heads, lengths, strict=True)
    ]
    categories = np.concatenate([window for window, _ in windows])
    # A stable sort of 64-bit integers merges runs that ascend.
    order = np.argsort(categories, kind="stable")
    categories = categories[order]
    is_new = np.concatenate([[True], categories[1:] != categories[:-1]])
    counts = np.concatenate([counts for _, counts in windows])[order]
    return categories[is_new], np.add.reduceat(counts, np.flatnonzero(is_new))
