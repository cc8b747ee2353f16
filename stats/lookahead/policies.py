"""Choose the rows to evict, by policy: `lru`, `lfu`, `dataset` or look-ahead.

Uses are kept in a queue; a use that is no longer its row's last one is skipped. A boundary in the queue
separates the rows unused since step ``after``, which may be evicted, from the others. Evictable rows are
listed by the policy's key, unless the queue already has the policy's order. For ``lfu`` and ``dataset`` the
list is a heap with four children per entry and the least key at the top. An entry is stale once the key of
its row changed; it is dropped when it is met, or when the array is full. Look-ahead has a list of slots per
next use, and a bit per list that is not empty.

The location of a row is the number of its slot, or a negative number for any other place. The arrays of a
planner's kernel are named tuples, which compiled code accepts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .step_plans import NEVER


@kernel
def sift_down(
    keys: NDArray[np.int64], slots: NDArray[np.int32], end: int, key: int, slot: int, position: int
) -> None:
    """Insert an entry at the free ``position`` of a heap of ``end`` entries, or below."""
    # Four children each: half the levels of a binary heap, and siblings are adjacent in memory.
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


UNSEEN = -1
"""The row was never used in the run."""
WRITTEN_BACK = -2
"""It was in a slot before, and was written back."""
PENDING = -(1 << 31)
"""The present item is about to load it."""


LOOKAHEAD, LRU, LFU, DATASET, STATIC = 0, 1, 2, 3, 4
"""Policies: the row evicted has the farthest next use; the oldest last use; the fewest lookups since it was
loaded; the last place in the order of importance; is not pinned (and is evicted as soon as it may be)."""

LONG_AGO = -(1 << 30)
"""Last use of a row that was loaded before step 0."""
NOBODY = -(1 << 31)
"""Last use of a free slot."""
TIE_BITS = 33
"""Low bits of a key, which order the rows that the policy holds for equal."""

SLOT_RECORD = np.dtype(
    (
        np.record,
        [
            ("row", np.int64),  # key of the row in the slot, -1 where the slot is free
            ("last_use", np.int64),  # step of the row's last use
            ("key", np.int64),  # by which the policy evicts: the least first
            ("previous_location", np.int64),  # location of the row before it was loaded
            ("is_clean", np.int64),  # loaded before step 0 and not used yet: nothing to write back
            ("is_pinned", np.int64),  # never evicted
            ("is_listed", np.int64),  # listed for eviction by its present key, in the heap or a bucket
            ("padding", np.int64),
        ],
    )
)
"""One slot. Eight words, a line of cache: a use of a row costs one miss."""

AREA_RECORD = np.dtype(
    (
        np.record,
        [
            ("step", np.int64),  # the next step to plan, within the epoch
            ("after", np.int64),  # rows unused since this step may be evicted
            ("num_evictable", np.int64),  # how many those are
            ("front", np.int64),  # ``queue`` is in use from here to ``tail``
            ("boundary", np.int64),  # uses in ``queue`` before here are those up to step ``after``
            ("tail", np.int64),
            ("sequence", np.int64),  # uses so far, which break ties between keys
            ("heap_size", np.int64),
            ("num_free", np.int64),
            ("num_pinned", np.int64),
            ("top_word", np.int64),  # no word of ``filled`` beyond it has a bit
            ("num_known", np.int64),  # steps of the epoch whose rows are known
            ("num_loads", np.int64),  # of the plans being made, and so the next
            ("num_write_backs", np.int64),
            ("reach", np.int64),  # of the present item: see `StepPlans.reach`
            ("split_step", np.int64),  # the last step that ran in passes
        ],
    )
)
"""The scalars of a staging area."""


class Rule(NamedTuple):
    """The settings of a planner, fixed for a run."""

    policy: int
    prefetch: int
    """Item t waits for compute(t - prefetch - 1)."""
    group: int
    """Batches served by one item."""
    finds_uses: bool
    """Next uses are found as batches become known, and not given with them."""
    splits: bool
    """A batch of too many rows runs in passes instead of being refused."""


class HeldSteps(NamedTuple):
    """The steps known and not planned yet, in ring buffers whose lengths are powers of two.

    Entry n of the epoch is at n modulo the length of ``rows``, and the first entry of step t is at t modulo
    the length of ``starts``; the entry after the last step is there, too.
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    lookups: NDArray[np.int32]
    next_uses: NDArray[np.int32]


class WarmRows(NamedTuple):
    """Rows that are loaded with an epoch's first item, while slots are free."""

    rows: NDArray[np.int64]
    """(num_warm,); the most important first."""
    counts: NDArray[np.int64]
    """(num_warm,); lookups that LFU takes them to have had."""


class AreaState(NamedTuple):
    """The state of a staging area between steps."""

    location_of_row: NDArray[np.int32]
    """(num_rows,); the slot of each row, or where else it is: see `policies`."""
    rank_of_row: NDArray[np.int32]
    last_place: NDArray[np.int32]
    """(num_rows,) where next uses are found: where in `HeldSteps.rows` the row's last known use was put."""
    records: NDArray[np.record]
    """(num_slots,) of SLOT_RECORD."""
    queue: NDArray[np.int32]
    """(2 * num_slots + 1, 2), slot and step of each use in the order of uses."""
    heap_keys: NDArray[np.int64]
    """(2 * num_slots + 1,); the least key is evicted first."""
    heap_slots: NDArray[np.int32]
    heads: NDArray[np.int32]
    """(steps,): the first slot whose row is used next in the step and may be evicted, -1 where none."""
    tails: NDArray[np.int32]
    """(steps,): the last of them."""
    filled: NDArray[np.uint64]
    """(steps / 64,): a bit per step, set where it has some."""
    links: NDArray[np.int32]
    """(num_slots,): the next slot, -1 for the last."""
    free: NDArray[np.int32]
    """(num_slots,), a stack: the first ``num_free`` are free slots."""
    victims: NDArray[np.int32]
    """(num_slots,): the slots whose rows the present item evicts."""
    area: NDArray[np.record]
    """(1,) of AREA_RECORD."""


ONE = np.uint64(1)


@kernel
def next_use_of(key: int) -> int:
    """The next use in a key of look-ahead, which is -(next use << TIE_BITS) + less than 1 << TIE_BITS."""
    return ((1 << TIE_BITS) - 1 - key) >> TIE_BITS


@kernel
def enter_bucket(state: AreaState, slot: int) -> None:
    """Append ``slot`` to those with the same next use; rows without a next use are found by the queue."""
    area = state.area[0]
    record = state.records[slot]
    use = next_use_of(record.key)
    if record.is_listed or use >= NEVER:
        return
    # A chain of slots for each next use, and a bit for each chain that is not empty.
    if state.heads[use] < 0:
        state.heads[use] = slot
        state.filled[use >> 6] |= ONE << np.uint64(use & 63)
        area.top_word = max(area.top_word, use >> 6)
    else:
        state.links[state.tails[use]] = slot
    state.tails[use] = slot
    state.links[slot] = -1
    record.is_listed = 1


@kernel
def empty_bucket(state: AreaState, use: int) -> None:
    """Empty the bucket of step ``use``: all its rows are used now, or were evicted."""
    if use < state.heads.size:
        state.heads[use] = -1
        state.filled[use >> 6] &= ~(ONE << np.uint64(use & 63))


_ALL = np.uint64(2**64 - 1)


@kernel
def compact_queue(state: AreaState) -> None:
    """Drop uses that are not their row's last, and those before the front."""
    area = state.area[0]
    queue = state.queue
    boundary = area.boundary
    # Entries move to the front of the array in place: ``left`` never overtakes the entry that is read.
    left = 0
    for i in range(area.front, area.tail):
        # The boundary between used up and evictable moves with the entries around it.
        if i == boundary:
            area.boundary = left
        if state.records[queue[i, 0]].last_use == queue[i, 1]:
            queue[left, 0] = queue[i, 0]
            queue[left, 1] = queue[i, 1]
            left += 1
    if boundary == area.tail:
        area.boundary = left
    area.front = 0
    area.tail = left


@kernel
def make_evictable(state: AreaState, policy: int, after: int, boundary: int) -> tuple[int, int]:
    """Move ``boundary`` past all uses up to step ``after``, and list the rows that have no later use.

    Returns:
        The boundary, and how many rows became evictable.
    """
    area = state.area[0]
    queue = state.queue
    num_rows = 0
    while boundary < area.tail and queue[boundary, 1] <= after:
        slot = queue[boundary, 0]
        # An entry is stale if its row was used again, and has a later entry.
        if state.records[slot].last_use == queue[boundary, 1]:
            num_rows += 1
            if policy == LOOKAHEAD:
                enter_bucket(state, slot)
            elif policy == LFU or policy == DATASET:
                enter_heap(state.heap_keys, state.heap_slots, state.records, area, slot)
        boundary += 1
    return boundary, num_rows


@kernel
def _add_victim(state: AreaState, slot: int, num_victims: int) -> int:
    """Append ``slot`` to ``victims``; returns how many there are."""
    area = state.area[0]
    record = state.records[slot]
    state.victims[num_victims] = slot
    area.num_evictable -= record.last_use <= area.after
    record.last_use = NOBODY
    record.is_listed = 0
    return num_victims + 1


@kernel
def _choose_farthest(state: AreaState, need: int, after: int, boundary: int) -> None:
    """Evict by look-ahead: rows without a next use first, then the last buckets."""
    area = state.area[0]
    records = state.records
    queue = state.queue
    num_victims = 0
    area.reach = 0

    # Rows that are never used again, the one used longest ago first. The others are in buckets, so nothing
    # before the area's boundary is searched again; beyond it rows are evictable for this item alone.
    front = area.front
    while num_victims < need and front < boundary:
        slot = queue[front, 0]
        if records[slot].last_use == queue[front, 1] and next_use_of(records[slot].key) >= NEVER:
            num_victims = _add_victim(state, slot, num_victims)
        front += 1
    area.front = min(front, area.boundary)

    # From the farthest next use towards the present, 64 buckets per word; ``mask`` hides those passed over.
    word = area.top_word
    mask = _ALL
    while num_victims < need:
        bits = state.filled[word] & mask
        if bits == 0:
            if word == area.top_word and state.filled[word] == 0:
                area.top_word = max(word - 1, 0)
            word -= 1
            mask = _ALL
            continue
        bit = 63
        while not (bits >> np.uint64(bit)) & ONE:
            bit -= 1
        use = 64 * word + bit
        slot = state.heads[use]
        if records[slot].last_use > after:
            # Listed for an earlier item that waited longer, but not evictable now; nor are the next ones.
            mask = (ONE << np.uint64(bit)) - ONE
            continue
        state.heads[use] = state.links[slot]
        if state.heads[use] < 0:
            empty_bucket(state, use)
        num_victims = _add_victim(state, slot, num_victims)
        area.reach = use - area.step


@kernel
def _choose_least(state: AreaState, need: int, after: int) -> None:
    """Victims of least key by the heap."""
    area = state.area[0]
    keys = state.heap_keys
    slots = state.heap_slots
    num_victims = 0
    # The least key leaves the heap, whether it is still true or not.
    while num_victims < need:
        key = keys[0]
        slot = slots[0]
        area.heap_size -= 1
        end = area.heap_size
        sift_down(keys, slots, end, keys[end], slots[end], 0)
        record = state.records[slot]
        if not record.is_listed or record.key != key:
            continue  # stale: used since it was listed
        record.is_listed = 0
        if record.last_use <= after:  # else it is listed again when it may be evicted
            num_victims = _add_victim(state, slot, num_victims)


@kernel
def _choose_oldest(state: AreaState, need: int) -> None:
    """Victims used longest ago by the queue."""
    area = state.area[0]
    num_victims = 0
    while num_victims < need:
        slot = state.queue[area.front, 0]
        used = state.queue[area.front, 1]
        area.front += 1
        if state.records[slot].last_use == used:
            num_victims = _add_victim(state, slot, num_victims)
    area.boundary = max(area.boundary, area.front)


@kernel
def choose_victims(state: AreaState, rule: Rule, num_missing: int) -> tuple[int, int]:
    """List in ``victims`` the rows to evict so that ``num_missing`` slots are free.

    Returns:
        How many, and the step to wait for; -1 and how many more would be needed where too few may ever be
        evicted.
    """
    area = state.area[0]
    queue = state.queue
    need = num_missing - area.num_free
    after = area.after
    num_evictable = area.num_evictable
    boundary = area.boundary

    # Too few rows unused since ``after``: wait for later steps, one at a time, until there are enough.
    while num_evictable < need:
        while boundary < area.tail and state.records[queue[boundary, 0]].last_use != queue[boundary, 1]:
            boundary += 1
        if boundary == area.tail:
            return -1, need - num_evictable
        after = queue[boundary, 1]
        boundary, num_more = make_evictable(state, rule.policy, after, boundary)
        num_evictable += num_more

    # `static` evicts all that it may: only pinned rows stay.
    if rule.policy == STATIC:
        need = num_evictable
    if need <= 0:
        return 0, after
    if rule.policy == LOOKAHEAD:
        _choose_farthest(state, need, after, boundary)
    elif rule.policy == LFU or rule.policy == DATASET:
        _choose_least(state, need, after)
    else:
        _choose_oldest(state, need)
    return need, after
