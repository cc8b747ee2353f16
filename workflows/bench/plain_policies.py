"""Cache policies as one would write them in Python and NumPy: the yardstick of the kernels' speed.

Each serves one batch after the other at prefetch depth 0 from a cache that starts empty, and says how many
rows it fetched. `lru` and `lookahead` keep dictionaries and heaps; `lfu` and `dataset` look at every slot for
each batch, as FreqCache's released code does (there with torch on a GPU). Ties are broken as the kernels
break them.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Batches = Sequence[NDArray[np.int64]]


def plain_lru(batches: Batches, num_slots: int, num_rows: int) -> int:
    """The row used longest ago leaves."""
    held: OrderedDict[int, None] = OrderedDict()
    num_fetches = 0
    for batch in batches:
        rows = batch.tolist()
        missing = [row for row in rows if row not in held]
        for row in rows:
            held[row] = None
            held.move_to_end(row)
        while len(held) > num_slots:
            held.popitem(last=False)
        num_fetches += len(missing)
    return num_fetches


def plain_lookahead(batches: Batches, num_slots: int, num_rows: int) -> int:
    """The row whose next use is farthest leaves."""
    never = len(batches)
    next_step = dict[int, int]()
    next_uses: list[list[int]] = []
    for step in range(len(batches) - 1, -1, -1):
        rows = batches[step].tolist()
        next_uses.append([next_step.get(row, never) for row in rows])
        next_step.update(dict.fromkeys(rows, step))
    next_uses.reverse()
    held: dict[int, int] = {}
    heap: list[tuple[int, int]] = []
    num_fetches = 0
    for batch, uses in zip(batches, next_uses, strict=True):
        rows = batch.tolist()
        missing = [row for row in rows if row not in held]
        used = set(rows)
        while len(held) + len(missing) > num_slots:
            use, row = heapq.heappop(heap)
            if held.get(row) == -use and row not in used:
                del held[row]
        for row, use in zip(rows, uses, strict=True):
            held[row] = use
            heapq.heappush(heap, (-use, row))
        num_fetches += len(missing)
    return num_fetches


def plain_lfu(batches: Batches, num_slots: int, num_rows: int) -> int:
    """The row with the fewest look-ups since it came leaves; here each use is one look-up."""
    sequence = -np.arange(num_slots)  # of the rows that fill free slots, the least important is the oldest
    counts = np.zeros(num_slots, np.int64)
    clock = 0

    def touch(slots: NDArray[np.int64], is_new: NDArray[np.bool_]) -> None:
        nonlocal clock
        counts[slots[is_new]] = 0
        counts[slots] += 1
        sequence[slots] = clock + np.arange(slots.size)
        clock += slots.size

    return _over_all_slots(batches, num_slots, num_rows, lambda row: (counts << 40) + sequence, touch)


def plain_dataset(batches: Batches, num_slots: int, num_rows: int) -> int:
    """The row of the largest number leaves."""
    return _over_all_slots(batches, num_slots, num_rows, lambda row: -row, lambda slots, is_new: None)


def _over_all_slots(
    batches: Batches,
    num_slots: int,
    num_rows: int,
    keys: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    touch: Callable[[NDArray[np.int64], NDArray[np.bool_]], None],
) -> int:
    """Evict the least of ``keys`` of the rows in the slots; ``touch`` hears of every batch's slots."""
    row_of_slot, slot_of_row = np.full(num_slots, -1, np.int64), np.full(num_rows, -1, np.int64)
    num_fetches = 0
    for batch in batches:
        slots = slot_of_row[batch]
        is_missing = slots < 0
        missing = batch[is_missing]
        free = np.flatnonzero(row_of_slot < 0)
        num_victims = missing.size - free.size
        if num_victims > 0:
            order = keys(row_of_slot).copy()
            order[slots[~is_missing]] = order[free] = np.iinfo(np.int64).max
            victims = np.argpartition(order, num_victims - 1)[:num_victims]
            slot_of_row[row_of_slot[victims]] = -1
            free = np.concatenate([free, victims])
        slot_of_row[missing], row_of_slot[free[: missing.size]] = free[: missing.size], missing
        touch(slot_of_row[batch], is_missing)
        num_fetches += missing.size
        if batch is batches[0]:
            free = np.flatnonzero(row_of_slot < 0)
            warm = np.flatnonzero(slot_of_row[:num_slots] < 0)[: free.size]
            slot_of_row[warm], row_of_slot[free[: warm.size]] = free[: warm.size], warm
    return num_fetches


def plain_lru_curve(batches: Batches, num_slots: int, num_rows: int) -> int:
    """Stack distances with a Fenwick tree in Python; fetches of a cache of ``num_slots`` from them."""
    num_uses = sum(batch.size for batch in batches)
    tree, last_use = [0] * (num_uses + 1), dict[int, int]()

    def add(place: int, change: int) -> None:
        while place <= num_uses:
            tree[place] += change
            place += place & -place

    def count_up_to(place: int) -> int:
        count = 0
        while place > 0:
            count += tree[place]
            place -= place & -place
        return count

    num_fetches, clock = 0, 0
    for batch in batches:
        rows = batch.tolist()
        for row in rows:
            place = last_use.get(row)
            num_fetches += place is None or len(last_use) - count_up_to(place) + 1 > num_slots
        for row in rows:
            if row in last_use:
                add(last_use[row], -1)
            clock += 1
            last_use[row] = clock
            add(clock, 1)
    return num_fetches


PLAIN = {
    "lookahead": plain_lookahead,
    "lru": plain_lru,
    "lfu": plain_lfu,
    "dataset": plain_dataset,
    "lru curve": plain_lru_curve,
}
"""By the name of the policy; `lru curve` is `lru` at every size."""
