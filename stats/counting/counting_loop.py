"""Counting lookups into hash tables of either kind: the loop over blocks, with and without missing lookups.

What counts a run of lookups is in the module of each kind of table: `hash_table` and `packed_counts`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cpu_prefetch import AHEAD
from ..kernel import kernel
from .hash_probing import shift_of
from .hash_table import count_run
from .packed_counts import count_short_run
from .valid_blocks import BLOCK, keep_last, place_of, take_valid


def add_counts(
    categories: NDArray[Any],
    is_valid: NDArray[np.uint8],
    start: int,
    table: NDArray[np.uint64],
    num_used: int,
    max_used: int,
) -> tuple[int, int, int]:
    """Count ``categories[start:]`` into ``table``, in place, until ``max_used`` entries or a count are full.

    Args:
        categories: (num_lookups,), uint32 or, where the entries have two words, uint64.
        is_valid: Arrow validity bitmap of ``categories``, or length 0 where none is missing.
        start: the first lookup to count.
        table: (capacity,) of short entries or (capacity, 2).
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
    categories: NDArray[Any],
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
            stopped, num_used = _count(categories, first, stop, num_lookups, table, shift, num_used, max_used)
            if stopped != stop:
                return int(np.int64(stopped)), num_used, 0
            first = stop
        return categories.shape[0], num_used, 0

    # The last lookups taken wait for the next block, so that lines are asked for across its border.
    taken = np.empty(np.int64(BLOCK + AHEAD), categories.dtype)
    num_taken = np.uint64(0)
    num_counted = np.uint64(0)
    while first < num_lookups:
        next_first = min(first + BLOCK, num_lookups)
        num_taken = take_valid(categories, is_valid, first, next_first, taken, num_taken)
        num_kept = min(num_taken, AHEAD) if next_first < num_lookups else np.uint64(0)
        num_here = num_taken - num_kept
        stopped, num_used = _count(taken, np.uint64(0), num_here, num_taken, table, shift, num_used, max_used)
        num_counted += stopped
        if stopped != num_here:
            place = place_of(is_valid, np.uint64(start), num_counted)
            return int(np.int64(place)), num_used, int(np.int64(place - num_counted)) - start
        keep_last(taken, num_here, num_kept)
        num_taken = num_kept
        first = next_first
    return categories.shape[0], num_used, categories.shape[0] - start - int(np.int64(num_counted))


@kernel
def _count(
    values: NDArray[Any],
    first: np.uint64,
    stop: np.uint64,
    num_values: np.uint64,
    table: NDArray[np.uint64],
    shift: np.uint64,
    num_used: int,
    max_used: int,
) -> tuple[np.uint64, int]:
    """Count ``values[first:stop]``, none of them missing; returns where it stopped, and entries taken."""
    # The compiler knows how many dimensions the table has, and leaves the other line out.
    if table.ndim == 1:
        return count_short_run(values, first, stop, num_values, table, shift, num_used, max_used)
    return count_run(values, first, stop, num_values, table, shift, num_used, max_used)
