"""Counting categories in hash tables whose entries have two words: the category, and its count so far."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import AHEAD, prefetch
from ..kernel import kernel
from .hash_probing import ENTRY_BITS, MULTIPLIER, entry_of, shift_of

_LARGE = 1 << 13
"""Entries beyond which a table is not expected in the cache."""


@kernel
def count_run(
    values: NDArray[np.uint64],
    first: np.uint64,
    stop: np.uint64,
    num_values: np.uint64,
    table: NDArray[np.uint64],
    shift: np.uint64,
    num_used: int,
    max_used: int,
) -> tuple[np.uint64, int]:
    """Count ``values[first:stop]`` into ``table``, in place, until it holds ``max_used`` entries.

    Args:
        values: (num_values,), categories, uint32 or uint64, none of them missing.
        first: the first of them to count.
        stop: the one behind the last to count.
        num_values: how many there are.
        table: (capacity, 2); category and its count so far.
        shift: `shift_of` the table.
        num_used: entries taken.
        max_used: below the capacity, or probing would never end.

    Returns:
        Where it stopped, and entries taken. Exact.
    """
    # Known before the loop: the compiler makes one without what is not needed.
    is_large = table.shape[0] > _LARGE and num_values > AHEAD
    is_near_full = num_used + np.int64(stop - first) > max_used
    last_ahead = num_values - AHEAD
    for i in range(first, stop):
        # Ask for the line of a later lookup; small tables are in the cache anyway.
        if is_large and i < last_ahead:
            prefetch(table, ((np.uint64(values[i + AHEAD]) * MULTIPLIER) >> shift) << ENTRY_BITS)
        category = np.uint64(values[i])
        entry = entry_of(category, table, shift)
        count = table[entry, 1]
        # A full table is handed back with the place in the chunk, where the caller goes on after growing it.
        if is_near_full and count == 0 and num_used == max_used:
            return np.uint64(i), num_used
        if count == 0:
            table[entry, 0] = category
            num_used += 1
        table[entry, 1] = count + np.uint64(1)
    return stop, num_used


@kernel
def copy_entries(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    """Insert every taken entry of ``source`` into the larger, empty ``target``."""
    shift = shift_of(target)
    num_entries = source.shape[0]
    ahead = np.int64(AHEAD)
    for i in range(num_entries):
        if i + ahead < num_entries:
            prefetch(target, ((source[i + ahead, 0] * MULTIPLIER) >> shift) << ENTRY_BITS)
        if source[i, 1] != 0:
            entry = entry_of(source[i, 0], target, shift)
            target[entry, 0] = source[i, 0]
            target[entry, 1] = source[i, 1]


@kernel
def compact_entries(table: NDArray[np.uint64]) -> int:
    """Move the taken entries of ``table`` to its front, in place, and return how many there are."""
    num_taken = 0
    for i in range(table.shape[0]):
        if table[i, 1] != 0:
            table[num_taken, 0] = table[i, 0]
            table[num_taken, 1] = table[i, 1]
            num_taken += 1
    return num_taken
