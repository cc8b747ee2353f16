"""Counting categories in hash tables, compared with sorting them and with reaching the entries alone.

A table of short entries, which the categories of Criteo's logs have, of entries of two words, which those of
64 bits need, and a short one that fits in a cache, of a column that lacks values, as most of Criteo's do. No
table can count faster than its entries are reached, so the bound adds one to the word to which the hash of
each category leads, whoever that word belongs to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....stats.counting.counting_loop import add_counts
from ....stats.counting.hash_probing import MULTIPLIER, new_short_table, new_table, shift_of
from ....stats.cpu_prefetch import AHEAD, prefetch
from ....stats.kernel import kernel, read_only
from .comparison import Comparison

_NO_NULLS = read_only(np.zeros(0, np.uint8))
_SMALL_ROWS = 5000
"""Categories of the column whose table fits in a cache."""
_SHARE_MISSING = 0.4
"""Share of its values that are missing."""


def counting_comparisons(lookups: NDArray[np.int64], rng: np.random.Generator) -> list[Comparison]:
    """Return exact counting of categories, one after another into a hash table.

    The reference sorts with vector instructions. A log in which few rows are looked up twice, whose table is
    far larger than any cache, suits it.
    Of a column that lacks values it is given those that are there, which counting finds itself.

    Args:
        lookups: (num_lookups,), numbers of rows.
        rng: source of which values are missing.
    """
    # Knuth's multiplier spreads the numbers over 32 bits, as raw categories are.
    categories = (lookups * 2654435761 % 2**32).astype(np.uint32)
    small = (lookups % _SMALL_ROWS * 2654435761 % 2**32).astype(np.uint32)
    is_there = rng.random(lookups.shape[0]) >= _SHARE_MISSING
    bits = np.packbits(is_there, bitorder="little")
    return [
        _counting("counting", categories, _NO_NULLS, categories),
        _counting("counting, 64 bits", categories.astype(np.uint64), _NO_NULLS, categories.astype(np.uint64)),
        _counting("counting, small table", small, bits, small[is_there]),
    ]


def _counting(
    name: str, categories: NDArray[Any], is_valid: NDArray[np.uint8], present: NDArray[Any]
) -> Comparison:
    categories, is_valid = read_only(categories), read_only(is_valid)
    num_used = int(np.unique(present).size)
    new = new_short_table if categories.dtype == np.uint32 else new_table

    def count() -> None:
        table = new(num_used)
        counted, found, _ = add_counts(categories, is_valid, 0, table, 0, num_used + 1)
        assert counted == categories.size and found == num_used, "a count needs more than 32 bits"

    def reach() -> None:
        table = new(num_used)
        reach_entries(present, table.reshape(-1), shift_of(table), table.size // table.shape[0])

    def sort() -> None:
        np.unique(present, return_counts=True)

    return Comparison(name, "NumPy, unique", count, categories.size, sort, categories.size, reach)


@kernel
def reach_entries(
    categories: NDArray[np.uint32], words: NDArray[np.uint64], shift: np.uint64, words_of_entry: int
) -> None:
    """Add one to the first word of the entry that each category's hash leads to, in place.

    Args:
        categories: (num_lookups,), uint32 or uint64.
        words: (capacity * words_of_entry,).
        shift: `shift_of` the table.
        words_of_entry: 1 in a short table, 2 in another.
    """
    step = np.uint64(words_of_entry)
    num_lookups = np.uint64(categories.shape[0])
    for i in range(num_lookups):
        if i + AHEAD < num_lookups:
            prefetch(words, ((np.uint64(categories[i + AHEAD]) * MULTIPLIER) >> shift) * step)
        words[((np.uint64(categories[i]) * MULTIPLIER) >> shift) * step] += np.uint64(1)
