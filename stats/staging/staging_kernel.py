"""The kernel of every planner of staging slots: which rows are loaded and which evicted, step by step.

A step costs O(its distinct rows) and a victim O(log num_slots). Memory: 4 bytes per row (12 where look-ahead
is limited) and 108 per slot. See `victims` for what is evicted, and `staging_moves` for what moves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .next_use_buckets import empty_bucket, enter_bucket
from .row_locations import is_in_slot, is_unseen, written_back_by
from .staging_moves import count_new_rows, evict_victims, list_misses, load_rows, load_warm_rows
from .staging_state import (
    DATASET,
    LFU,
    LOOKAHEAD,
    NOBODY,
    TIE_BITS,
    AreaState,
    PlanArrays,
    Rule,
    Steps,
    WarmRows,
)
from .step_plans import NEVER
from .victims import choose_victims, compact_queue, make_evictable


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
            elif is_in_slot(location):
                # The last use is behind us, and its key says never.
                records[location].key += (np.int64(NEVER) - first_step - other) << TIE_BITS
                if records[location].last_use <= area.after:
                    idle_keys[num_idle] = records[location].key
                    idle_slots[num_idle] = location
                    num_idle += 1
            state.last_entry[row] = area.first_entry + i
        # Rows that are evictable already enter their bucket by age: the one used longest ago leaves first.
        for i in np.argsort(idle_keys[:num_idle]):
            enter_bucket(state, idle_slots[i])
        area.num_revealed = first_step + other + 1


@kernel
def _record_uses(state: AreaState, rule: Rule, steps: Steps, local: int, plans: PlanArrays) -> None:
    """List the slots of step ``local``, all of whose rows are there, and enter its uses and their keys."""
    area = state.area[0]
    queue = state.queue
    step = area.step
    policy = rule.policy
    first, stop = steps.offsets[local], steps.offsets[local + 1]
    if area.tail + stop - first > queue.shape[0]:
        compact_queue(state)
    tail = area.tail
    sequence = area.sequence - first
    for i in range(first, stop):
        slot = np.int64(plans.slots[i])
        if slot < 0:  # loaded since misses were listed
            slot = np.int64(state.location_of_row[steps.rows[i]])
            plans.slots[i] = slot
        record = state.records[slot]
        # A use is an update, too: the row has to be written back when it goes.
        record.last_use = step
        record.is_clean = 0
        # Pinned rows are never evicted, so no queue has to find them.
        if not record.is_pinned:
            queue[tail, 0] = slot
            queue[tail, 1] = step
            tail += 1
        # An entry under the old key is stale now (the bucket of this step was emptied); a rank stays.
        if policy == DATASET:
            record.key = -np.int64(state.rank_of_row[steps.rows[i]])
        elif policy == LOOKAHEAD:
            record.key = sequence + i - (steps.next_uses[i] << TIE_BITS)
            record.is_listed = 0
        elif policy == LFU:
            count = (record.key >> TIE_BITS) + steps.lookups[i]
            record.key = (count << TIE_BITS) + sequence + i
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
    end = plans.ends[0]
    first = steps.offsets[local]
    misses = 0
    for i in range(first, steps.offsets[local + 1]):
        row = steps.rows[i]
        slot = (i - first) % num_slots
        plans.slots[i] = slot
        plans.fetch_slots[end] = slot
        plans.fetch_rows[end] = row
        plans.fetch_is_first[end] = is_unseen(state.location_of_row[row])
        end += 1
        state.location_of_row[row] = written_back_by(area.epoch_base + area.step)
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
    area.boundary, num_more = make_evictable(state, rule.policy, area.after, area.boundary)
    area.num_evictable += num_more
    if rule.policy == LFU or rule.policy == DATASET:
        area.front = area.boundary  # the heap has all that is before
    elif rule.policy == LOOKAHEAD:
        empty_bucket(state, first_step)

    # The steps this item serves, as long as their rows fit together.
    num_missing = 0
    num_held = 0
    stop = local
    while stop < min(local + rule.group, num_known):
        if rule.group > 1:
            num_held += count_new_rows(state, steps, stop)
            if num_held > num_slots - area.num_pinned and stop > local:
                break
        num_missing = list_misses(state, steps, stop, missing, locations, num_missing, plans)
        stop += 1

    # Evict, then load.
    num_victims, after = choose_victims(state, rule, num_missing)
    if num_victims < 0:
        return local, num_slots + after
    evict_victims(state, num_victims, plans)
    waits = load_rows(state, missing, locations, num_missing, plans)
    if first_step == 0:
        waits = max(waits, load_warm_rows(state, rule, warm, plans))
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
