"""The staging area of a run: made empty, emptied at the end of each epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .row_locations import UNSEEN, WRITTEN_BACK_AT_END
from .staging_state import AREA_RECORD, LONG_AGO, NOBODY, SLOT_RECORD, TIE_BITS, AreaState


def new_area(
    num_rows: int,
    num_slots: int,
    rank_of_row: NDArray[np.int32],
    *,
    finds_uses: bool,
    location_of_row: NDArray[np.int32] | None = None,
) -> AreaState:
    """Return the empty staging area of a new run; to find next uses takes 4 bytes more a row.

    Memory for the largest array, (num_rows,), may be given: it is overwritten.
    """
    # The caller may lend the largest array, that of locations, to use its memory again.
    if location_of_row is None:
        location_of_row = np.empty(num_rows, np.int32)
    location_of_row[:] = UNSEEN
    state = AreaState(
        location_of_row=location_of_row,
        rank_of_row=rank_of_row,
        last_place=np.full(num_rows if finds_uses else 0, -1, np.int32),
        records=np.zeros(num_slots, SLOT_RECORD),
        # Twice as many entries as slots: stale ones stay until the queue or the heap is compacted.
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
    """Set everything but ``location_of_row`` and ``last_place`` to the state of an empty area at step 0."""
    area = state.area[0]
    epoch_base = area.epoch_base + area.step
    num_slots = state.records.size
    # One counter runs on over epochs; all other fields begin at zero.
    state.area[:] = 0
    area.epoch_base = epoch_base
    area.split_step = -2  # not the step before step 0
    area.num_free = num_slots
    area.after = LONG_AGO - 1
    area.sequence = 1 << (TIE_BITS - 1)  # ties of warm rows count down from here
    state.heads[:] = -1
    state.filled[:] = 0
    _empty_slots(state)


@kernel
def _empty_slots(state: AreaState) -> None:
    """Make every slot empty and free; the keys and locations in the records are written with the next row.

    In one pass over the records: assigning field by field reads each line of memory five times, which is a
    third of the time that a planner of many slots takes for a short epoch.

    Args:
        state: ``records`` and ``free`` are written.
    """
    num_slots = state.records.shape[0]
    for slot in range(num_slots):
        record = state.records[slot]
        record.row = -1
        record.vacated_by = -1
        record.last_use = NOBODY
        record.is_pinned = 0
        record.is_listed = 0
        state.free[slot] = num_slots - 1 - slot  # a stack: slot 0 is taken first


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
        # A row that was never updated here is still where it was loaded from.
        if record.is_clean:
            state.location_of_row[row] = record.previous_location
        else:
            rows[num_listed] = row
            slots[num_listed] = slot
            num_listed += 1
            state.location_of_row[row] = WRITTEN_BACK_AT_END
    return num_listed
