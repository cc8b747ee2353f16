"""Counting categories in hash tables whose entries have two words: the category, and its count so far."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import AHEAD, prefetch
from ..kernel import kernel
from .hash_probing import ENTRY_BITS, MULTIPLIER, entry_of, is_valid_at, shift_of

_LARGE = 1 << 13
"""Entries beyond which a table is not expected in the cache."""


@kernel
def add_counts(
    categories: NDArray[np.uint32],
    is_valid: NDArray[np.uint8],
    start: int,
    table: NDArray[np.uint64],
    num_used: int,
    max_used: int,
) -> tuple[int, int, int]:
    """Count ``categories[start:]`` into ``table``, in place, until it holds ``max_used`` entries.

    Args:
        categories: (num_lookups,), uint32 or uint64.
        is_valid: Arrow validity bitmap of ``categories``, or length 0 where none is missing.
        start: the first lookup to count.
        table: (capacity, 2); category and its count so far.
        num_used: entries taken.
        max_used: below the capacity, or probing would never end.

    Returns:
        The lookup it stopped at (num_lookups when all are counted), entries taken, missing lookups seen.
        Exact.
    """
    shift = shift_of(table)
    num_missing = 0
    num_lookups = np.uint64(categories.shape[0])
    has_nulls = is_valid.shape[0] > 0
    is_large = table.shape[0] > _LARGE
    for i in range(np.uint64(start), num_lookups):
        # Ask for the line of a later lookup; small tables are in the cache anyway.
        if is_large and i + AHEAD < num_lookups:
            prefetch(table, ((np.uint64(categories[i + AHEAD]) * MULTIPLIER) >> shift) << ENTRY_BITS)
        if has_nulls and not is_valid_at(is_valid, i):
            num_missing += 1
            continue
        category = np.uint64(categories[i])
        entry = entry_of(category, table, shift)
        if table[entry, 1] == 0:  # a new category
            # A full table is handed back with the place in the chunk, where the caller goes on after growing
            # it.
            if num_used == max_used:
                return int(np.int64(i)), num_used, num_missing
            table[entry, 0] = category
            num_used += 1
        table[entry, 1] += np.uint64(1)
    return categories.shape[0], num_used, num_missing


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
