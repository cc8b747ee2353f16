"""The kernel of all planners: rows to load and evict per step.

One item of transfers moves the rows that its steps miss, and those that make room for them; `policies`
chooses the latter. A step costs O(its distinct rows) and an eviction O(log num_slots). Memory: 4 bytes per
row (8 where next uses are found here), 108 per slot, and 12 per row of a batch known ahead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .policies import (
    DATASET,
    LFU,
    LONG_AGO,
    LOOKAHEAD,
    NOBODY,
    PENDING,
    STATIC,
    TIE_BITS,
    UNSEEN,
    WRITTEN_BACK,
    AreaState,
    HeldSteps,
    Rule,
    WarmRows,
    choose_victims,
    compact_queue,
    empty_bucket,
    enter_bucket,
    make_evictable,
    sift_down,
)
from .step_plans import NEVER, StepPlans


@kernel
def entries_of(held: HeldSteps, step: int) -> tuple[int, int]:
    """Return the first entry of a step, and the one after its last."""
    mask = held.starts.shape[0] - 1
    return held.starts[step & mask], held.starts[(step + 1) & mask]


@kernel
def count_new_rows(state: AreaState, held: HeldSteps, served: int) -> int:
    """Count the unpinned rows of step ``served`` that the current item does not hold."""
    step = state.area[0].step
    mask = held.rows.shape[0] - 1
    num_new = 0
    first, stop = entries_of(held, served)
    for entry in range(first, stop):
        location = state.location_of_row[held.rows[entry & mask]]
        if location >= 0:
            record = state.records[location]
            num_new += record.last_use < step and not record.is_pinned
        else:
            num_new += location != PENDING
    return num_new


@kernel
def list_misses(
    state: AreaState,
    held: HeldSteps,
    served: int,
    plans: StepPlans,
    missing: NDArray[np.int64],
    locations: NDArray[np.int32],
    num_missing: int,
) -> int:
    """Keep the residents that step ``served`` uses, and list the rows it misses, which are pending then.

    Rows and their locations are written from ``num_missing`` on, those that steps served by the same item
    miss; returned is ``num_missing`` with those of this step. Slots of residents, hits and misses go to
    ``plans``.
    """
    area = state.area[0]
    step = area.step
    after = area.after
    mask = held.rows.shape[0] - 1
    first_slot = entries_of(held, plans.first_step)[0]
    first, stop = entries_of(held, served)
    hits = 0
    misses = 0
    for entry in range(first, stop):
        row = np.int64(held.rows[entry & mask])
        lookups = held.lookups[entry & mask]
        location = state.location_of_row[row]
        plans.slots[entry - first_slot] = max(location, -1)
        if location >= 0:
            hits += lookups
            record = state.records[location]
            last_use = record.last_use
            # Evictable rows are those last used up to step ``after``: this one is no more.
            if last_use < step:
                area.num_evictable -= last_use <= after and not record.is_pinned
                record.last_use = step
        # Missed by an earlier step of the same item, so it is listed already.
        elif location == PENDING:
            hits += lookups
        else:
            misses += lookups
            missing[num_missing] = row
            locations[num_missing] = location
            state.location_of_row[row] = PENDING
            num_missing += 1
    plans.num_hits[served - plans.first_step] = hits
    plans.num_misses[served - plans.first_step] = misses
    return num_missing


@kernel
def evict_victims(state: AreaState, num_victims: int, plans: StepPlans) -> None:
    """Free the slots listed in ``victims``, and list the rows that were updated there for writing back."""
    area = state.area[0]
    end = area.num_write_backs
    for i in range(num_victims):
        slot = state.victims[i]
        record = state.records[slot]
        row = record.row
        if record.is_clean:
            # Never updated: nothing is written.
            state.location_of_row[row] = record.previous_location
        else:
            state.location_of_row[row] = WRITTEN_BACK
            plans.write_back_rows[end] = row
            plans.write_back_slots[end] = slot
            end += 1
        record.row = -1
        state.free[area.num_free + i] = slot
    area.num_free += num_victims
    area.num_write_backs = end


@kernel
def load_rows(
    state: AreaState,
    rows: NDArray[np.int64],
    locations: NDArray[np.int32],
    num_rows: int,
    plans: StepPlans,
) -> None:
    """Assign free slots to the rows and list their loads."""
    area = state.area[0]
    step = area.step
    end = area.num_loads
    for i in range(num_rows):
        row = rows[i]
        # Free slots are a stack: the one vacated last is used first.
        location = np.int64(locations[i])
        area.num_free -= 1
        slot = state.free[area.num_free]
        record = state.records[slot]
        # Keys are set by the policy when the batch is served.
        state.location_of_row[row] = slot
        record.row = row
        record.last_use = step
        record.key = 0
        record.previous_location = location
        record.is_clean = 0
        plans.fetch_rows[end + i] = row
        plans.fetch_slots[end + i] = slot
        plans.fetch_is_first[end + i] = location == UNSEEN
    area.num_loads = end + num_rows


@kernel
def load_warm_rows(state: AreaState, rule: Rule, warm: WarmRows, plans: StepPlans) -> None:
    """Load the first missing ``warm`` rows that find free slots, as `load_rows` does."""
    area = state.area[0]
    queue = state.queue
    first = area.tail
    before = np.empty(1, np.int32)  # location of the row before, as `load_rows` takes it
    # From the most important on, until there is no free slot; rows that are in a slot keep it.
    for i in range(warm.rows.size):
        row = warm.rows[i]
        before[0] = state.location_of_row[row]
        is_loaded = before[0] < 0
        if is_loaded and area.num_free == 0:
            continue
        if is_loaded:
            load_rows(state, warm.rows[i : i + 1], before, 1, plans)
        record = state.records[state.location_of_row[row]]
        if is_loaded:
            record.is_clean = 1
            record.last_use = LONG_AGO

        # Pinned rows are in no queue; others are as if used before the epoch.
        if rule.policy == STATIC:
            record.is_pinned = 1
            area.num_pinned += 1
        elif is_loaded:
            queue[area.tail, 0] = state.location_of_row[row]
            queue[area.tail, 1] = LONG_AGO
            area.tail += 1
        # A key orders the heap of these two policies; of rows with equal counts the more important stays.
        if rule.policy == DATASET:
            record.key = -np.int64(state.rank_of_row[row])
        elif rule.policy == LFU:
            tie = (1 << (TIE_BITS - 1)) - 1 - i
            record.key = (warm.counts[i] << TIE_BITS) + tie

    # Turn their part of the queue round, so that the least important is evicted first.
    for i in range((area.tail - first) // 2):
        other = area.tail - 1 - i
        slot = queue[first + i, 0]
        queue[first + i, 0] = queue[other, 0]
        queue[other, 0] = slot


@kernel
def hold_steps(
    state: AreaState,
    rule: Rule,
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    lookups: NDArray[np.int64],
    next_uses: NDArray[np.int64],
    held: HeldSteps,
) -> None:
    """Append steps to those known, whose buffers have room for them.

    Args:
        state: the last known use of every row is updated where next uses are found.
        rule: fixed for a run.
        offsets: (num_steps + 1,); where the rows of each step begin.
        rows: (num_entries,).
        lookups: (num_entries,).
        next_uses: (num_entries,), read where they are given.
        held: appended to; next uses of earlier entries are written where they are found.
    """
    area = state.area[0]
    mask = held.rows.shape[0] - 1
    step_mask = held.starts.shape[0] - 1
    for local in range(offsets.shape[0] - 1):
        step = area.num_known
        first = held.starts[step & step_mask] - offsets[local]
        for i in range(offsets[local], offsets[local + 1]):
            place = (first + i) & mask
            held.rows[place] = rows[i]
            held.lookups[place] = lookups[i]
            held.next_uses[place] = NEVER if rule.finds_uses else next_uses[i]
        held.starts[(step + 1) & step_mask] = first + offsets[local + 1]
        if rule.finds_uses:
            _reveal_next_uses(state, held, step)
        area.num_known += 1


@kernel
def _reveal_next_uses(state: AreaState, held: HeldSteps, step: int) -> None:
    """Record ``step``, the newest one, as the next use after each row's last known use."""
    area = state.area[0]
    records = state.records
    mask = held.rows.shape[0] - 1
    first_held, _ = entries_of(held, area.step)
    first, stop = entries_of(held, step)
    idle_keys = np.empty(stop - first, np.int64)
    idle_slots = np.empty(idle_keys.size, np.int32)
    num_idle = 0
    for entry in range(first, stop):
        row = held.rows[entry & mask]
        location = state.location_of_row[row]
        place = np.int64(state.last_place[row])
        # The entry that was put there last, if it is of a step that is not planned yet.
        known = first_held + ((place - first_held) & mask)
        if place >= 0 and known < first and held.rows[place] == row:
            held.next_uses[place] = step  # it enters its key when it is planned
        elif location >= 0:
            # The last use is over, and its key is NEVER.
            records[location].key += (np.int64(NEVER) - step) << TIE_BITS
            if records[location].last_use <= area.after:
                idle_keys[num_idle] = records[location].key
                idle_slots[num_idle] = location
                num_idle += 1
        state.last_place[row] = entry & mask
    # Rows that are evictable already enter their bucket by age: the one used longest ago leaves first. A heap
    # puts them in order; to compile NumPy's sort takes 1 s.
    for i in range((num_idle + 2) // 4 - 1, -1, -1):
        sift_down(idle_keys, idle_slots, num_idle, idle_keys[i], idle_slots[i], i)
    for end in range(num_idle - 1, -1, -1):
        enter_bucket(state, idle_slots[0])
        sift_down(idle_keys, idle_slots, end, idle_keys[end], idle_slots[end], 0)


@kernel
def move_steps(state: AreaState, rule: Rule, held: HeldSteps, larger: HeldSteps) -> None:
    """Copy the steps that are not planned yet to larger buffers, and note where each row is now."""
    area = state.area[0]
    mask = held.rows.shape[0] - 1
    new_mask = larger.rows.shape[0] - 1
    for step in range(area.step, area.num_known + 1):
        larger.starts[step & (larger.starts.shape[0] - 1)] = held.starts[step & (held.starts.shape[0] - 1)]
    first, _ = entries_of(held, area.step)
    for entry in range(first, held.starts[area.num_known & (held.starts.shape[0] - 1)]):
        row = held.rows[entry & mask]
        larger.rows[entry & new_mask] = row
        larger.lookups[entry & new_mask] = held.lookups[entry & mask]
        larger.next_uses[entry & new_mask] = held.next_uses[entry & mask]
        if rule.finds_uses:
            state.last_place[row] = entry & new_mask


@kernel
def _record_uses(state: AreaState, rule: Rule, held: HeldSteps, served: int, plans: StepPlans) -> None:
    """List the slots of step ``served``, all of whose rows are there, and enter its uses and their keys."""
    area = state.area[0]
    queue = state.queue
    policy = rule.policy
    mask = held.rows.shape[0] - 1
    first_slot = entries_of(held, plans.first_step)[0]
    first, stop = entries_of(held, served)
    if area.tail + stop - first > queue.shape[0]:
        compact_queue(state)
    tail = area.tail
    sequence = area.sequence - first
    for entry in range(first, stop):
        slot = np.int64(plans.slots[entry - first_slot])
        if slot < 0:  # loaded since misses were listed
            slot = np.int64(state.location_of_row[held.rows[entry & mask]])
            plans.slots[entry - first_slot] = slot
        record = state.records[slot]
        # A use is an update, too: the row has to be written back when it goes.
        record.last_use = served
        record.is_clean = 0
        # Pinned rows are never evicted, so no queue has to find them.
        if not record.is_pinned:
            queue[tail, 0] = slot
            queue[tail, 1] = served
            tail += 1
        # An entry under the old key is stale now (the bucket of this step was emptied); a rank stays.
        if policy == DATASET:
            record.key = -np.int64(state.rank_of_row[held.rows[entry & mask]])
        elif policy == LOOKAHEAD:
            record.key = sequence + entry - (np.int64(held.next_uses[entry & mask]) << TIE_BITS)
            record.is_listed = 0
        elif policy == LFU:
            count = (record.key >> TIE_BITS) + held.lookups[entry & mask]
            record.key = (count << TIE_BITS) + sequence + entry
            record.is_listed = 0
    area.tail = tail
    area.sequence += stop - first


@kernel
def _end_step(state: AreaState, plans: StepPlans) -> None:
    """Go on to the next step; the lists of the plans end here for this one."""
    area = state.area[0]
    area.step += 1
    plans.fetch_offsets[area.step - plans.first_step] = area.num_loads
    plans.write_back_offsets[area.step - plans.first_step] = area.num_write_backs


@kernel
def _plan_split(state: AreaState, held: HeldSteps, plans: StepPlans) -> None:
    """Empty the staging area for a batch that runs in passes, and list the rows that the passes load."""
    area = state.area[0]
    records = state.records
    num_slots = records.shape[0]
    mask = held.rows.shape[0] - 1
    local = area.step - plans.first_step

    # Evict every resident; no list or queue has an entry afterwards.
    num_residents = 0
    for slot in range(num_slots):
        if records[slot].row >= 0:
            state.victims[num_residents] = slot
            num_residents += 1
        records[slot].last_use = NOBODY
        records[slot].is_listed = 0
    evict_victims(state, num_residents, plans)
    area.heap_size = 0
    area.num_evictable = 0
    area.front = 0
    area.boundary = 0
    area.tail = 0
    state.heads[:] = -1
    state.filled[:] = 0

    # Each pass writes its rows back itself, so that they are away again after the step.
    end = area.num_loads
    first_slot = entries_of(held, plans.first_step)[0]
    first, stop = entries_of(held, area.step)
    misses = 0
    for entry in range(first, stop):
        row = held.rows[entry & mask]
        slot = (entry - first) % num_slots
        plans.slots[entry - first_slot] = slot
        plans.fetch_slots[end] = slot
        plans.fetch_rows[end] = row
        plans.fetch_is_first[end] = state.location_of_row[row] == UNSEEN
        end += 1
        state.location_of_row[row] = WRITTEN_BACK
        misses += held.lookups[entry & mask]

    # Nothing overlaps with it: the item waits for the step before, and later ones for this one.
    area.num_loads = end
    plans.num_hits[local] = 0
    plans.num_misses[local] = misses
    plans.after[local] = area.step - 1
    plans.is_split[local] = True
    plans.is_shortened[local] = False
    plans.reach[local] = -1
    area.split_step = area.step
    _end_step(state, plans)


@kernel
def _plan_group(
    state: AreaState,
    rule: Rule,
    held: HeldSteps,
    warm: WarmRows,
    missing: NDArray[np.int64],
    locations: NDArray[np.int32],
    plans: StepPlans,
) -> int:
    """Plan the item of the next step and the steps it serves; returns 0, or the slots that it would need."""
    area = state.area[0]
    num_slots = state.records.shape[0]

    # Rows unused since step t - prefetch - 1 may be evicted from now on.
    first_step = area.step
    area.after = first_step - rule.prefetch - 1
    area.boundary, num_more = make_evictable(state, rule.policy, area.after, area.boundary)
    area.num_evictable += num_more
    if rule.policy == LFU or rule.policy == DATASET:
        area.front = area.boundary  # the heap has all that is before
    elif rule.policy == LOOKAHEAD:
        empty_bucket(state, first_step)

    # The steps this item serves, as long as their rows fit together.
    num_missing = 0
    num_new = 0
    stop = first_step
    while stop < min(first_step + rule.group, area.num_known):
        if rule.group > 1:
            num_new += count_new_rows(state, held, stop)
            if num_new > num_slots - area.num_pinned and stop > first_step:
                break
        num_missing = list_misses(state, held, stop, plans, missing, locations, num_missing)
        stop += 1

    # Evict, then load.
    area.reach = -1
    num_victims, after = choose_victims(state, rule, num_missing)
    if num_victims < 0:
        return int(num_slots + after)
    evict_victims(state, num_victims, plans)
    load_rows(state, missing, locations, num_missing, plans)
    if first_step == 0:
        load_warm_rows(state, rule, warm, plans)
    if area.split_step == first_step - 1:
        after = first_step - 1  # its passes use all slots until it ends

    # The first step of the group waits; the others have nothing to load.
    for served in range(first_step, stop):
        local = served - plans.first_step
        is_first = served == first_step
        plans.after[local] = max(after if is_first else served - rule.prefetch - 1, -1)
        plans.is_shortened[local] = is_first and after > area.after
        plans.is_split[local] = False
        plans.reach[local] = area.reach if is_first else -1
        _record_uses(state, rule, held, served, plans)
        _end_step(state, plans)
    return 0


@kernel
def plan_steps(
    state: AreaState, rule: Rule, held: HeldSteps, warm: WarmRows, last: int, plans: StepPlans
) -> int:
    """Plan steps from the next one up to ``last``, and those that its item serves, too.

    Args:
        state: updated.
        rule: fixed for a run.
        held: the steps known.
        warm: rows to load with step 0.
        last: a step that is known, and so are those that its item may serve, as far as the epoch has them.
        plans: written.

    Returns:
        0; or the number of slots that the next step needs, where there are too few. Exact.
    """
    area = state.area[0]
    num_slots = state.records.shape[0]
    area.num_loads = 0
    area.num_write_backs = 0

    # Workspace for the misses of one item.
    largest = 0
    for step in range(area.step, min(last + rule.group, area.num_known)):
        first, stop = entries_of(held, step)
        largest = max(largest, stop - first)
    missing = np.empty(min(num_slots, rule.group * largest), np.int64)
    locations = np.empty(missing.size, np.int32)

    num_needed = 0
    while area.step <= last and num_needed == 0:
        first, stop = entries_of(held, area.step)
        if stop - first <= num_slots:
            num_needed = _plan_group(state, rule, held, warm, missing, locations, plans)
        elif rule.splits:
            _plan_split(state, held, plans)
        else:
            num_needed = stop - first
    return int(num_needed)
