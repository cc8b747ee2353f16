"""Stack distances of a stream of lookups: the misses of an LRU cache of every size, in one pass.

The stack distance of a use is the number of distinct rows used since the row's previous use, itself included:
LRU still holds the row if it has that many slots. Uses have positions, in order of time, and the last use of
each row sets a bit at its position. A Fenwick tree over the 64-bit words of bits counts them, so a use costs
O(log(num_rows / 64)) on a tree that stays in the CPU cache: 12 bytes per row and 9 bits per position.

Source: Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal 9 (1970); Bennett and Kruskal, IBM Journal of
Research and Development 19 (1975), for the tree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel

_ONE = np.uint64(1)
_ALL = np.uint64(2**64 - 1)


@kernel
def _count_bits(word: np.uint64) -> np.int64:
    """Return the number of bits set: sums of 2, 4 and 8 bits in parallel, then of all bytes by a product."""
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def _add(tree: NDArray[np.int32], word: int, change: int) -> None:
    """Add ``change`` to the bits of one word in the Fenwick tree."""
    i = word + 1
    while i < tree.size:
        tree[i] += change
        i += i & -i


@kernel
def _count_up_to(tree: NDArray[np.int32], words: NDArray[np.uint64], position: int) -> int:
    """Return the number of bits set at ``position`` and before."""
    word = position >> 6
    count = 0
    # Whole words from the tree, the rest from the bits of the last word.
    i = word
    while i > 0:
        count += tree[i]
        i -= i & -i
    mask = _ALL >> np.uint64(63 - (position & 63))
    return count + int(_count_bits(words[word] & mask))


@kernel
def _renumber(
    position_of_row: NDArray[np.int32],
    row_at: NDArray[np.int64],
    words: NDArray[np.uint64],
    tree: NDArray[np.int32],
    num_positions: int,
) -> int:
    """Close the gaps between last uses, and return their number."""
    # Last uses move to the front, in their order.
    left = 0
    for position in range(num_positions):
        if (words[position >> 6] >> np.uint64(position & 63)) & _ONE:
            row_at[left] = row_at[position]
            position_of_row[row_at[left]] = left
            left += 1

    # Bits and tree are rebuilt; a tree node passes its sum on to the node above it.
    words[:] = 0
    for position in range(left):
        words[position >> 6] |= _ONE << np.uint64(position & 63)
    tree[:] = 0
    for word in range(words.size):
        tree[word + 1] += _count_bits(words[word])
        above = word + 1 + ((word + 1) & -(word + 1))
        if above < tree.size:
            tree[above] += tree[word + 1]
    return left


@kernel
def add_stack_distances(
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    weights: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> int:
    """Count uses by their stack distance. Exact.

    Rows of one batch are used together: their distances are those before the batch; afterwards the later
    rows of the batch count as more recently used.

    Args:
        offsets: (num_batches + 1,), where each batch starts; one lookup per batch gives distances from lookup
            to lookup.
        rows: (num_uses,), numbers below ``num_rows``, distinct within each batch.
        weights: (num_uses,), weight of each use.
        counts: (num_rows + 1,), added to: weight of the uses at each distance, from 1.

    Returns:
        Weight of the uses that are the first of their row.
    """
    # Each position has a bit, set where some row's last use is; the tree sums the bits of whole words.
    num_rows = counts.size - 1
    num_words = (2 * num_rows + 63) // 64 + 1
    words = np.zeros(num_words, np.uint64)
    tree = np.zeros(num_words + 1, np.int32)
    position_of_row = np.full(num_rows, -1, np.int32)
    row_at = np.empty(64 * num_words, np.int64)
    num_positions = 0
    num_used = 0
    first = 0
    for batch in range(offsets.size - 1):
        # Distances of the whole batch, before any of its rows moves.
        for i in range(offsets[batch], offsets[batch + 1]):
            position = position_of_row[rows[i]]
            if position < 0:
                first += weights[i]
            else:
                counts[num_used - _count_up_to(tree, words, position) + 1] += weights[i]
        # Each row's last use moves to the next position; with twice as many positions as rows, closing the
        # gaps costs little per use.
        for i in range(offsets[batch], offsets[batch + 1]):
            if num_positions == row_at.size:
                num_positions = _renumber(position_of_row, row_at, words, tree, num_positions)
            position = position_of_row[rows[i]]
            if position < 0:
                num_used += 1
            else:
                words[position >> 6] &= ~(_ONE << np.uint64(position & 63))
                _add(tree, position >> 6, -1)
            position_of_row[rows[i]] = num_positions
            row_at[num_positions] = rows[i]
            words[num_positions >> 6] |= _ONE << np.uint64(num_positions & 63)
            _add(tree, num_positions >> 6, 1)
            num_positions += 1
    return first


def lru_misses(
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    num_rows: int,
    weights: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Return (num_rows + 1,) misses of an LRU cache of 0, 1, … slots that starts empty, at prefetch depth 0.

    A batch needs all its rows at once. A cache with fewer slots than the largest batch has rows cannot serve
    it; the number is then that of a cache in which rows of one batch evict each other.

    Args:
        offsets: (num_batches + 1,), where each batch starts in ``rows``.
        rows: (num_uses,), distinct within each batch, numbers below ``num_rows``, best without gaps.
        num_rows: number of slots from which more slots change nothing.
        weights: (num_uses,), weight of each use, such as its lookups; None: 1.
    """
    counts = np.zeros(num_rows + 1, np.int64)
    ones = np.ones(rows.size, np.int64) if weights is None else weights
    first = add_stack_distances(offsets, rows, ones, counts)
    # A use misses with k slots if its distance is greater than k, or if it is the first.
    beyond = counts[::-1].cumsum()[::-1]
    misses: NDArray[np.int64] = first + np.append(beyond[1:], 0)
    return misses
