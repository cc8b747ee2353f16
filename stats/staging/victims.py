"""Which rows may be evicted, and which of them are: one way to choose for each policy.

Uses stand in a queue; a use that is no longer its row's last one is skipped. A boundary in the queue parts
the rows unused since step ``after``, which may be evicted, from the others. Evictable rows are listed by the
policy's key, in a heap or (look-ahead) in a bucket per next use, unless the queue is in the policy's order
already.
"""

from __future__ import annotations

import numpy as np

from ..kernel import kernel
from .eviction_heap import enter_heap, sift_down
from .next_use_buckets import ONE, empty_bucket, enter_bucket, next_use_of
from .staging_state import DATASET, LFU, LOOKAHEAD, NOBODY, STATIC, AreaState, Rule
from .step_plans import NEVER

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
        # An entry is stale where its row was used again later, and has another entry behind.
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
    """Victims of look-ahead: rows not used again by the queue, then the last buckets of those that are."""
    area = state.area[0]
    records = state.records
    queue = state.queue
    num_victims = 0
    area.reach = 0

    # Rows that are never used again, the one used longest ago first. The others stand in buckets, so nothing
    # before the area's own boundary is searched again; beyond it rows are evictable for this item alone.
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
            # Listed for an earlier item that waited longer, but not evictable now; nor are those behind it.
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
