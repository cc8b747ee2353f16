"""Open-addressing hash tables from categories to counts or ids.

A table is a ``(capacity, 2)`` array of uint64: the category, and its count or id + 1, where 0 marks a
free entry. Both stand in one cache line, which is all that a lookup into a table of millions costs, and
kernels ask for that line AHEAD of the lookup. The capacity is a power of two and the probing linear; ids are
inserted hottest first, so the hot ones sit where their first probe looks. A short table, from categories of
32 bits to ids, is ``(capacity,)``: the category in the upper half of a word, id + 1 in the lower, so that a
line holds twice as many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import AHEAD, prefetch
from ..kernel import kernel

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Fibonacci hashing takes the top bits
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
MAX_LOAD = 0.7
_ENTRY_BITS = np.uint64(1)
"""log2 of the words of an entry that is not short."""
_LARGE = 1 << 13
"""Entries beyond which a table is not expected in the cache."""


def capacity_for(num_entries: int) -> int:
    """Return the entries of a table that holds ``num_entries`` at MAX_LOAD or less."""
    return 1 << max(4, int(np.ceil(np.log2(max(num_entries, 1) / MAX_LOAD))))


def new_table(num_entries: int) -> NDArray[np.uint64]:
    """Return an empty table that holds ``num_entries`` at MAX_LOAD or less."""
    return np.zeros((capacity_for(num_entries), 2), np.uint64)


def new_short_table(num_entries: int) -> NDArray[np.uint64]:
    """Return an empty short table that holds ``num_entries`` at MAX_LOAD or less."""
    return np.zeros(capacity_for(num_entries), np.uint64)


@kernel
def _shift_of(table: NDArray[np.uint64]) -> np.uint64:
    """Return the shift that leaves as many bits of a hash as number the entries."""
    bits = 0
    while (1 << bits) < table.shape[0]:
        bits += 1
    return np.uint64(64 - bits)


@kernel
def _entry_of(category: np.uint64, table: NDArray[np.uint64], shift: np.uint64) -> np.uint64:
    """Return the entry that holds ``category``, or the free one it would take."""
    mask = np.uint64(table.shape[0] - 1)
    entry = (category * _MULTIPLIER) >> shift
    while table[entry, 1] != 0 and table[entry, 0] != category:
        entry = (entry + np.uint64(1)) & mask
    return entry


@kernel
def _is_valid(is_valid: NDArray[np.uint8], i: np.uint64) -> np.uint64:
    return np.uint64((is_valid[i >> np.uint64(3)] >> np.uint8(i & np.uint64(7))) & np.uint8(1))


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
    shift = _shift_of(table)
    num_missing = 0
    num_lookups = np.uint64(categories.shape[0])
    has_nulls = is_valid.shape[0] > 0
    is_large = table.shape[0] > _LARGE
    for i in range(np.uint64(start), num_lookups):
        # Ask for the line of a later lookup; small tables are in the cache anyway.
        if is_large and i + AHEAD < num_lookups:
            prefetch(table, ((np.uint64(categories[i + AHEAD]) * _MULTIPLIER) >> shift) << _ENTRY_BITS)
        if has_nulls and not _is_valid(is_valid, i):
            num_missing += 1
            continue
        category = np.uint64(categories[i])
        entry = _entry_of(category, table, shift)
        if table[entry, 1] == 0:  # a new category
            if num_used == max_used:
                return int(i), num_used, num_missing
            table[entry, 0] = category
            num_used += 1
        table[entry, 1] += np.uint64(1)
    return categories.shape[0], num_used, num_missing


@kernel
def copy_entries(source: NDArray[np.uint64], target: NDArray[np.uint64]) -> None:
    """Insert every taken entry of ``source`` into the larger, empty ``target``."""
    shift = _shift_of(target)
    num_entries = source.shape[0]
    ahead = np.int64(AHEAD)
    for i in range(num_entries):
        if i + ahead < num_entries:
            prefetch(target, ((source[i + ahead, 0] * _MULTIPLIER) >> shift) << _ENTRY_BITS)
        if source[i, 1] != 0:
            entry = _entry_of(source[i, 0], target, shift)
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


@kernel
def insert_ids(
    categories: NDArray[np.uint32],
    first_id: int,
    missing_id: int,
    oov_id: int,
    table: NDArray[np.uint64],
) -> None:
    """Map ``categories[i]`` to ``first_id + i`` in the empty ``table``, but for the rows of missing and oov.

    Categories are inserted by id, hottest first, so that hot ones are found at their first probe.

    Args:
        categories: (num_rows,), uint32 or uint64, distinct where they count.
        first_id: id of the first of them.
        missing_id: id of a missing category.
        oov_id: id of an unknown category.
        table: (capacity, 2).
    """
    shift = _shift_of(table)
    num_rows = categories.shape[0]
    ahead = np.int64(AHEAD)
    for i in range(num_rows):
        if i + ahead < num_rows:
            prefetch(table, ((np.uint64(categories[i + ahead]) * _MULTIPLIER) >> shift) << _ENTRY_BITS)
        if first_id + i != missing_id and first_id + i != oov_id:
            category = np.uint64(categories[i])
            entry = _entry_of(category, table, shift)
            table[entry, 0] = category
            table[entry, 1] = np.uint64(first_id + i + 1)


@kernel
def insert_short_ids(
    categories: NDArray[np.uint32],
    first_id: int,
    missing_id: int,
    oov_id: int,
    table: NDArray[np.uint64],
) -> None:
    """`insert_ids` for categories of 32 bits into a short table, (capacity,)."""
    shift = _shift_of(table)
    mask = np.uint64(table.shape[0] - 1)
    num_rows = categories.shape[0]
    ahead = np.int64(AHEAD)
    for i in range(num_rows):
        if i + ahead < num_rows:
            prefetch(table, (np.uint64(categories[i + ahead]) * _MULTIPLIER) >> shift)
        if first_id + i != missing_id and first_id + i != oov_id:
            category = np.uint64(categories[i])
            entry = (category * _MULTIPLIER) >> shift
            while table[entry] != 0:  # categories are distinct: no need to compare
                entry = (entry + np.uint64(1)) & mask
            table[entry] = (category << _HALF) | np.uint64(first_id + i + 1)


@kernel
def find_ids(
    categories: NDArray[np.uint32],
    is_valid: NDArray[np.uint8],
    table: NDArray[np.uint64],
    missing_id: int,
    oov_id: int,
    ids: NDArray[np.int32],
) -> None:
    """Write the id of each category to ``ids``.

    Args:
        categories: (num_lookups,), uint32 or uint64.
        is_valid: Arrow validity bitmap of ``categories``, or length 0 where none is missing.
        table: as `insert_ids` left it.
        missing_id: id of a missing category.
        oov_id: id of a category that is not in the table.
        ids: (num_lookups,) out; may be a strided column of a matrix.
    """
    shift = _shift_of(table)
    num_lookups = np.uint64(categories.shape[0])
    has_nulls = is_valid.shape[0] > 0
    for i in range(num_lookups):
        if i + AHEAD < num_lookups:
            prefetch(table, ((np.uint64(categories[i + AHEAD]) * _MULTIPLIER) >> shift) << _ENTRY_BITS)
        entry = _entry_of(np.uint64(categories[i]), table, shift)
        number = np.int64(table[entry, 1])  # id + 1, 0 in a free entry
        row = number - 1 if number > 0 else oov_id
        ids[i] = row if not has_nulls or _is_valid(is_valid, i) else missing_id


@kernel
def find_short_ids(
    categories: NDArray[np.uint32],
    is_valid: NDArray[np.uint8],
    table: NDArray[np.uint64],
    missing_id: int,
    oov_id: int,
    ids: NDArray[np.int32],
) -> None:
    """`find_ids` for categories of 32 bits in a short table, (capacity,), as `insert_short_ids` left it."""
    shift = _shift_of(table)
    mask = np.uint64(table.shape[0] - 1)
    has_nulls = is_valid.shape[0] > 0
    num_lookups = np.uint64(categories.shape[0])
    for i in range(num_lookups):
        if i + AHEAD < num_lookups:
            prefetch(table, (np.uint64(categories[i + AHEAD]) * _MULTIPLIER) >> shift)
        category = np.uint64(categories[i])
        # Probe until the upper half is the category, or the entry is free.
        entry = (category * _MULTIPLIER) >> shift
        found = table[entry]
        while found != 0 and (found >> _HALF) != category:
            entry = (entry + np.uint64(1)) & mask
            found = table[entry]
        row = np.int64(found & _LOW_HALF) - 1 if found != 0 else oov_id
        ids[i] = row if not has_nulls or _is_valid(is_valid, i) else missing_id


@kernel
def settle_unknown(ids: NDArray[np.int32], oov_ids: NDArray[np.int32], num_oov: NDArray[np.int64]) -> None:
    """Give lookups without an id, -1, the oov row of their table, in place, and count those that have it.

    Args:
        ids: (num_samples, num_features).
        oov_ids: (num_features,), id of each table's oov row.
        num_oov: (num_features,) out, added to; exact.
    """
    num_features = np.uint64(ids.shape[1])
    for i in range(np.uint64(ids.shape[0])):
        for f in range(num_features):
            row = oov_ids[f] if ids[i, f] < 0 else ids[i, f]
            ids[i, f] = row
            num_oov[f] += row == oov_ids[f]
