"""Stack distances of a stream of look-ups: the misses of an LRU cache of every size, in one pass.

The distance of a use is how many different rows were used at least as recently as the row was before: LRU
keeps it if it has that many slots. Last uses are bits in a row of 64-bit words with a Fenwick tree over the
words, so a use costs O(log(num_rows / 64)) on a tree that stays in the cache: 12 bytes a row and 9 bits a
place.

Source: Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal 9 (1970); Bennett and Kruskal, IBM Journal of
Research and Development 19 (1975), for the tree.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

_ONE, _ALL = np.uint64(1), np.uint64(2**64 - 1)


@numba.njit(cache=True, nogil=True)
def _count_bits(word: np.uint64) -> int:
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))  # type: ignore[return-value]


@numba.njit(cache=True, nogil=True)
def _add(tree: NDArray[np.int32], word: int, change: int) -> None:
    i = word + 1
    while i < tree.size:
        tree[i] += change
        i += i & -i


@numba.njit(cache=True, nogil=True)
def _count_up_to(tree: NDArray[np.int32], words: NDArray[np.uint64], place: int) -> int:
    """Bits set at ``place`` and before."""
    word, count = place >> 6, 0
    i = word
    while i > 0:
        count += tree[i]
        i -= i & -i
    mask = _ALL >> np.uint64(63 - (place & 63))
    count += _count_bits(words[word] & mask)
    return count  # type: ignore[no-any-return]


@numba.njit(cache=True, nogil=True)
def _renumber(
    place_of_row: NDArray[np.int32],
    row_at: NDArray[np.int64],
    words: NDArray[np.uint64],
    tree: NDArray[np.int32],
    num_places: int,
) -> int:
    """Close the gaps between last uses; returns how many there are."""
    left = 0
    for place in range(num_places):
        if (words[place >> 6] >> np.uint64(place & 63)) & _ONE:
            row_at[left] = row_at[place]
            place_of_row[row_at[left]] = left
            left += 1
    words[:] = 0
    for place in range(left):
        words[place >> 6] |= _ONE << np.uint64(place & 63)
    tree[:] = 0
    for word in range(words.size):
        tree[word + 1] += _count_bits(words[word])
        above = word + 1 + ((word + 1) & -(word + 1))
        if above < tree.size:
            tree[above] += tree[word + 1]
    return left


@numba.njit(cache=True, nogil=True)
def add_stack_distances(
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    weights: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int:
    """Count uses by their stack distance. Exact.

    Rows of one batch are used together: their distances are those before the batch, and afterwards its
    later rows count as the more recent.

    Args:
        offsets: (num_batches + 1,), where each batch begins; each look-up a batch of its own for distances
            from look-up to look-up.
        rows: (num_uses,), numbers below ``num_rows``, in each batch distinct.
        weights: (num_uses,), what each use counts.
        counts: (num_rows + 1,), added to: weight of the uses at each distance, from 1.

    Returns:
        Weight of the uses that were their row's first.
    """
    num_rows = counts.size - 1
    num_words = (2 * num_rows + 63) // 64 + 1
    words, tree = np.zeros(num_words, np.uint64), np.zeros(num_words + 1, np.int32)
    place_of_row, row_at = np.full(num_rows, -1, np.int32), np.empty(64 * num_words, np.int64)
    num_places, num_used, first = 0, 0, 0
    for batch in range(offsets.size - 1):
        for i in range(offsets[batch], offsets[batch + 1]):
            place = place_of_row[rows[i]]
            if place < 0:
                first += weights[i]
            else:
                counts[num_used - _count_up_to(tree, words, place) + 1] += weights[i]
        for i in range(offsets[batch], offsets[batch + 1]):
            if num_places == row_at.size:
                num_places = _renumber(place_of_row, row_at, words, tree, num_places)
            place = place_of_row[rows[i]]
            if place < 0:
                num_used += 1
            else:
                words[place >> 6] &= ~(_ONE << np.uint64(place & 63))
                _add(tree, place >> 6, -1)
            place_of_row[rows[i]], row_at[num_places] = num_places, rows[i]
            words[num_places >> 6] |= _ONE << np.uint64(num_places & 63)
            _add(tree, num_places >> 6, 1)
            num_places += 1
    return first


def lru_misses(
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    num_rows: int,
    weights: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """(num_rows + 1,) misses of an LRU cache of 0, 1, … slots that starts empty, at prefetch depth 0.

    A batch needs all its rows at once: below the rows of the largest batch no cache can serve them, and the
    number is that of a cache that drops rows of a batch for each other.

    Args:
        offsets: (num_batches + 1,), where each batch begins in ``rows``.
        rows: (num_uses,), in each batch distinct, numbers below ``num_rows``, best without gaps.
        num_rows: slots from here on change nothing.
        weights: (num_uses,), what each use counts, as its look-ups; None: 1.
    """
    counts = np.zeros(num_rows + 1, np.int64)
    ones = np.ones(rows.size, np.int64) if weights is None else weights
    first = add_stack_distances(offsets, rows, ones, counts)
    beyond = counts[::-1].cumsum()[::-1]
    misses: NDArray[np.int64] = first + np.append(beyond[1:], 0)
    return misses
