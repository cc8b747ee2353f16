"""Probing of open-addressing hash tables from categories to counts or ids, in entries of two widths.

A table is a ``(capacity, 2)`` array of uint64: the category, and its number, where 0 marks a free entry. Both
stand in one cache line, which is all that a lookup into a table of millions costs, and kernels ask for that
line AHEAD of the lookup. A short table, of categories and numbers of 32 bits, is ``(capacity,)``: the
category in the upper half of a word, its number in the lower, so that a line holds twice as many. The
capacity is a power of two and the probing linear.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..kernel import inlined_kernel, kernel

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Fibonacci hashing takes the top bits
HALF = np.uint64(32)
LOW_HALF = np.uint64(2**32 - 1)
ENTRY_BITS = np.uint64(1)
"""log2 of the words of an entry that is not short."""
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


def new_table(num_entries: int) -> NDArray[np.uint64]:
    """Return an empty table in which ``num_entries`` may be taken."""
    return np.zeros((capacity_for(num_entries), 2), np.uint64)


def new_short_table(num_entries: int) -> NDArray[np.uint64]:
    """Return an empty short table in which ``num_entries`` may be taken."""
    return np.zeros(capacity_for(num_entries), np.uint64)


@kernel
def shift_of(table: NDArray[np.uint64]) -> np.uint64:
    """Return the shift that leaves as many bits of a hash as number the entries."""
    bits = 0
    while (1 << bits) < table.shape[0]:
        bits += 1
    return np.uint64(64 - bits)


@kernel
def entry_of(category: np.uint64, table: NDArray[np.uint64], shift: np.uint64) -> np.uint64:
    """Return the entry that holds ``category``, or the free one it would take."""
    mask = np.uint64(table.shape[0] - 1)
    entry = (category * MULTIPLIER) >> shift
    while table[entry, 1] != 0 and table[entry, 0] != category:
        entry = (entry + np.uint64(1)) & mask
    return entry


@inlined_kernel
def probe_short(
    category: np.uint64, table: NDArray[np.uint64], shift: np.uint64, mask: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Return the entry of a short table that holds ``category``, or the free one it would take, and its word.

    ``mask`` is the capacity less one.
    """
    # Probe until the upper half is the category, or the entry is free.
    entry = (category * MULTIPLIER) >> shift
    found = table[entry]
    while found != 0 and (found >> HALF) != category:
        entry = (entry + np.uint64(1)) & mask
        found = table[entry]
    return entry, found


@kernel
def is_valid_at(is_valid: NDArray[np.uint8], i: np.uint64) -> np.uint64:
    """Return bit ``i`` of an Arrow validity bitmap."""
    return np.uint64((is_valid[i >> np.uint64(3)] >> np.uint8(i & np.uint64(7))) & np.uint8(1))
