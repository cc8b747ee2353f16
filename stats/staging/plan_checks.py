"""Runs step plans without moving a row, and finds the first that would read or write what it must not.

Plans that come from a file are not trusted, whatever its checksum: slots and rows are addresses of memory,
and a plan whose numbers are all in range may still read a stale row. So a plan is run on an empty staging
area that only knows which row is in which slot: 16 bytes per slot, 1 byte per row, and some nanoseconds for
each distinct row of a batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel, read_only
from .step_plans import Residents, StepPlans

_NO_FAULT = 0
_LISTS = 1
_AFTER = 2
_SLOT = 3
_ROW = 4
_NOT_HELD = 5
_IN_USE = 6
_STAGED_TWICE = 7
_TAKEN = 8
_FIRST_USE = 9
_EMPTY = 10
_OTHER_ROWS = 11
_PASSES = 12
_COUNT = 13
_FAULTS = {
    _LISTS: "its lists do not follow each other",
    _AFTER: "it begins after a step that is not before it",
    _SLOT: "a slot is outside the staging area",
    _ROW: "a row is outside the cold rows",
    _NOT_HELD: "a row is written back from a slot that does not hold it",
    _IN_USE: "a slot is emptied or filled that an earlier batch may still use",
    _STAGED_TWICE: "a row is loaded that is in a slot already",
    _TAKEN: "a row is loaded into a slot that is taken",
    _FIRST_USE: "its mark of a first use is wrong",
    _EMPTY: "a slot is read that holds no row",
    _OTHER_ROWS: "its slots do not hold the rows that its batch looks up",
    _PASSES: "it runs in passes, but not over its own rows, or not alone",
    _COUNT: "it lists another number of rows than its batch looks up",
}
"""The faults of a step plan, by the code that the kernel returns."""
_NEW = 0
_HOME = 1
_STAGED = 2
"""Locations of a row: not used yet, on the slow tier, in a slot."""


class _Area(NamedTuple):
    """A staging area without its rows."""

    row_of_slot: NDArray[np.int64]
    """(num_slots,); -1 where the slot is free."""
    last_use: NDArray[np.int64]
    """(num_slots,); the last step that used the slot; -1: none."""
    location_of_row: NDArray[np.uint8]
    """(num_rows,)."""
    progress: NDArray[np.int64]
    """(2,); the last step that all items so far have waited for, and the last step that ran in passes; -1:
    none."""


class _Plans(NamedTuple):
    """The arrays of `StepPlans` that decide what moves."""

    offsets: NDArray[np.int64]
    slots: NDArray[np.int32]
    fetch_offsets: NDArray[np.int64]
    fetch_rows: NDArray[np.int32]
    fetch_slots: NDArray[np.int32]
    fetch_is_first: NDArray[np.bool_]
    write_back_offsets: NDArray[np.int64]
    write_back_rows: NDArray[np.int32]
    write_back_slots: NDArray[np.int32]
    after: NDArray[np.int64]
    is_split: NDArray[np.bool_]


class PlanFaultError(ValueError):
    """A step plan that must not be run."""

    def __init__(self, step: int, fault: str) -> None:
        super().__init__(f"step {step}: {fault}")


class PlanChecker:
    """Checks the step plans of a run, step after step, epoch after epoch.

    Args:
        num_rows: cold rows of the width.
        num_slots: slots of its staging area.
    """

    def __init__(self, num_rows: int, num_slots: int) -> None:
        self._area = _Area(
            np.full(num_slots, -1, np.int64),
            np.full(num_slots, -1, np.int64),
            np.full(num_rows, _NEW, np.uint8),
            np.full(2, -1, np.int64),
        )
        self._next_step = 0

    def begin_epoch(self) -> None:
        """Empty the staging area; which rows were used is remembered."""
        area = self._area
        area.location_of_row[area.row_of_slot[area.row_of_slot >= 0]] = _HOME
        area.row_of_slot[:] = -1
        area.last_use[:] = -1
        area.progress[:] = -1
        self._next_step = 0

    def check(self, plans: StepPlans) -> None:
        """Run all steps of ``plans``, which follow those checked before; raises PlanFaultError."""
        self._check_numbering(plans)
        steps = plans.num_steps
        # Offsets and the arrays they cut; none may end before its last offset.
        lists: tuple[tuple[NDArray[np.int64], tuple[NDArray[Any], ...]], ...] = (
            (plans.offsets, (plans.slots,)),
            (plans.fetch_offsets, (plans.fetch_rows, plans.fetch_slots, plans.fetch_is_first)),
            (plans.write_back_offsets, (plans.write_back_rows, plans.write_back_slots)),
        )
        for offsets, values in lists:
            if offsets.size != steps + 1 or any(each.size < offsets[-1] for each in values):
                raise PlanFaultError(plans.first_step, _FAULTS[_LISTS])
        if plans.after.size != steps or plans.is_split.size != steps:
            raise PlanFaultError(plans.first_step, _FAULTS[_LISTS])
        self._run(plans, 0, steps, np.empty(0, np.int64), compares=False)

    def check_step(self, plans: StepPlans, step: int, rows: NDArray[np.int64]) -> None:
        """Run one step of plans that `check` has passed, and compare the rows its slots hold.

        Args:
            plans: a chunk of plans.
            step: number of the step within the chunk.
            rows: distinct cold rows of its batch, in the order the plan has them.

        Raises:
            PlanFaultError: the plan is for other rows.
        """
        self._run(plans, step, step + 1, rows, compares=True)

    def check_residents(self, residents: Residents) -> None:
        """Compare what is written back after the last step with what is in the slots.

        Raises:
            PlanFaultError: they differ.
        """
        left = self.residents()
        if not np.array_equal(left.slots, residents.slots) or not np.array_equal(left.rows, residents.rows):
            raise PlanFaultError(self._next_step, "other rows are left in the slots than are written back")

    def residents(self) -> Residents:
        """Return which rows are in slots now, ascending slots."""
        slots = np.flatnonzero(self._area.row_of_slot >= 0)
        return Residents(self._area.row_of_slot[slots].astype(np.int32), slots.astype(np.int32))

    def _check_numbering(self, plans: StepPlans) -> None:
        if plans.num_steps and plans.first_step != self._next_step:
            raise PlanFaultError(
                plans.first_step, f"it does not follow the step before, want {self._next_step}"
            )

    def _run(
        self, plans: StepPlans, first: int, stop: int, rows: NDArray[np.int64], *, compares: bool
    ) -> None:
        # Plans that were made are writable, those of a file are not.
        arrays = _Plans(*(read_only(getattr(plans, name)) for name in _Plans._fields))
        step, fault = _run_steps(arrays, plans.first_step, first, stop, self._area, rows, compares)
        if fault:
            raise PlanFaultError(step, _FAULTS[fault])
        self._next_step = plans.first_step + stop


@kernel
def _run_steps(
    plans: _Plans,
    first_step: int,
    first: int,
    stop: int,
    area: _Area,
    rows: NDArray[np.int64],
    compares: bool,
) -> tuple[int, int]:
    """Run the steps from ``first`` to ``stop`` of ``plans``; returns the step at fault, and a code or 0.

    Args:
        plans: the arrays; the offsets end within the lists.
        first_step: number of the first step of the plans in its epoch.
        first: the first step to run.
        stop: one past the last step to run.
        area: what is where before ``first``; that after the last step is left in it.
        rows: distinct cold rows of the batch of step ``first``, where ``compares``.
        compares: whether the slots that are read must hold ``rows``.
    """
    for i in range(first, stop):
        fault = _run_step(plans, i, first_step + i, area, rows, compares)
        if fault:
            return first_step + i, fault
    return -1, 0


@kernel
def _run_step(plans: _Plans, i: int, step: int, area: _Area, rows: NDArray[np.int64], compares: bool) -> int:
    """Run step ``i`` of ``plans``; returns a code of `_FAULTS`, or 0."""
    # The lists of a step are ranges of the arrays; whoever calls has made sure that the last one ends there.
    begin = plans.offsets[i]
    end = plans.offsets[i + 1]
    fetch_begin = plans.fetch_offsets[i]
    fetch_end = plans.fetch_offsets[i + 1]
    back_begin = plans.write_back_offsets[i]
    back_end = plans.write_back_offsets[i + 1]
    if begin < 0 or fetch_begin < 0 or back_begin < 0:
        return _LISTS
    if end < begin or fetch_end < fetch_begin or back_end < back_begin:
        return _LISTS
    if end > plans.slots.size or fetch_end > plans.fetch_rows.size or back_end > plans.write_back_rows.size:
        return _LISTS
    if compares and end - begin != rows.size:
        return _COUNT

    # Items run in order, so an item has waited for all that the items before it waited for.
    if plans.after[i] < -1 or plans.after[i] >= step:
        return _AFTER
    area.progress[0] = max(area.progress[0], plans.after[i])
    if area.progress[1] > area.progress[0] and fetch_end - fetch_begin + back_end - back_begin > 0:
        return _IN_USE

    fault = _write_back(plans, back_begin, back_end, area)
    if fault:
        return fault
    # A step in passes has the whole staging area, and leaves it empty.
    if plans.is_split[i]:
        return _run_passes(plans, i, step, area, rows, compares)
    fault = _fetch(plans, fetch_begin, fetch_end, area)
    if fault:
        return fault

    # What the batch reads is there.
    for entry in range(begin, end):
        slot = plans.slots[entry]
        if slot < 0 or slot >= area.row_of_slot.size:
            return _SLOT
        if area.row_of_slot[slot] < 0:
            return _EMPTY
        if compares and area.row_of_slot[slot] != rows[entry - begin]:
            return _OTHER_ROWS
        area.last_use[slot] = step
    return _NO_FAULT


@kernel
def _write_back(plans: _Plans, begin: int, end: int, area: _Area) -> int:
    """Empty the slots of the write-backs from ``begin`` to ``end``; returns a code of `_FAULTS`, or 0."""
    for entry in range(begin, end):
        slot = plans.write_back_slots[entry]
        row = plans.write_back_rows[entry]
        fault = _fault_of_numbers(slot, row, area.row_of_slot.size, area.location_of_row.size)
        if fault:
            return fault
        # Rows are written back from the slots that hold them, once no batch uses them any more.
        if area.row_of_slot[slot] != row:
            return _NOT_HELD
        if area.last_use[slot] > area.progress[0]:
            return _IN_USE
        area.row_of_slot[slot] = -1
        area.location_of_row[row] = _HOME
    return _NO_FAULT


@kernel
def _fetch(plans: _Plans, begin: int, end: int, area: _Area) -> int:
    """Fill the slots of the fetches from ``begin`` to ``end``; returns a code of `_FAULTS`, or 0."""
    for entry in range(begin, end):
        slot = plans.fetch_slots[entry]
        row = plans.fetch_rows[entry]
        # Numbers first: a row or slot outside its array would be read where no array is.
        fault = _fault_of_numbers(slot, row, area.row_of_slot.size, area.location_of_row.size)
        if not fault:
            fault = _fault_of_fetch(area.location_of_row[row], plans.fetch_is_first[entry])
        if fault:
            return fault
        # A slot must be empty, and the batches that used its last row must have run.
        if area.row_of_slot[slot] >= 0:
            return _TAKEN
        if area.last_use[slot] > area.progress[0]:
            return _IN_USE
        area.row_of_slot[slot] = row
        area.location_of_row[row] = _STAGED
    return _NO_FAULT


@kernel
def _run_passes(
    plans: _Plans, i: int, step: int, area: _Area, rows: NDArray[np.int64], compares: bool
) -> int:
    """Run step ``i``, which loads and writes back its own rows; returns a code of `_FAULTS`, or 0."""
    begin = plans.offsets[i]
    end = plans.offsets[i + 1]
    fetch_begin = plans.fetch_offsets[i]
    fetch_end = plans.fetch_offsets[i + 1]
    # It lists its rows once, with slots that are used again and again.
    for entry in range(fetch_begin, fetch_end):
        slot = plans.fetch_slots[entry]
        row = plans.fetch_rows[entry]
        fault = _fault_of_numbers(slot, row, area.row_of_slot.size, area.location_of_row.size)
        if not fault:
            fault = _fault_of_fetch(area.location_of_row[row], plans.fetch_is_first[entry])
        if fault:
            return fault
        position = entry - fetch_begin
        # Each entry of the step has the slot of its pass, counted round and round.
        if begin + position >= end or plans.slots[begin + position] != slot:
            return _PASSES
        if slot != position % area.row_of_slot.size or (compares and rows[position] != row):
            return _PASSES
        # Written back by the same step, so at home again.
        area.location_of_row[row] = _HOME
    if fetch_end - fetch_begin != end - begin:
        return _PASSES
    # Nothing may be staged beside it: its passes use every slot.
    for slot in range(area.row_of_slot.size):
        if area.row_of_slot[slot] >= 0:
            return _PASSES
    area.progress[1] = step
    return _NO_FAULT


@kernel
def _fault_of_numbers(slot: int, row: int, num_slots: int, num_rows: int) -> int:
    """Return a code of `_FAULTS` where a number is outside the slots or the rows, or 0."""
    # Numbers alone: what is called for each row would count references to arrays.
    if slot < 0 or slot >= num_slots:
        return _SLOT
    if row < 0 or row >= num_rows:
        return _ROW
    return _NO_FAULT


@kernel
def _fault_of_fetch(location: int, is_first: bool) -> int:
    """Return a code of `_FAULTS` where a row at ``location`` may not be loaded, or initialized; else 0."""
    if location == _STAGED:
        return _STAGED_TWICE
    if is_first != (location == _NEW):
        return _FIRST_USE
    return _NO_FAULT
