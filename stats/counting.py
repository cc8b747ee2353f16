"""Count categories exactly, in memory proportional to the distinct ones.

Where even those are too many, a counter is emptied into a run, ascending, as often as needed. Sorted counts
of several sources, runs or days, are merged a range of categories at a time: sources may be mapped files, and
memory holds only some chunks, whatever their length; each is read once, in order.

Lookups are counted into hash tables of two kinds. An entry of two words has the category and its count so
far. For 32-bit categories an entry of one word, with the category in the upper half and the count in the
lower, 0 where free, takes half the memory and half the cache misses. A count that no longer fits stops the
kernel, and the caller widens the table. Capacities are powers of two.

Lookups are copied without the missing ones first, so the loop that counts has no branch for these. In
Criteo's log from 0 to 76% of a column are missing, in no predictable order: for a table that fits in a cache,
this reduces the time to two thirds.

The number of distinct categories of a long log is estimated from three prefixes of a short sample. It grows
like a power of the log's length, and the power itself falls as the log gets longer. The estimate is within a
factor of two for logs a hundred times the sample's length with the skew of click logs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .id_tables import (
    HALF,
    LOW_HALF,
    ask_for,
    entry_at,
    is_valid_at,
    most_used,
    probe,
    put,
    shift_of,
)
from .kernel import kernel, read_only
from .simd import AHEAD

_ONE = np.uint64(1)
_LARGE = 1 << 15
"""Words beyond which a table is not expected in the cache."""


@kernel
def add_counts(
    categories: NDArray[np.uint64],
    start: int,
    table: NDArray[np.uint64],
    shift: np.uint64,
    num_used: int,
    max_used: int,
) -> tuple[int, int]:
    """Count ``categories[start:]`` into ``table``, in place, until ``max_used`` entries or a count are full.

    Args:
        categories: (num_lookups,), uint32 or, where the entries have two words, uint64; none is missing.
        start: the first lookup to count.
        table: (capacity,) of short entries or (capacity, 2).
        shift: `shift_of` the table; computed here, it makes counting in a small table 7 % slower.
        num_used: entries taken.
        max_used: below the capacity, or probing would never end.

    Returns:
        The lookup it stopped at (num_lookups when all are counted), and the entries taken. Exact.
    """
    # Known before the loop: the compiler makes one without what is not needed.
    num_lookups = np.uint64(categories.shape[0])
    is_large = table.size > _LARGE and num_lookups > AHEAD
    is_near_full = num_used + categories.shape[0] - start > max_used
    last_ahead = num_lookups - AHEAD
    for i in range(np.uint64(start), num_lookups):
        # Prefetch the line of a later lookup; small tables are in the cache anyway.
        if is_large and i < last_ahead:
            ask_for(np.uint64(categories[i + AHEAD]), table, shift)
        category = np.uint64(categories[i])
        entry, count = probe(category, table, shift)
        # A full table is handed back with the place in the chunk, where the caller goes on after growing it,
        # and so is a full count: one more would carry into the category.
        if (table.ndim == 1 and count == LOW_HALF) or (is_near_full and count == 0 and num_used == max_used):
            return int(np.int64(i)), num_used
        if table.ndim == 1:
            # No branch on whether the category is new: of a known one the upper half stays as it is.
            table[entry] = (table[entry] | (category << HALF)) + _ONE
        else:
            if count == 0:
                table[entry, 0] = category
            table[entry, 1] = count + _ONE
        num_used += int(count == 0)
    return categories.shape[0], num_used


@kernel
def copy_entries(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    """Insert every taken entry of ``source`` into the larger, empty ``target``."""
    shift = shift_of(target)
    num_entries = np.uint64(source.shape[0])
    for i in range(num_entries):
        if i + AHEAD < num_entries:
            later, _ = entry_at(i + AHEAD, source)
            ask_for(later, target, shift)
        category, count = entry_at(i, source)
        if count != 0:
            entry, _ = probe(category, target, shift)
            put(entry, category, count, target)


@kernel
def compact_entries(table: NDArray[np.uint64]) -> int:
    """Move the taken entries of ``table`` to its front, in place, and return how many there are."""
    num_taken = 0
    for i in range(np.uint64(table.shape[0])):
        category, count = entry_at(i, table)
        if count != 0:
            put(np.uint64(num_taken), category, count, table)
            num_taken += 1
    return num_taken


def widened(table: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the same entries as a table of `counting`, (capacity, 2): every one where it was."""
    return np.stack([table >> HALF, table & LOW_HALF], axis=1)


@kernel
def take_valid(categories: NDArray[Any], is_valid: NDArray[np.uint8], taken: NDArray[Any]) -> int:
    """Copy the categories that are not missing to the front of ``taken``, and return how many there are.

    Args:
        categories: (num_lookups,), uint32 or uint64.
        is_valid: Arrow validity bitmap of ``categories``.
        taken: (num_lookups,) out, of the type of ``categories``.
    """
    # Each is written to the next free place, which only one that is there keeps: no branch to mispredict.
    num_taken = np.uint64(0)
    for i in range(np.uint64(categories.shape[0])):
        taken[num_taken] = categories[i]
        num_taken += is_valid_at(is_valid, i)
    return int(np.int64(num_taken))


SMALLEST_ENTRIES = 1 << 12
_LARGE_ENTRIES = 1 << 18
_CHUNK = 1 << 15
"""Lookups counted together, whose copies without the missing ones stay in a cache; a multiple of 8."""
BYTES_PER_TABLE_BYTE = 2.25
"""Memory at most of a table and its run, or of a table and its next size, in bytes of the table."""


class CategoryCounter:
    """Counts the lookups of one table's categories, chunk by chunk; exact.

    In short entries, until a category or a count needs more than 32 bits.
    """

    def __init__(self) -> None:
        self.num_missing = 0
        """Lookups without a category so far."""
        self._start_empty()

    def _start_empty(self) -> None:
        self._table = np.zeros(SMALLEST_ENTRIES, np.uint64)
        self._num_used = 0

    @property
    def _is_short(self) -> bool:
        return self._table.ndim == 1

    @property
    def num_bytes(self) -> int:
        """Bytes of the table."""
        return self._table.nbytes

    def add(
        self,
        categories: NDArray[np.uint32],
        is_valid: NDArray[np.uint8],
        make_room: Callable[[], None] | None = None,
    ) -> None:
        """Count a chunk.

        Args:
            categories: (num_lookups,), uint32 or uint64.
            is_valid: Arrow validity bitmap, or length 0 where none is missing.
            make_room: called when the table is full, to `grow` it or to `take` what it holds; None grows.
        """
        for first in range(0, categories.shape[0], _CHUNK):
            chunk = read_only(categories[first : first + _CHUNK])
            if is_valid.shape[0]:
                taken = np.empty(chunk.shape[0], chunk.dtype)
                num_taken = take_valid(chunk, read_only(is_valid[first // 8 :]), taken)
                self.num_missing += chunk.shape[0] - num_taken
                chunk = read_only(taken[:num_taken])
            self._add(chunk, make_room or self.grow)

    def _add(self, categories: NDArray[Any], make_room: Callable[[], None]) -> None:
        """Count a chunk without missing lookups."""
        done = 0
        while done < categories.shape[0]:
            # Wide categories fit in no short entry.
            if self._is_short and categories.dtype != np.uint32:
                self._table = widened(self._table)
            # Count until the chunk ends, the table is full or a count needs more bits.
            max_used = most_used(self._table.shape[0])
            shift = shift_of(self._table)
            done, self._num_used = add_counts(categories, done, self._table, shift, self._num_used, max_used)
            if done < categories.shape[0] and self._num_used < max_used:  # a count is full
                self._table = widened(self._table)
            elif done < categories.shape[0]:
                make_room()

    def grow(self) -> None:
        """Move to a table four times as large, or twice where it is large already."""
        factor = 4 if self._table.shape[0] < _LARGE_ENTRIES else 2
        grown = np.zeros((factor * self._table.shape[0], *self._table.shape[1:]), np.uint64)
        copy_entries(self._table, grown)
        self._table = grown

    def take(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the distinct categories, ascending, and how often each was looked up, and empty the table.

        Missing lookups are left out, and ``num_missing`` keeps its value.
        """
        taken = self._table[: compact_entries(self._table)]
        if self._is_short:
            # The category is the upper half of a word, so words sort by category.
            words = taken
            words.sort()
            categories = words >> HALF
            words &= LOW_HALF
            counts = words.view(np.int64)  # in place: the words are half of the table
        else:
            order = np.argsort(taken[:, 0])
            categories = taken[order, 0]
            counts = taken[order, 1].view(np.int64)
        self._start_empty()
        return categories, counts


_LEAST_RATIO = 0.85
"""The power is not taken to fall faster than this with each doubling: prefixes are noisy."""


def distinct_at(num_lookups: float, distinct: Sequence[int], num_sampled: int) -> float:
    """Return the distinct categories expected among ``num_lookups``.

    Args:
        num_lookups: lookups of the log.
        distinct: (3,), among the first quarter, the first half, and all of the sample.
        num_sampled: lookups of the sample.

    Source:
        Heaps' law, D(n) = K n**b, with b falling geometrically in log n.
    """
    # Growth is measured twice, over the two last doublings of the sample.
    quarter, half, whole = (max(1, count) for count in distinct)
    if num_lookups <= num_sampled or num_sampled == 0:
        return min(whole, whole * num_lookups / max(1, num_sampled) + 1)
    early, late = math.log2(half / quarter), math.log2(whole / half)
    ratio = min(1.0, max(_LEAST_RATIO, late / early if early > 0 else 1.0))
    doublings = math.log2(num_lookups / num_sampled)
    # Each further doubling grows by the same factor less: Heaps' law, with an exponent that falls.
    power = late * ratio
    log2_growth = 0.0
    while doublings > 0:
        log2_growth += power * min(1.0, doublings)
        power *= ratio
        doublings -= 1
    return float(min(num_lookups, whole * 2**log2_growth))


Counts = tuple[NDArray[Any], NDArray[Any]]
"""Categories, ascending, uint32 or uint64; and as many counts, int64."""
CHUNK_ROWS = 1 << 16
"""Rows of all sources together that are merged at a time: 2 MiB of buffers."""
_LEAST_ROWS = 512
"""Rows of each source that are merged at a time at least."""


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


def merge_chunks(sources: Sequence[Counts]) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64]]]:
    """Yield the merged categories and counts, ascending, in chunks that are valid until the next one."""
    # Of many sources each has enough rows in a chunk that finding its window is cheap next to merging it.
    share = max(min(CHUNK_ROWS, _LEAST_ROWS), CHUNK_ROWS // max(1, len(sources)))
    for windows in ascending_windows([categories for categories, _ in sources], share):
        yield _merge_windows(sources, windows)


def ascending_windows(sources: Sequence[NDArray[Any]], num_rows: int) -> Iterator[list[slice]]:
    """Yield windows of ascending sources, of at most ``num_rows`` each, that are complete up to a limit.

    What follows a list of windows is above all that is in them.
    """
    heads = [0] * len(sources)
    while True:
        windows = [source[head : head + num_rows] for source, head in zip(sources, heads, strict=True)]
        if not any(window.shape[0] for window in windows):
            return
        # What a source has beyond its window is above the window's last number: up to the least of these last
        # ones, nothing is missing.
        lasts = [
            int(window[-1])
            for window, source, head in zip(windows, sources, heads, strict=True)
            if head + num_rows < source.shape[0]
        ]
        lengths = [_up_to(min(lasts), window) if lasts else window.shape[0] for window in windows]
        yield [slice(head, head + length) for head, length in zip(heads, lengths, strict=True)]
        heads = [head + length for head, length in zip(heads, lengths, strict=True)]


def _up_to(limit: int, window: NDArray[Any]) -> int:
    """Return how many numbers of a window are ``limit`` or below."""
    if limit >= np.iinfo(window.dtype).max:
        return int(window.shape[0])
    return int(np.searchsorted(window, window.dtype.type(limit), "right"))


def _merge_windows(
    sources: Sequence[Counts], parts: Sequence[slice]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    # Sources may be mapped, strided or of another width.
    windows = [
        (categories[part].astype(np.uint64), counts[part])
        for (categories, counts), part in zip(sources, parts, strict=True)
    ]
    categories = np.concatenate([window for window, _ in windows])
    # A stable sort of 64-bit integers merges runs that ascend.
    order = np.argsort(categories, kind="stable")
    categories = categories[order]
    is_new = np.concatenate([[True], categories[1:] != categories[:-1]])
    counts = np.concatenate([counts for _, counts in windows])[order]
    return categories[is_new], np.add.reduceat(counts, np.flatnonzero(is_new))


def category_bounds(sources: Sequence[NDArray[Any]], most_rows: int) -> list[int]:
    """Return categories that cut ascending sources into ranges of few rows.

    Args:
        sources: categories of each, ascending and distinct, uint32 or uint64.
        most_rows: rows of all sources together that a range ``[bounds[i], bounds[i + 1])`` may have, also the
            first and the last one; a range of less than three rows of each source is not made smaller.

    Returns:
        Bounds, ascending; none where one range is enough.
    """
    # Every step-th category of each source. Between two of them a source has fewer than ``step`` others, so
    # a range of as many as there are sources, and of as many equal ones, has at most three steps of each.
    step = max(1, most_rows // (3 * max(1, len(sources))))
    taken = [source[step - 1 :: step].astype(np.uint64) for source in sources]
    ordered = np.sort(np.concatenate([np.zeros(0, np.uint64), *taken]))
    return [int(bound) for bound in np.unique(ordered[len(sources) :: max(1, len(sources))])]


def rows_within(source: Counts, low: int, high: int | None) -> Counts:
    """Return the categories ``[low, high)`` of a source and their counts; None is the end."""
    categories, counts = source
    first = _up_to(low - 1, categories) if low else 0
    stop = categories.shape[0] if high is None else _up_to(high - 1, categories)
    return categories[first:stop], counts[first:stop]
