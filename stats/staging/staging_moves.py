"""The rows that one item of transfers moves: those that its steps miss, and those that make room for them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .row_locations import (
    PENDING,
    is_in_slot,
    is_pending,
    is_unseen,
    item_of,
    was_written_back_by_item,
    written_back_by,
)
from .staging_state import (
    DATASET,
    LFU,
    LONG_AGO,
    STATIC,
    TIE_BITS,
    AreaState,
    HeldSteps,
    PlanArrays,
    Rule,
    WarmRows,
)


@kernel
def entries_of(held: HeldSteps, step: int) -> tuple[int, int]:
    """Return the first entry of a step, and the one after its last."""
    mask = held.starts.shape[0] - 1
    return held.starts[step & mask], held.starts[(step + 1) & mask]


@kernel
def count_new_rows(state: AreaState, held: HeldSteps, served: int) -> int:
    """Count the rows of step ``served`` that are not pinned and that the present item does not hold yet."""
    step = state.area[0].step
    mask = held.rows.shape[0] - 1
    num_new = 0
    first, stop = entries_of(held, served)
    for entry in range(first, stop):
        location = state.location_of_row[held.rows[entry & mask]]
        if is_in_slot(location):
            record = state.records[location]
            num_new += record.last_use < step and not record.is_pinned
        else:
            num_new += not is_pending(location)
    return num_new


@kernel
def list_misses(
    state: AreaState,
    held: HeldSteps,
    served: int,
    plans: PlanArrays,
    first_planned: int,
    missing: NDArray[np.int64],
    locations: NDArray[np.int32],
    num_missing: int,
) -> int:
    """Keep the residents that step ``served`` uses, and list the rows it misses, which are pending then.

    Args:
        state: updated.
        held: the steps known.
        served: number of the step.
        plans: slots of residents, hits and misses are written.
        first_planned: the first step of ``plans``.
        missing: rows that are missed; written from ``num_missing`` on.
        locations: where each of them was; likewise.
        num_missing: rows that steps served by the same item miss.

    Returns:
        ``num_missing`` with those of this step.
    """
    area = state.area[0]
    step = area.step
    after = area.after
    mask = held.rows.shape[0] - 1
    first_slot = entries_of(held, first_planned)[0]
    first, stop = entries_of(held, served)
    hits = 0
    misses = 0
    for entry in range(first, stop):
        row = np.int64(held.rows[entry & mask])
        lookups = held.lookups[entry & mask]
        location = state.location_of_row[row]
        plans.slots[entry - first_slot] = max(location, -1)
        if is_in_slot(location):
            hits += lookups
            record = state.records[location]
            last_use = record.last_use
            # Evictable rows are those last used up to step ``after``: this one is no more.
            if last_use < step:
                area.num_evictable -= last_use <= after and not record.is_pinned
                record.last_use = step
        # Missed by an earlier step of the same item, so it is listed already.
        elif is_pending(location):
            hits += lookups
        else:
            misses += lookups
            missing[num_missing] = row
            locations[num_missing] = location
            state.location_of_row[row] = PENDING
            num_missing += 1
    plans.num_hits[served - first_planned] = hits
    plans.num_misses[served - first_planned] = misses
    return num_missing


@kernel
def evict_victims(state: AreaState, num_victims: int, plans: PlanArrays) -> None:
    """Free the slots listed in ``victims``, and list the rows that were updated there for writing back."""
    area = state.area[0]
    step = area.step
    # The location says which item writes the row back, so that a later load knows what to wait for.
    location = written_back_by(area.epoch_base + area.step)
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
        # The slot is free now; who loads into it waits for the item that vacated it.
        record.row = -1
        state.free[area.num_free + i] = slot
    area.num_free += num_victims
    plans.ends[1] = end


@kernel
def load_rows(
    state: AreaState,
    rows: NDArray[np.int64],
    locations: NDArray[np.int32],
    num_rows: int,
    plans: PlanArrays,
) -> np.int64:
    """Give the rows free slots and list their fetches; returns the item they wait for, -1 for none."""
    area = state.area[0]
    step = area.step
    end = plans.ends[0]
    waits = np.int64(-1)
    for i in range(num_rows):
        row = rows[i]
        # Free slots are a stack: the one vacated last is used first.
        location = np.int64(locations[i])
        area.num_free -= 1
        slot = state.free[area.num_free]
        record = state.records[slot]
        # The row may be on its way back still, and so may the row that had the slot.
        if was_written_back_by_item(location):
            waits = max(waits, item_of(location) - area.epoch_base)
        if record.vacated_by < step:
            waits = max(waits, record.vacated_by)
        # Keys are set by the policy when the batch is served.
        state.location_of_row[row] = slot
        record.row = row
        record.last_use = step
        record.key = 0
        record.previous_location = location
        record.is_clean = 0
        plans.fetch_rows[end + i] = row
        plans.fetch_slots[end + i] = slot
        plans.fetch_is_first[end + i] = is_unseen(location)
    plans.ends[0] = end + num_rows
    return waits


@kernel
def load_warm_rows(state: AreaState, rule: Rule, warm: WarmRows, plans: PlanArrays) -> np.int64:
    """Load the first of the ``warm`` rows that are not there and find free slots, as `load_rows` does."""
    area = state.area[0]
    queue = state.queue
    waits = np.int64(-1)
    first = area.tail
    before = np.empty(1, np.int32)  # location of the row before, as `load_rows` takes it
    # From the most important on, until there is no free slot; rows that are in a slot keep it.
    for i in range(warm.rows.size):
        row = warm.rows[i]
        before[0] = state.location_of_row[row]
        is_loaded = not is_in_slot(before[0])
        if is_loaded and area.num_free == 0:
            continue
        if is_loaded:
            waits = max(waits, load_rows(state, warm.rows[i : i + 1], before, 1, plans))
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
    return waits
