"""Counting 32-bit categories in one word each: half the memory of `hash_table`'s entries, and of its misses.

A table is ``(capacity,)`` uint64, the capacity a power of two: the category in the upper half of a word, its
count so far in the lower, 0 where free. A count that no longer fits stops the kernel; the caller widens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import AHEAD, prefetch
from ..kernel import kernel

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
_ONE = np.uint64(1)
_LARGE = 1 << 14
"""Entries beyond which a table is not expected in the cache."""


def _shift_of(table: NDArray[np.uint64]) -> np.uint64:
    """Return the shift that turns a hash into an entry, the same as in a `hash_table` of this capacity."""
    return np.uint64(65 - table.shape[0].bit_length())


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
    return _add(categories, is_valid, start, table, _shift_of(table), num_used, max_used)  # type: ignore[no-any-return]


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
            prefetch(table, (np.uint64(categories[i + AHEAD]) * _MULTIPLIER) >> shift)
        if has_nulls and not (is_valid[i >> np.uint64(3)] >> np.uint8(i & np.uint64(7))) & 1:
            num_missing += 1
            continue
        category = np.uint64(categories[i])
        # Probe until the upper half is the category, or the entry is free.
        entry = (category * _MULTIPLIER) >> shift
        found = table[entry]
        while found != 0 and (found >> _HALF) != category:
            entry = (entry + _ONE) & mask
            found = table[entry]
        if found == 0:
            if num_used == max_used:
                return int(i), num_used, num_missing
            found = category << _HALF
            num_used += 1
        elif (found & _LOW_HALF) == _LOW_HALF:  # one more would carry into the category
            return int(i), num_used, num_missing
        table[entry] = found + _ONE
    return categories.shape[0], num_used, num_missing


def copy_short_entries(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    """Insert every taken entry of ``source`` into the larger, empty ``target``."""
    _copy(source, target, _shift_of(target))


@kernel
def _copy(source: NDArray[np.uint64], target: NDArray[np.uint64], shift: np.uint64) -> None:
    mask = np.uint64(target.shape[0] - 1)
    num_entries = source.shape[0]
    ahead = np.int64(AHEAD)
    for i in range(num_entries):
        if i + ahead < num_entries:
            prefetch(target, ((source[i + ahead] >> _HALF) * _MULTIPLIER) >> shift)
        if source[i] != 0:
            entry = ((source[i] >> _HALF) * _MULTIPLIER) >> shift
            while target[entry] != 0:
                entry = (entry + _ONE) & mask
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
    return np.stack([table >> _HALF, table & _LOW_HALF], axis=1)
