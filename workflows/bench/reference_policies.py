"""Reference implementations of cache policies in Python and NumPy, against which kernels are measured.

Each serves batch after batch at prefetch depth 0 from a cache that starts empty, and returns how many rows it
fetched. `lru` and `lookahead` keep dictionaries and heaps; `lfu` and `dataset` examine every slot for each
batch, as FreqCache's released code does (there with torch on a GPU). Ties are broken as in the kernels.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Batches = Sequence[NDArray[np.int64]]


def reference_lru(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the least recently used row."""
    held: OrderedDict[int, None] = OrderedDict()
    num_fetches = 0
    for batch in batches:
        rows = batch.tolist()
        missing = [row for row in rows if row not in held]
        # Used rows move to the end, so the front is the row used longest ago.
        for row in rows:
            held[row] = None
            held.move_to_end(row)
        while len(held) > num_slots:
            held.popitem(last=False)
        num_fetches += len(missing)
    return num_fetches


def reference_lookahead(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the row whose next use is farthest away (Belady)."""
    # Next uses, found from the end of the log backwards.
    never = len(batches)
    next_step = dict[int, int]()
    next_uses: list[list[int]] = []
    for step in range(len(batches) - 1, -1, -1):
        rows = batches[step].tolist()
        next_uses.append([next_step.get(row, never) for row in rows])
        next_step.update(dict.fromkeys(rows, step))
    next_uses.reverse()

    # The heap keeps stale entries; one is valid if it holds the row's current next use.
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    num_fetches = 0
    for batch, uses in zip(batches, next_uses, strict=True):
        rows = batch.tolist()
        missing = [row for row in rows if row not in held]
        used = set(rows)
        # An entry of a row of this batch is dropped here, and a new one with its next use is added below.
        while len(held) + len(missing) > num_slots:
            use, row = heapq.heappop(heap)
            if held.get(row) == -use and row not in used:
                del held[row]
        for row, use in zip(rows, uses, strict=True):
            held[row] = use
            heapq.heappush(heap, (-use, row))
        num_fetches += len(missing)
    return num_fetches


def reference_lfu(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the row with the fewest lookups since it was loaded; here each use is one lookup."""
    # Ties go by age; of the rows that fill free slots, the lowest-ranked counts as the oldest.
    sequence = -np.arange(num_slots)
    counts = np.zeros(num_slots, np.int64)
    clock = 0

    def touch(slots: NDArray[np.int64], is_new: NDArray[np.bool_]) -> None:
        nonlocal clock
        # A row that was loaded anew is counted from 0, as nothing is kept of rows without a slot.
        counts[slots[is_new]] = 0
        counts[slots] += 1
        sequence[slots] = clock + np.arange(slots.size)
        clock += slots.size

    return _over_all_slots(batches, num_slots, num_rows, lambda row: (counts << 40) + sequence, touch)


def reference_dataset(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Evict the row with the largest number, which is the lowest-ranked."""
    return _over_all_slots(batches, num_slots, num_rows, lambda row: -row, lambda slots, is_new: None)


def _over_all_slots(
    batches: Batches,
    num_slots: int,
    num_rows: int,
    keys: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    touch: Callable[[NDArray[np.int64], NDArray[np.bool_]], None],
) -> int:
    """Evict the rows with the least ``keys``; ``touch`` is called with every batch's slots."""
    row_of_slot = np.full(num_slots, -1, np.int64)
    slot_of_row = np.full(num_rows, -1, np.int64)
    num_fetches = 0
    for batch in batches:
        slots = slot_of_row[batch]
        is_missing = slots < 0
        missing = batch[is_missing]
        # Free slots are taken first, and those of victims where they do not suffice.
        free = np.flatnonzero(row_of_slot < 0)
        num_victims = missing.size - free.size
        if num_victims > 0:
            # Rows of this batch and free slots are no victims: they get the greatest key.
            order = keys(row_of_slot).copy()
            order[slots[~is_missing]] = np.iinfo(np.int64).max
            order[free] = np.iinfo(np.int64).max
            victims = np.argpartition(order, num_victims - 1)[:num_victims]
            slot_of_row[row_of_slot[victims]] = -1
            free = np.concatenate([free, victims])
        slot_of_row[missing] = free[: missing.size]
        row_of_slot[free[: missing.size]] = missing
        touch(slot_of_row[batch], is_missing)
        num_fetches += missing.size
        # After the first batch the free slots are filled with the highest-ranked rows: the warm-up.
        if batch is batches[0]:
            free = np.flatnonzero(row_of_slot < 0)
            warm = np.flatnonzero(slot_of_row[:num_slots] < 0)[: free.size]
            slot_of_row[warm] = free[: warm.size]
            row_of_slot[free[: warm.size]] = warm
    return num_fetches


def reference_lru_curve(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Compute stack distances with a Fenwick tree; return the fetches of an LRU cache of ``num_slots``."""
    num_uses = sum(batch.size for batch in batches)
    # tree holds a 1 at the position (the time) of each row's last use, in partial sums.
    tree = [0] * (num_uses + 1)
    last_use = dict[int, int]()

    def add(position: int, change: int) -> None:
        while position <= num_uses:
            tree[position] += change
            position += position & -position

    def count_up_to(position: int) -> int:
        count = 0
        while position > 0:
            count += tree[position]
            position -= position & -position
        return count

    num_fetches = 0
    clock = 0
    for batch in batches:
        rows = batch.tolist()
        # The stack distance is the number of rows used since this row was, itself included.
        for row in rows:
            position = last_use.get(row)
            num_fetches += position is None or len(last_use) - count_up_to(position) + 1 > num_slots
        # A batch's rows are used together: positions move after all distances are known.
        for row in rows:
            if row in last_use:
                add(last_use[row], -1)
            clock += 1
            last_use[row] = clock
            add(clock, 1)
    return num_fetches


REFERENCE_POLICIES = {
    "lookahead": reference_lookahead,
    "lru": reference_lru,
    "lfu": reference_lfu,
    "dataset": reference_dataset,
    "lru curve": reference_lru_curve,
}
"""Reference implementation by name of the policy; `lru curve` is `lru` at every size."""
