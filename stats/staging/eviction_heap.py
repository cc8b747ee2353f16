"""The heap of evictable rows of ``lfu`` and ``dataset``: four children per entry, the least key at the top.

An entry is stale once the key of its row changed; it is dropped when it is met, or when the array is full.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel


@kernel
def sift_down(
    keys: NDArray[np.int64], slots: NDArray[np.int32], end: int, key: int, slot: int, position: int
) -> None:
    """Put an entry at the free ``position`` of a heap of ``end`` entries, or below."""
    # Four children each: half the levels of a binary heap, and siblings lie side by side in memory.
    child = 4 * position + 1
    while child < end:
        least = child
        least_key = keys[child]
        for other in range(child + 1, min(child + 4, end)):
            if keys[other] < least_key:
                least = other
                least_key = keys[other]
        # Children move up until the entry is not above the least of them.
        if least_key >= key:
            break
        keys[position] = least_key
        slots[position] = slots[least]
        position = least
        child = 4 * position + 1
    keys[position] = key
    slots[position] = slot


@kernel
def _push(keys: NDArray[np.int64], slots: NDArray[np.int32], end: int, key: int, slot: int) -> None:
    """Add an entry to a heap of ``end`` entries."""
    position = end
    while position > 0 and keys[(position - 1) >> 2] > key:
        above = (position - 1) >> 2
        keys[position] = keys[above]
        slots[position] = slots[above]
        position = above
    keys[position] = key
    slots[position] = slot


@kernel
def _compact_heap(
    keys: NDArray[np.int64], slots: NDArray[np.int32], records: NDArray[np.record], end: int
) -> int:
    """Drop stale entries; returns how many are left, at most one per slot."""
    left = 0
    for i in range(end):
        if records[slots[i]].is_listed and records[slots[i]].key == keys[i]:
            keys[left] = keys[i]
            slots[left] = slots[i]
            left += 1
    # Restore the order, from the last entry that has a child to the top.
    for i in range((left + 2) // 4 - 1, -1, -1):
        sift_down(keys, slots, left, keys[i], slots[i], i)
    return left


@kernel
def enter_heap(
    keys: NDArray[np.int64],
    slots: NDArray[np.int32],
    records: NDArray[np.record],
    area: np.record,
    slot: int,
) -> None:
    """List ``slot`` in the heap by its present key.

    It takes what it needs of the state: to pass all of that makes planning a third slower.
    """
    if records[slot].is_listed:
        return
    if area.heap_size == keys.size:
        area.heap_size = _compact_heap(keys, slots, records, area.heap_size)
    _push(keys, slots, area.heap_size, records[slot].key, slot)
    area.heap_size += 1
    records[slot].is_listed = 1
