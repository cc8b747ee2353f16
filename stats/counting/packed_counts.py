"""Counting 32-bit categories in one word each: half the memory of two-word entries, and of their misses.

A table is ``(capacity,)`` uint64, the capacity a power of two: the category in the upper half of a word, its
count so far in the lower, 0 where free. A count that no longer fits stops the kernel; the caller widens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import AHEAD, prefetch
from ..kernel import kernel
from .hash_probing import HALF, LOW_HALF, MULTIPLIER, probe_short, shift_of
from .valid_blocks import BLOCK, keep_last, take_valid

_ONE = np.uint64(1)
_LARGE = 1 << 14
"""Entries beyond which a table is not expected in the cache."""


def add_short_counts(
    categories: NDArray[np.uint32],
    is_valid: NDArray[np.uint8],
    start: int,
    table: NDArray[np.uint64],
    num_used: int,
    max_used: int,
) -> tuple[int, int, int]:
    """Count ``categories[start:]`` into ``table``, in place, until ``max_used`` entries or a count are full.

    Args:
        categories: (num_lookups,), uint32.
        is_valid: Arrow validity bitmap of ``categories``, or length 0 where none is missing.
        start: the first lookup to count.
        table: (capacity,).
        num_used: entries taken.
        max_used: below the capacity, or probing would never end.

    Returns:
        The lookup it stopped at (num_lookups when all are counted), entries taken, missing lookups seen.
        Exact.
    """
    # The shift is an argument: computed in the kernel, it makes counting in a small table 7 % slower.
    shift = shift_of(table)
    counted: tuple[int, int, int] = _add(categories, is_valid, start, table, shift, num_used, max_used)
    return counted


@kernel
def _add(
    categories: NDArray[np.uint32],
    is_valid: NDArray[np.uint8],
    start: int,
    table: NDArray[np.uint64],
    shift: np.uint64,
    num_used: int,
    max_used: int,
) -> tuple[int, int, int]:
    first = np.uint64(start)
    num_lookups = np.uint64(categories.shape[0])
    if is_valid.shape[0] == 0:
        # As far as the table cannot get full, or a block.
        while first < num_lookups:
            stop = min(first + max(np.uint64(max_used - num_used), BLOCK), num_lookups)
            stopped, num_used = _count_run(
                categories, first, stop, num_lookups, table, shift, num_used, max_used
            )
            if stopped != stop:
                return int(np.int64(stopped)), num_used, 0
            first = stop
        return categories.shape[0], num_used, 0

    # The last lookups taken wait for the next block, so that lines are asked for across its border.
    taken = np.empty(np.int64(BLOCK + AHEAD), categories.dtype)
    places = np.empty(np.int64(BLOCK + AHEAD), np.uint64)
    num_taken = np.uint64(0)
    num_before = first  # missing lookups are those that were passed and not counted
    while first < num_lookups:
        next_first = min(first + BLOCK, num_lookups)
        num_taken = take_valid(categories, is_valid, first, next_first, taken, places, num_taken)
        num_kept = min(num_taken, AHEAD) if next_first < num_lookups else np.uint64(0)
        num_here = num_taken - num_kept
        stopped, num_used = _count_run(
            taken, np.uint64(0), num_here, num_taken, table, shift, num_used, max_used
        )
        if stopped != num_here:
            place = places[stopped]
            return int(np.int64(place)), num_used, int(np.int64(place - num_before - stopped))
        keep_last(taken, places, num_here, num_kept)
        num_before += num_here
        num_taken = num_kept
        first = next_first
    return categories.shape[0], num_used, int(np.int64(num_lookups - num_before))


@kernel
def _count_run(
    values: NDArray[np.uint32],
    first: np.uint64,
    stop: np.uint64,
    num_values: np.uint64,
    table: NDArray[np.uint64],
    shift: np.uint64,
    num_used: int,
    max_used: int,
) -> tuple[np.uint64, int]:
    """Count ``values[first:stop]``, none of them missing; returns where it stopped, and entries taken."""
    mask = np.uint64(table.shape[0] - 1)
    # Known before the loop: the compiler makes one without what is not needed.
    is_large = table.shape[0] > _LARGE and num_values > AHEAD
    is_near_full = num_used + np.int64(stop - first) > max_used
    last_ahead = num_values - AHEAD
    for i in range(first, stop):
        # Ask for the line of a later lookup; small tables are in the cache anyway.
        if is_large and i < last_ahead:
            prefetch(table, (np.uint64(values[i + AHEAD]) * MULTIPLIER) >> shift)
        category = np.uint64(values[i])
        entry, found = probe_short(category, table, shift, mask)
        # A full table is handed back with the place in the chunk, where the caller goes on after growing it,
        # and so is a full count: one more would carry into the category.
        if (found & LOW_HALF) == LOW_HALF or (is_near_full and found == 0 and num_used == max_used):
            return np.uint64(i), num_used
        # No branch on whether the category is new: of a known one the upper half stays as it is.
        table[entry] = (found | (category << HALF)) + _ONE
        num_used += int(found == 0)
    return stop, num_used


@kernel
def copy_short_entries(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    """Insert every taken entry of ``source`` into the larger, empty ``target``."""
    shift = shift_of(target)
    mask = np.uint64(target.shape[0] - 1)
    num_entries = source.shape[0]
    ahead = np.int64(AHEAD)
    for i in range(num_entries):
        if i + ahead < num_entries:
            prefetch(target, ((source[i + ahead] >> HALF) * MULTIPLIER) >> shift)
        if source[i] != 0:
            entry, _ = probe_short(source[i] >> HALF, target, shift, mask)
            target[entry] = source[i]


@kernel
def compact_short_entries(table: NDArray[np.uint64]) -> int:
    """Move the taken entries of ``table`` to its front, in place, and return how many there are."""
    num_taken = 0
    for i in range(table.shape[0]):
        if table[i] != 0:
            table[num_taken] = table[i]
            num_taken += 1
    return num_taken


def widened(table: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the same entries as a table of `hash_table`, (capacity, 2): every one where it was."""
    return np.stack([table >> HALF, table & LOW_HALF], axis=1)
