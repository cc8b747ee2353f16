"""Sorts pairs of 64-bit words in place, for keys that one word does not hold.

NumPy sorts single words in place, but pairs only by an index of 8 bytes for each or as records, ten times as
slow. Arrays may be mapped files, so the sort works on ranges from one end to the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .kernel import kernel

_MOST_OPEN = 64
"""Ranges that wait, at most: each is larger than the one sorted next, so log2 of the pairs is enough."""
_SHORT = 16
"""Pairs that are sorted by insertion."""


@kernel
def sort_pairs(pairs_N2: NDArray[np.uint64]) -> None:
    """Sort pairs by their first word, then by their second one, ascending and in place.

    Args:
        pairs_N2: (num_pairs, 2); equal pairs may occur any number of times.

    Source:
        Bentley and McIlroy, Software: Practice and Experience 23 (1993): quicksort that puts all
        pairs equal to the pivot in their place. Pivots are drawn, by a generator of fixed seed.
    """
    open_ranges = np.empty((_MOST_OPEN, 2), np.int64)
    num_open = 0
    first = 0
    stop = pairs_N2.shape[0]
    drawn = np.uint64(1)
    while True:
        while stop - first > _SHORT:
            drawn = drawn * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            place = first + np.int64(drawn >> np.uint64(33)) % (stop - first)
            left, right = split_at(pairs_N2, first, stop, place)
            # The longer side waits.
            if left - first > stop - right:
                open_ranges[num_open, 0] = first
                open_ranges[num_open, 1] = left
                first = right
            else:
                open_ranges[num_open, 0] = right
                open_ranges[num_open, 1] = stop
                stop = left
            num_open += 1
        insert_pairs(pairs_N2, first, stop)
        if num_open == 0:
            return
        num_open -= 1
        first = open_ranges[num_open, 0]
        stop = open_ranges[num_open, 1]


@kernel
def split_at(pairs_N2: NDArray[np.uint64], first: int, stop: int, pivot: int) -> tuple[int, int]:
    """Move pairs below a pivot before it and those above behind it; return where its equals begin and end."""
    high = pairs_N2[pivot, 0]
    low = pairs_N2[pivot, 1]
    left = first
    right = stop
    place = first
    while place < right:
        own_high = pairs_N2[place, 0]
        own_low = pairs_N2[place, 1]
        if own_high < high or (own_high == high and own_low < low):
            pairs_N2[place, 0] = pairs_N2[left, 0]
            pairs_N2[place, 1] = pairs_N2[left, 1]
            pairs_N2[left, 0] = own_high
            pairs_N2[left, 1] = own_low
            left += 1
            place += 1
        elif own_high == high and own_low == low:
            place += 1
        else:
            right -= 1
            pairs_N2[place, 0] = pairs_N2[right, 0]
            pairs_N2[place, 1] = pairs_N2[right, 1]
            pairs_N2[right, 0] = own_high
            pairs_N2[right, 1] = own_low
    return left, right


@kernel
def insert_pairs(pairs_N2: NDArray[np.uint64], first: int, stop: int) -> None:
    """Sort a short range of pairs."""
    for start in range(first + 1, stop):
        high = pairs_N2[start, 0]
        low = pairs_N2[start, 1]
        place = start
        while place > first:
            before = pairs_N2[place - 1, 0]
            if before < high or (before == high and pairs_N2[place - 1, 1] <= low):
                break
            pairs_N2[place, 0] = before
            pairs_N2[place, 1] = pairs_N2[place - 1, 1]
            place -= 1
        pairs_N2[place, 0] = high
        pairs_N2[place, 1] = low
