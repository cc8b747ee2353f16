"""The kernel of every planner of staging slots: which rows are loaded and which evicted, step by step.

Uses stand in a queue; a use that is no longer its row's last one is skipped. A boundary in the queue parts
the rows unused since step ``after``, which may be evicted, from the others. Evictable rows are listed by the
policy's key, in a heap or (look-ahead) in a bucket per next use, unless the queue is in the policy's order
already. Stale entries of either are dropped when met, or when an array is full. So a step costs O(its
distinct rows) and a victim O(log num_slots). Memory: 4 bytes per row (12 where look-ahead is limited) and
108 per slot.

One file, because compiled kernels are cached by the file of the outermost one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .staging_state import AREA_RECORD, SLOT_RECORD, AreaState, PlanArrays, Rule, Steps, WarmRows

LOOKAHEAD, LRU, LFU, DATASET, STATIC = 0, 1, 2, 3, 4
"""Policies: the row evicted has the farthest next use; the oldest last use; the fewest lookups since it was
loaded; the last place in the order of importance; is not pinned (and is evicted as soon as it may be)."""

_UNSEEN = -1
_WRITTEN_BACK_AT_END = -2
_PENDING = -(1 << 31)
"""Locations of a row that is in no slot; the functions below read and write them."""
_LONG_AGO = -(1 << 30)
"""Last use of a row that was loaded before step 0."""
_NOBODY = -(1 << 31)
"""Last use of a free slot."""
_TIE_BITS = 33
_NEVER = (1 << 30) - 1  # as in step_plans; kernels see constants of their own file alone
_ONE = np.uint64(1)
_ALL = np.uint64(2**64 - 1)


def new_area(
    num_rows: int,
    num_slots: int,
    rank_of_row: NDArray[np.int32],
    *,
    limited: bool,
    location_of_row: NDArray[np.int32] | None = None,
) -> AreaState:
    """Return the empty staging area of a new run; ``limited`` look-ahead needs the last use of every row.

    Memory for the largest array, (num_rows,), may be given: it is overwritten.
    """
    if location_of_row is None:
        location_of_row = np.empty(num_rows, np.int32)
    location_of_row[:] = _UNSEEN
    state = AreaState(
        location_of_row=location_of_row,
        rank_of_row=rank_of_row,
        last_entry=np.full(num_rows if limited else 0, -1, np.int64),
        records=np.zeros(num_slots, SLOT_RECORD),
        queue=np.zeros((2 * num_slots + 1, 2), np.int32),
        heap_keys=np.zeros(2 * num_slots + 1, np.int64),
        heap_slots=np.zeros(2 * num_slots + 1, np.int32),
        heads=np.full(64, -1, np.int32),
        tails=np.full(64, -1, np.int32),
        filled=np.zeros(1, np.uint64),
        links=np.zeros(num_slots, np.int32),
        free=np.zeros(num_slots, np.int32),
        victims=np.zeros(num_slots, np.int32),
        area=np.zeros(1, AREA_RECORD),
    )
    _start_epoch(state)
    return state


def with_buckets(state: AreaState, num_steps: int) -> AreaState:
    """Return ``state`` with room for next uses below ``num_steps``."""
    if num_steps <= state.heads.size:
        return state
    num_words = max(2 * state.filled.size, num_steps // 64 + 1)
    heads = np.full(64 * num_words, -1, np.int32)
    heads[: state.heads.size] = state.heads
    tails = np.full(64 * num_words, -1, np.int32)
    tails[: state.tails.size] = state.tails
    filled = np.zeros(num_words, np.uint64)
    filled[: state.filled.size] = state.filled
    return state._replace(heads=heads, tails=tails, filled=filled)


def end_epoch(state: AreaState) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Empty the staging area and return the rows to write back, with their slots, by ascending slot.

    ``state`` is left as at the start of an epoch, but still knows which rows were used before.
    """
    rows = np.empty(state.records.size, np.int32)
    slots = np.empty(state.records.size, np.int32)
    num_listed = _list_residents(state, rows, slots)
    _start_epoch(state)
    return rows[:num_listed].copy(), slots[:num_listed].copy()


def _start_epoch(state: AreaState) -> None:
    """Set everything but ``location_of_row`` and ``last_entry`` to the state of an empty area at step 0."""
    # Numbers that run on over all epochs survive.
    area = state.area[0]
    epoch_base = area.epoch_base + area.step
    first_entry = area.first_entry
    num_slots = state.records.size
    state.area[:] = 0
    area.epoch_base = epoch_base
    area.first_entry = first_entry
    area.split_step = -2  # not the step before step 0
    area.num_free = num_slots
    area.after = _LONG_AGO - 1
    area.sequence = 1 << (_TIE_BITS - 1)  # ties of warm rows count down from here
    state.heads[:] = -1
    state.filled[:] = 0
    state.free[:] = np.arange(num_slots - 1, -1, -1)  # a stack: slot 0 is taken first
    state.records["row"] = -1
    state.records["vacated_by"] = -1
    state.records["last_use"] = _NOBODY
    state.records["is_pinned"] = 0
    state.records["is_listed"] = 0


# A row's location is the number of its slot, or a number below 0 that tells where else it is.


@kernel
def _is_in_slot(location: int) -> bool:
    return location >= 0


@kernel
def _is_unseen(location: int) -> bool:
    """Whether the row was never used in the run, so that it still has its initial values."""
    return location == _UNSEEN


@kernel
def _is_pending(location: int) -> bool:
    """Whether the present item is about to load the row."""
    return location == _PENDING


@kernel
def _was_written_back_by_item(location: int) -> bool:
    """Whether the item of a step, of this epoch or an earlier one, wrote the row back; it is not pending."""
    return location < _WRITTEN_BACK_AT_END


@kernel
def _item_of(location: int) -> int:
    """The item, counted over the run, that wrote the row back."""
    return -3 - location


@kernel
def _written_back_by(item: int) -> int:
    """The location of a row that ``item``, counted over the run, writes back."""
    return -3 - item


# The heap of evictable rows: four children per entry, the least key at the top.


@kernel
def _sift_down(
    keys: NDArray[np.int64], slots: NDArray[np.int32], end: int, key: int, slot: int, position: int
) -> None:
    """Put an entry at the free ``position`` of a heap of ``end`` entries, or below."""
    child = 4 * position + 1
    while child < end:
        least = child
        least_key = keys[child]
        for other in range(child + 1, min(child + 4, end)):
            if keys[other] < least_key:
                least = other
                least_key = keys[other]
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
        _sift_down(keys, slots, left, keys[i], slots[i], i)
    return left


@kernel
def _enter_heap(
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


# Look-ahead's buckets: a list of slots per next use, and a bit per list that is not empty.


@kernel
def _next_use(key: int) -> int:
    """The next use in a key of look-ahead, which is -(next use << _TIE_BITS) + less than 1 << _TIE_BITS."""
    return ((1 << _TIE_BITS) - 1 - key) >> _TIE_BITS


@kernel
def _enter_bucket(state: AreaState, slot: int) -> None:
    """List ``slot`` behind those with the same next use; rows without a next use are found by the queue."""
    area = state.area[0]
    record = state.records[slot]
    use = _next_use(record.key)
    if record.is_listed or use >= _NEVER:
        return
    if state.heads[use] < 0:
        state.heads[use] = slot
        state.filled[use >> 6] |= _ONE << np.uint64(use & 63)
        area.top_word = max(area.top_word, use >> 6)
    else:
        state.links[state.tails[use]] = slot
    state.tails[use] = slot
    state.links[slot] = -1
    record.is_listed = 1


@kernel
def _empty_bucket(state: AreaState, use: int) -> None:
    """Empty the bucket of step ``use``: all its rows are used now, or were evicted."""
    if use < state.heads.size:
        state.heads[use] = -1
        state.filled[use >> 6] &= ~(_ONE << np.uint64(use & 63))


# What may be evicted, and what is.


@kernel
def _compact_queue(state: AreaState) -> None:
    """Drop uses that are not their row's last, and those before the front."""
    area = state.area[0]
    queue = state.queue
    boundary = area.boundary
    left = 0
    for i in range(area.front, area.tail):
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
def _make_evictable(state: AreaState, policy: int, after: int, boundary: int) -> tuple[int, int]:
    """Move ``boundary`` past all uses up to step ``after``, and list the rows that have no later use.

    Returns:
        The boundary, and how many rows became evictable.
    """
    area = state.area[0]
    queue = state.queue
    num_rows = 0
    while boundary < area.tail and queue[boundary, 1] <= after:
        slot = queue[boundary, 0]
        if state.records[slot].last_use == queue[boundary, 1]:
            num_rows += 1
            if policy == LOOKAHEAD:
                _enter_bucket(state, slot)
            elif policy == LFU or policy == DATASET:
                _enter_heap(state.heap_keys, state.heap_slots, state.records, area, slot)
        boundary += 1
    return boundary, num_rows


@kernel
def _reveal_next_uses(state: AreaState, rule: Rule, steps: Steps, local: int, num_known: int) -> None:
    """Learn the next uses that the batches up to ``window`` ahead of step ``local`` reveal."""
    area = state.area[0]
    records = state.records
    first_step = area.step - local
    first_new = max(area.num_revealed - first_step, local)
    for other in range(first_new, min(local + rule.window + 1, num_known)):
        idle_keys = np.empty(steps.offsets[other + 1] - steps.offsets[other], np.int64)
        idle_slots = np.empty(idle_keys.size, np.int32)
        num_idle = 0
        for i in range(steps.offsets[other], steps.offsets[other + 1]):
            row = steps.rows[i]
            known = state.last_entry[row] - area.first_entry
            location = state.location_of_row[row]
            if known >= steps.offsets[local]:
                # The last known use is not planned yet: it enters its key when it is.
                steps.next_uses[known] = first_step + other
            elif _is_in_slot(location):
                # The last use is behind us, and its key says never.
                records[location].key += (np.int64(_NEVER) - first_step - other) << _TIE_BITS
                if records[location].last_use <= area.after:
                    idle_keys[num_idle] = records[location].key
                    idle_slots[num_idle] = location
                    num_idle += 1
            state.last_entry[row] = area.first_entry + i
        # Rows that are evictable already enter their bucket by age: the one used longest ago leaves first.
        for i in np.argsort(idle_keys[:num_idle]):
            _enter_bucket(state, idle_slots[i])
        area.num_revealed = first_step + other + 1


@kernel
def _count_new_rows(state: AreaState, steps: Steps, local: int) -> int:
    """Count the rows of step ``local`` that are not pinned and that the present item does not hold yet."""
    step = state.area[0].step
    num_new = 0
    for i in range(steps.offsets[local], steps.offsets[local + 1]):
        location = state.location_of_row[steps.rows[i]]
        if _is_in_slot(location):
            record = state.records[location]
            num_new += record.last_use < step and not record.is_pinned
        else:
            num_new += not _is_pending(location)
    return num_new


@kernel
def _list_misses(
    state: AreaState,
    steps: Steps,
    local: int,
    missing: NDArray[np.int64],
    locations: NDArray[np.int32],
    num_missing: int,
    plans: PlanArrays,
) -> int:
    """Keep the residents that step ``local`` uses, and list the rows it misses, which are pending then.

    Args:
        state: updated.
        steps: the steps given.
        local: number of the step among them.
        missing: rows that are missed; written from ``num_missing`` on.
        locations: where each of them was; likewise.
        num_missing: rows that steps served by the same item miss.
        plans: slots of residents, hits and misses are written.

    Returns:
        ``num_missing`` with those of this step.
    """
    area = state.area[0]
    step = area.step
    after = area.after
    hits = 0
    misses = 0
    for i in range(steps.offsets[local], steps.offsets[local + 1]):
        row = steps.rows[i]
        location = state.location_of_row[row]
        plans.slots[i] = max(location, -1)
        if _is_in_slot(location):
            hits += steps.lookups[i]
            record = state.records[location]
            last_use = record.last_use
            if last_use < step:
                area.num_evictable -= last_use <= after and not record.is_pinned
                record.last_use = step
        elif _is_pending(location):
            hits += steps.lookups[i]
        else:
            misses += steps.lookups[i]
            missing[num_missing] = row
            locations[num_missing] = location
            state.location_of_row[row] = _PENDING
            num_missing += 1
    plans.num_hits[local] = hits
    plans.num_misses[local] = misses
    return num_missing


@kernel
def _add_victim(state: AreaState, slot: int, num_victims: int) -> int:
    """Append ``slot`` to ``victims``; returns how many there are."""
    area = state.area[0]
    record = state.records[slot]
    state.victims[num_victims] = slot
    area.num_evictable -= record.last_use <= area.after
    record.last_use = _NOBODY
    record.is_listed = 0
    return num_victims + 1


@kernel
def _choose_farthest(state: AreaState, need: int, after: int, boundary: int) -> None:
    """Victims of look-ahead: rows not used again by the queue, then the last buckets of those that are."""
    area = state.area[0]
    records = state.records
    queue = state.queue
    num_victims = 0

    # Rows that are never used again, the one used longest ago first. The others stand in buckets, so nothing
    # before the area's own boundary is searched again; beyond it rows are evictable for this item alone.
    front = area.front
    while num_victims < need and front < boundary:
        slot = queue[front, 0]
        if records[slot].last_use == queue[front, 1] and _next_use(records[slot].key) >= _NEVER:
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
        while not (bits >> np.uint64(bit)) & _ONE:
            bit -= 1
        use = 64 * word + bit
        slot = state.heads[use]
        if records[slot].last_use > after:
            # Listed for an earlier item that waited longer, but not evictable now; nor are those behind it.
            mask = (_ONE << np.uint64(bit)) - _ONE
            continue
        state.heads[use] = state.links[slot]
        if state.heads[use] < 0:
            _empty_bucket(state, use)
        num_victims = _add_victim(state, slot, num_victims)


@kernel
def _choose_least(state: AreaState, need: int, after: int) -> None:
    """Victims of least key by the heap."""
    area = state.area[0]
    keys = state.heap_keys
    slots = state.heap_slots
    num_victims = 0
    while num_victims < need:
        key = keys[0]
        slot = slots[0]
        area.heap_size -= 1
        end = area.heap_size
        _sift_down(keys, slots, end, keys[end], slots[end], 0)
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
def _choose_victims(state: AreaState, rule: Rule, num_missing: int) -> tuple[int, int]:
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
        boundary, num_more = _make_evictable(state, rule.policy, after, boundary)
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


@kernel
def _evict(state: AreaState, num_victims: int, plans: PlanArrays) -> None:
    """Free the slots listed in ``victims``, and list the rows that were updated there for writing back."""
    area = state.area[0]
    step = area.step
    location = _written_back_by(area.epoch_base + area.step)
    end = plans.ends[1]
    for i in range(num_victims):
        slot = state.victims[i]
        record = state.records[slot]
        row = record.row
        if record.is_clean:
            # Never updated: nothing is written, but later loads wait for item 0, which loaded it.
            state.location_of_row[row] = record.previous_location
            record.vacated_by = 0
        else:
            state.location_of_row[row] = location
            record.vacated_by = step
            plans.write_back_rows[end] = row
            plans.write_back_slots[end] = slot
            end += 1
        record.row = -1
        state.free[area.num_free + i] = slot
    area.num_free += num_victims
    plans.ends[1] = end


@kernel
def _load(
    state: AreaState,
    rows: NDArray[np.int64],
    locations: NDArray[np.int32],
    num_rows: int,
    plans: PlanArrays,
) -> int:
    """Give the rows free slots and list their fetches; returns the item they wait for, -1 for none."""
    area = state.area[0]
    step = area.step
    end = plans.ends[0]
    waits = np.int64(-1)
    for i in range(num_rows):
        row = rows[i]
        location = np.int64(locations[i])
        area.num_free -= 1
        slot = state.free[area.num_free]
        record = state.records[slot]
        # The row may be on its way back still, and so may the row that had the slot.
        if _was_written_back_by_item(location):
            waits = max(waits, _item_of(location) - area.epoch_base)
        if record.vacated_by < step:
            waits = max(waits, record.vacated_by)
        state.location_of_row[row] = slot
        record.row = row
        record.last_use = step
        record.key = 0
        record.previous_location = location
        record.is_clean = 0
        plans.fetch_rows[end + i] = row
        plans.fetch_slots[end + i] = slot
        plans.fetch_is_first[end + i] = _is_unseen(location)
    plans.ends[0] = end + num_rows
    return waits  # type: ignore[return-value]


@kernel
def _load_warm_rows(state: AreaState, rule: Rule, warm: WarmRows, plans: PlanArrays) -> int:
    """Load the first rows of ``warm`` that are not there and for which slots are free, as `_load` does."""
    area = state.area[0]
    queue = state.queue
    waits = np.int64(-1)
    first = area.tail
    before = np.empty(1, np.int32)  # location of the row before, as `_load` takes it
    for i in range(warm.rows.size):
        row = warm.rows[i]
        before[0] = state.location_of_row[row]
        is_loaded = not _is_in_slot(before[0])
        if is_loaded and area.num_free == 0:
            continue
        if is_loaded:
            waits = max(waits, _load(state, warm.rows[i : i + 1], before, 1, plans))
        record = state.records[state.location_of_row[row]]
        if is_loaded:
            record.is_clean = 1
            record.last_use = _LONG_AGO

        # Pinned rows are in no queue; others are as if used before the epoch.
        if rule.policy == STATIC:
            record.is_pinned = 1
            area.num_pinned += 1
        elif is_loaded:
            queue[area.tail, 0] = state.location_of_row[row]
            queue[area.tail, 1] = _LONG_AGO
            area.tail += 1
        if rule.policy == DATASET:
            record.key = -np.int64(state.rank_of_row[row])
        elif rule.policy == LFU:
            tie = (1 << (_TIE_BITS - 1)) - 1 - i
            record.key = (warm.counts[i] << _TIE_BITS) + tie

    # Turn their part of the queue round, so that the least important is evicted first.
    for i in range((area.tail - first) // 2):
        other = area.tail - 1 - i
        slot = queue[first + i, 0]
        queue[first + i, 0] = queue[other, 0]
        queue[other, 0] = slot
    return waits  # type: ignore[return-value]


@kernel
def _record_uses(state: AreaState, rule: Rule, steps: Steps, local: int, plans: PlanArrays) -> None:
    """List the slots of step ``local``, all of whose rows are there, and enter its uses and their keys."""
    area = state.area[0]
    queue = state.queue
    step = area.step
    policy = rule.policy
    first, stop = steps.offsets[local], steps.offsets[local + 1]
    if area.tail + stop - first > queue.shape[0]:
        _compact_queue(state)
    tail = area.tail
    sequence = area.sequence - first
    for i in range(first, stop):
        slot = np.int64(plans.slots[i])
        if slot < 0:  # loaded since misses were listed
            slot = np.int64(state.location_of_row[steps.rows[i]])
            plans.slots[i] = slot
        record = state.records[slot]
        record.last_use = step
        record.is_clean = 0
        if not record.is_pinned:
            queue[tail, 0] = slot
            queue[tail, 1] = step
            tail += 1
        # An entry under the old key is stale now (the bucket of this step was emptied); a rank stays.
        if policy == DATASET:
            record.key = -np.int64(state.rank_of_row[steps.rows[i]])
        elif policy == LOOKAHEAD:
            record.key = sequence + i - (steps.next_uses[i] << _TIE_BITS)
            record.is_listed = 0
        elif policy == LFU:
            count = (record.key >> _TIE_BITS) + steps.lookups[i]
            record.key = (count << _TIE_BITS) + sequence + i
            record.is_listed = 0
    area.tail = tail
    area.sequence += stop - first


@kernel
def _plan_split(state: AreaState, steps: Steps, local: int, plans: PlanArrays) -> None:
    """Empty the staging area for a batch that runs in passes, and list the rows that the passes load."""
    area = state.area[0]
    records = state.records
    num_slots = records.shape[0]

    # Evict every resident; no list or queue has an entry afterwards.
    num_residents = 0
    for slot in range(num_slots):
        if records[slot].row >= 0:
            state.victims[num_residents] = slot
            num_residents += 1
        records[slot].last_use = _NOBODY
        records[slot].is_listed = 0
    _evict(state, num_residents, plans)
    area.heap_size = 0
    area.num_evictable = 0
    area.front = 0
    area.boundary = 0
    area.tail = 0
    state.heads[:] = -1
    state.filled[:] = 0

    # Each pass writes its rows back itself, so that they are away again after the step.
    end = plans.ends[0]
    first = steps.offsets[local]
    misses = 0
    for i in range(first, steps.offsets[local + 1]):
        row = steps.rows[i]
        slot = (i - first) % num_slots
        plans.slots[i] = slot
        plans.fetch_slots[end] = slot
        plans.fetch_rows[end] = row
        plans.fetch_is_first[end] = _is_unseen(state.location_of_row[row])
        end += 1
        state.location_of_row[row] = _written_back_by(area.epoch_base + area.step)
        misses += steps.lookups[i]
    for slot in range(num_slots):
        records[slot].vacated_by = area.step

    # Nothing overlaps with it: the item waits for the step before, and later ones for this one.
    plans.ends[0] = end
    plans.num_hits[local] = 0
    plans.num_misses[local] = misses
    plans.after[local] = area.step - 1
    plans.waits_for[local] = area.step - 1
    plans.is_split[local] = True
    plans.is_shortened[local] = False
    area.split_step = area.step


@kernel
def _plan_group(
    state: AreaState,
    rule: Rule,
    steps: Steps,
    warm: WarmRows,
    local: int,
    missing: NDArray[np.int64],
    locations: NDArray[np.int32],
    plans: PlanArrays,
) -> tuple[int, int]:
    """Plan the item of step ``local`` and the steps it serves; returns the step after, and slots lacking."""
    area = state.area[0]
    num_slots = state.records.shape[0]
    num_known = steps.offsets.size - 1

    # Rows unused since step t - prefetch - 1 may be evicted from now on.
    first_step = area.step
    area.after = first_step - rule.prefetch - 1
    area.boundary, num_more = _make_evictable(state, rule.policy, area.after, area.boundary)
    area.num_evictable += num_more
    if rule.policy == LFU or rule.policy == DATASET:
        area.front = area.boundary  # the heap has all that is before
    elif rule.policy == LOOKAHEAD:
        _empty_bucket(state, first_step)

    # The steps this item serves, as long as their rows fit together.
    num_missing = 0
    num_held = 0
    stop = local
    while stop < min(local + rule.group, num_known):
        if rule.group > 1:
            num_held += _count_new_rows(state, steps, stop)
            if num_held > num_slots - area.num_pinned and stop > local:
                break
        num_missing = _list_misses(state, steps, stop, missing, locations, num_missing, plans)
        stop += 1

    # Evict, then load.
    num_victims, after = _choose_victims(state, rule, num_missing)
    if num_victims < 0:
        return local, num_slots + after
    _evict(state, num_victims, plans)
    waits = _load(state, missing, locations, num_missing, plans)
    if first_step == 0:
        waits = max(waits, _load_warm_rows(state, rule, warm, plans))
    if area.split_step == first_step - 1:
        after = first_step - 1  # its passes use all slots until it ends

    # The first step of the group waits; the others have nothing to load.
    plans.is_shortened[local:stop] = False
    plans.is_shortened[local] = after > area.after
    plans.waits_for[local:stop] = -1
    plans.waits_for[local] = waits
    plans.is_split[local:stop] = False
    for served in range(local, stop):
        plans.after[served] = max(after if served == local else area.step - rule.prefetch - 1, -1)
        _record_uses(state, rule, steps, served, plans)
        area.step += 1
        plans.fetch_offsets[served + 1] = plans.ends[0]
        plans.write_back_offsets[served + 1] = plans.ends[1]
    return stop, 0


@kernel
def plan_steps(
    state: AreaState, rule: Rule, steps: Steps, warm: WarmRows, is_last: bool, plans: PlanArrays
) -> tuple[int, int]:
    """Plan the steps of ``steps`` that can be planned now.

    Args:
        state: updated.
        rule: fixed for a run.
        steps: from the first step not yet planned; ``next_uses`` is written where look-ahead is limited.
        warm: rows to load with step 0.
        is_last: no further step follows in this epoch.
        plans: written.

    Returns:
        Steps planned, and 0; or the number of slots that the next step needs, where there are too few. Exact.
    """
    area = state.area[0]
    num_slots = state.records.shape[0]
    num_known = steps.offsets.size - 1

    # Workspace for the misses of one item.
    largest = 0
    for step in range(num_known):
        largest = max(largest, steps.offsets[step + 1] - steps.offsets[step])
    missing = np.empty(min(num_slots, rule.group * largest), np.int64)
    locations = np.empty(missing.size, np.int32)

    # A step is planned once all batches are known that its item serves or its window sees.
    ahead = max(rule.group - 1, rule.window)
    local = 0
    num_needed = 0
    while local < num_known and (is_last or local + ahead < num_known) and num_needed == 0:
        if rule.window >= 0:
            _reveal_next_uses(state, rule, steps, local, num_known)
        num_rows = steps.offsets[local + 1] - steps.offsets[local]
        if num_rows <= num_slots:
            local, num_needed = _plan_group(state, rule, steps, warm, local, missing, locations, plans)
        elif rule.splits:
            _plan_split(state, steps, local, plans)
            area.step += 1
            local += 1
            plans.fetch_offsets[local] = plans.ends[0]
            plans.write_back_offsets[local] = plans.ends[1]
        else:
            num_needed = num_rows
    area.first_entry += steps.offsets[local]
    return local, num_needed


@kernel
def _list_residents(state: AreaState, rows: NDArray[np.int32], slots: NDArray[np.int32]) -> int:
    """List the rows to write back at the end of an epoch; returns how many.

    Args:
        state: locations of all residents are updated.
        rows: (num_slots,), the first are written.
        slots: (num_slots,), likewise.
    """
    num_listed = 0
    for slot in range(state.records.shape[0]):
        record = state.records[slot]
        row = record.row
        if row < 0:
            continue
        if record.is_clean:
            state.location_of_row[row] = record.previous_location
        else:
            rows[num_listed] = row
            slots[num_listed] = slot
            num_listed += 1
            state.location_of_row[row] = _WRITTEN_BACK_AT_END
    return num_listed
