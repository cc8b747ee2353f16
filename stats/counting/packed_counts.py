"""Counting 32-bit categories in one word each: half the memory of two-word entries, and of their misses.

A table is ``(capacity,)`` uint64, the capacity a power of two: the category in the upper half of a word, its
count so far in the lower, 0 where free. A count that no longer fits stops the kernel; the caller widens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import AHEAD, prefetch
from ..kernel import kernel
from .hash_probing import HALF, LOW_HALF, MULTIPLIER, is_valid_at, probe_short, shift_of

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
    mask = np.uint64(table.shape[0] - 1)
    num_lookups = np.uint64(categories.shape[0])
    num_missing = 0
    has_nulls = is_valid.shape[0] > 0
    is_large = table.shape[0] > _LARGE
    for i in range(np.uint64(start), num_lookups):
        # Ask for the line of a later lookup; small tables are in the cache anyway.
        if is_large and i + AHEAD < num_lookups:
            prefetch(table, (np.uint64(categories[i + AHEAD]) * MULTIPLIER) >> shift)
        if has_nulls and not is_valid_at(is_valid, i):
            num_missing += 1
            continue
        category = np.uint64(categories[i])
        entry, found = probe_short(category, table, shift, mask)
        if found == 0:
            # A full table is handed back with the place in the chunk, where the caller goes on after growing
            # it.
            if num_used == max_used:
                return int(np.int64(i)), num_used, num_missing
            found = category << HALF
            num_used += 1
        elif (found & LOW_HALF) == LOW_HALF:  # one more would carry into the category
            return int(np.int64(i)), num_used, num_missing
        table[entry] = found + _ONE
    return categories.shape[0], num_used, num_missing


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
