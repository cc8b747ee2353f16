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

_ONE = np.uint64(1)
_LARGE = 1 << 15
"""Entries beyond which a table is not expected in the cache."""


@kernel
def count_short_run(
    values: NDArray[np.uint32],
    first: np.uint64,
    stop: np.uint64,
    num_values: np.uint64,
    table: NDArray[np.uint64],
    shift: np.uint64,
    num_used: int,
    max_used: int,
) -> tuple[np.uint64, int]:
    """Count ``values[first:stop]`` into ``table``, in place, until ``max_used`` entries or a count are full.

    Args:
        values: (num_values,), categories, none of them missing.
        first: the first of them to count.
        stop: the one behind the last to count.
        num_values: how many there are.
        table: (capacity,).
        shift: `shift_of` the table.
        num_used: entries taken.
        max_used: below the capacity, or probing would never end.

    Returns:
        Where it stopped, and entries taken. Exact.
    """
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
