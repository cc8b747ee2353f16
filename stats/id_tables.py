"""Hash tables from categories to counts or ids, and their hash.

All stored randomness uses the same integer hash. `mix64` and `mix64_pair` are a 64-bit finaliser that turns
(seed, position) into bits. A value depends on its position and not on earlier draws, so any part can be
computed alone, in any order, on any machine. Their results must never change: shuffles, initial values and
generated logs depend on them, and a test pins them.

A table is a ``(capacity, 2)`` array of uint64: the category and its number, 0 for a free entry. Both share a
cache line, which is the whole cost of a lookup into a table of millions; kernels prefetch it AHEAD of the
lookup. A short table, of categories and numbers of 32 bits, is ``(capacity,)``: the category in the upper
half of a word, its number in the lower, so a line holds twice as many. The capacity is a power of two and the
probing linear.

In tables of ids a number is id + 1. Ids are inserted hottest first, so hot ones are at their first probe.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .kernel import inlined_kernel, kernel, read_only
from .simd import AHEAD, prefetch


@inlined_kernel
def mix64(bits: np.uint64) -> np.uint64:
    """Mix 64 bits: a bijection on integers whose every output bit depends on every input bit.

    Source:
        Steele, Lea and Flood, OOPSLA 2014 (SplitMix64), with the constants of Stafford's variant 13.
    """
    bits = np.uint64(bits) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@inlined_kernel
def mix64_pair(seed: np.uint64, position: np.uint64) -> np.uint64:
    """Return 64 bits for ``position`` in the stream of ``seed``, in two rounds: near seeds share nothing."""
    return mix64(mix64(seed) ^ np.uint64(position))


MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Fibonacci hashing takes the top bits
HALF = np.uint64(32)
LOW_HALF = np.uint64(2**32 - 1)
MAX_LOAD: Final = 0.7
"""Share of the entries of a large table that may be taken, where four of ten lookups take a second probe."""
_SMALL_LOAD: Final = 0.2
"""The same of a table that fits in a cache of the core, where a probe costs little and a second one that the
processor did not predict costs more than all the rest: nine of ten lookups end with the first."""
_SMALL_ENTRIES: Final = 1 << 15


def most_used(num_entries: int) -> int:
    """Return how many of the entries of a table may be taken."""
    return int(num_entries * (_SMALL_LOAD if num_entries <= _SMALL_ENTRIES else MAX_LOAD))


def capacity_for(num_entries: int) -> int:
    """Return the entries of a table in which ``num_entries`` may be taken: a power of two."""
    capacity = 16
    while most_used(capacity) < num_entries:
        capacity *= 2
    return capacity


def new_table(num_entries: int, *, is_short: bool = False) -> NDArray[np.uint64]:
    """Return an empty table in which ``num_entries`` may be taken."""
    capacity = capacity_for(num_entries)
    return np.zeros(capacity if is_short else (capacity, 2), np.uint64)


@kernel
def shift_of(table: NDArray[np.uint64]) -> np.uint64:
    """Return the shift that leaves as many bits of a hash as number the entries."""
    bits = 0
    while (1 << bits) < table.shape[0]:
        bits += 1
    return np.uint64(64 - bits)


# The compiler knows how many dimensions a table of these kernels has, and leaves the other line out.


@kernel
def ask_for(category: np.uint64, table: NDArray[np.uint64], shift: np.uint64) -> None:
    """Prefetch the first entry that ``category`` may have."""
    entry = (category * MULTIPLIER) >> shift
    if table.ndim == 1:
        prefetch(table, entry)
    else:
        prefetch(table, entry << np.uint64(1))


@kernel
def probe(category: np.uint64, table: NDArray[np.uint64], shift: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return the entry that holds ``category``, or the free one it would take, and its number."""
    mask = np.uint64(table.shape[0] - 1)
    entry = (category * MULTIPLIER) >> shift
    if table.ndim == 1:
        word = table[entry]
        while word != 0 and (word >> HALF) != category:
            entry = (entry + np.uint64(1)) & mask
            word = table[entry]
        return entry, word & LOW_HALF
    while table[entry, 1] != 0 and table[entry, 0] != category:
        entry = (entry + np.uint64(1)) & mask
    return entry, table[entry, 1]


@kernel
def entry_at(entry: np.uint64, table: NDArray[np.uint64]) -> tuple[np.uint64, np.uint64]:
    """Return the category and the number of an entry."""
    if table.ndim == 1:
        return table[entry] >> HALF, table[entry] & LOW_HALF
    return table[entry, 0], table[entry, 1]


@kernel
def put(entry: np.uint64, category: np.uint64, number: np.uint64, table: NDArray[np.uint64]) -> None:
    """Write category and number to an entry."""
    if table.ndim == 1:
        table[entry] = (category << HALF) | number
    else:
        table[entry, 0] = category
        table[entry, 1] = number


@kernel
def is_valid_at(is_valid: NDArray[np.uint8], i: np.uint64) -> np.uint64:
    """Return bit ``i`` of an Arrow validity bitmap."""
    return np.uint64((is_valid[i >> np.uint64(3)] >> np.uint8(i & np.uint64(7))) & np.uint8(1))


_BLOCK_SAMPLES = np.uint64(64)
"""Samples that are put together at a time: 6.5 KiB of ids with 26 tables."""


def id_table_bytes(num_rows: int, category_bytes: int) -> int:
    """Return the bytes of a hash table of ``num_rows`` categories of 4 or 8 bytes."""
    return _entry_bytes(category_bytes) * capacity_for(num_rows)


def most_rows_within(room_bytes: int, category_bytes: int) -> int:
    """Return how many categories the largest hash table of ``room_bytes`` holds; some in any case."""
    # A hash table has a power of two of entries, filled as far as it may be.
    largest = 1 << (max(room_bytes // _entry_bytes(category_bytes), 16).bit_length() - 1)
    return most_used(largest)


def _entry_bytes(category_bytes: int) -> int:
    return 8 if category_bytes == 4 else 16


def id_table_of(words: NDArray[np.uint64], category_bytes: int) -> NDArray[np.uint64]:
    """Return the hash table whose words are in a row, as a file has them."""
    return words if category_bytes == 4 else words.reshape(-1, 2)


def build_id_table(
    categories: NDArray[Any], first_id: int, missing_id: int, oov_id: int
) -> NDArray[np.uint64]:
    """Return a table that maps ``categories[i]`` to ``first_id + i``, but for the rows of missing and oov.

    Args:
        categories: (num_rows,), uint32 or uint64, hottest first, distinct where they count.
        first_id: id of the first of them.
        missing_id: id of a missing category.
        oov_id: id of an unknown category.
    """
    table = new_table(categories.shape[0], is_short=categories.dtype.itemsize == 4)
    _insert_ids(read_only(categories), first_id, missing_id, oov_id, table)
    return table


@kernel
def _insert_ids(
    categories: NDArray[np.uint32], first_id: int, missing_id: int, oov_id: int, table: NDArray[np.uint64]
) -> None:
    """Map categories to ids in the empty ``table``; see `build_id_table`."""
    shift = shift_of(table)
    num_rows = categories.shape[0]
    ahead = np.int64(AHEAD)
    for i in range(num_rows):
        # Prefetch the line of a later row, because the table does not fit in a cache.
        if i + ahead < num_rows:
            ask_for(np.uint64(categories[i + ahead]), table, shift)
        # These two rows have no category.
        if first_id + i != missing_id and first_id + i != oov_id:
            category = np.uint64(categories[i])
            entry, _ = probe(category, table, shift)
            # One more than the id, since 0 marks a free entry.
            put(entry, category, np.uint64(first_id + i + 1), table)


def find_ids(
    categories: NDArray[Any],
    is_valid: NDArray[np.uint8],
    table: NDArray[np.uint64],
    missing_id: int,
    oov_id: int,
    ids: NDArray[np.int32],
) -> None:
    """Write the id of each category to ``ids``.

    Args:
        categories: (num_lookups,), of the type that the table was built of.
        is_valid: Arrow validity bitmap of ``categories``, or length 0 where none is missing.
        table: as `build_id_table` returned it.
        missing_id: id of a missing category.
        oov_id: id of a category that is not in the table.
        ids: (num_lookups,) out; may be strided.
    """
    _find_ids(read_only(categories), read_only(is_valid), read_only(table), missing_id, oov_id, ids)


@kernel
def _find_ids(
    categories: NDArray[np.uint32],
    is_valid: NDArray[np.uint8],
    table: NDArray[np.uint64],
    missing_id: int,
    oov_id: int,
    ids: NDArray[np.int32],
) -> None:
    """See `find_ids`."""
    shift = shift_of(table)
    num_lookups = np.uint64(categories.shape[0])
    has_nulls = is_valid.shape[0] > 0
    for i in range(num_lookups):
        if i + AHEAD < num_lookups:
            ask_for(np.uint64(categories[i + AHEAD]), table, shift)
        _, number = probe(np.uint64(categories[i]), table, shift)
        row = np.int64(number) - 1 if number != 0 else oov_id
        ids[i] = row if not has_nulls or is_valid_at(is_valid, i) else missing_id


@kernel
def settle_unknown(
    ids_of_tables: NDArray[np.int32],
    oov_ids: NDArray[np.int32],
    num_oov: NDArray[np.int64],
    matrix: NDArray[np.int32],
) -> None:
    """Replace missing ids, -1, by the oov row of their table, count them, and transpose to samples.

    Tables are looked up one by one, so the ids of each are contiguous; in the matrix of a Criteo log they are
    104 bytes apart, a cache line for each. A block of samples stays in the cache while it is transposed.

    Args:
        ids_of_tables: (num_features, num_samples), -1 where unknown; overwritten.
        oov_ids: (num_features,), id of each table's oov row.
        num_oov: (num_features,) out, added to; exact.
        matrix: (num_samples, num_features) out; may share the memory of a single row of ``ids_of_tables``.
    """
    num_features = np.uint64(ids_of_tables.shape[0])
    num_samples = np.uint64(ids_of_tables.shape[1])
    for first in range(np.uint64(0), num_samples, _BLOCK_SAMPLES):
        stop = min(first + _BLOCK_SAMPLES, num_samples)
        for f in range(num_features):
            oov = oov_ids[f]
            num_found = 0
            for i in range(first, stop):
                row = ids_of_tables[f, i]
                row = oov if row < 0 else row
                ids_of_tables[f, i] = row
                num_found += row == oov
            num_oov[f] += num_found
        for i in range(first, stop):
            for f in range(num_features):
                matrix[i, f] = ids_of_tables[f, i]
