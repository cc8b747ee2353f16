"""The queue between a planner and the trainer: batches in, step plans out.

Plans come out in the order of batches. A planner answers in chunks, each with the plans of some steps as flat
arrays; the queue takes single step plans out of them, with slots counted on the whole fast tier.

A whole epoch of lookahead is planned in little memory: what grows with the epoch goes to nameless files. The
distinct cold rows of the batches are appended to a file as they are read; their next uses are found from its
end to its start; the plans, made a few batches at a time, go to a file too and are mapped. Memory holds the
planner with 4 bytes per cold row, as many again while next uses are found, and the current batches; both
lists of rows are mapped files as well where they do not fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.lookahead.planner import StagingPlanner
from ...stats.lookahead.step_plans import NEVER, Residents, RowStream, StepPlans, next_uses_backward
from ..rows.step_plan import Moves, SplitBatch, StepPlan, Transfer
from ..spill.run_plan import ChunkFetches, EpochFetches, SpooledArrays, mapped_zeros
from .placements import ColdRows, StagingPlacement


class PlanQueue:
    """The step plans of one width for one epoch.

    Args:
        placement: that of the width.
        planner: that of the run; None where all plans are there already.
    """

    def __init__(self, placement: StagingPlacement, planner: StagingPlanner | None) -> None:
        self._placement = placement
        self._planner = planner
        self._chunks: deque[StepPlans] = deque()
        self._fetches: deque[ChunkFetches] = deque()
        """Next fetches of the rows that each chunk writes back, where the slow tier is a file."""
        self._next_fetch = 0
        """Number of the next fetch, there."""
        self._num_taken = 0
        self.num_shortened = 0
        """Plans taken that wait for a later batch than the prefetch depth requires."""
        self.num_split = 0
        """Plans taken that run in passes."""
        self.slots_wanted = 1.0
        """Slots that the largest batch needs, as a multiple of those there are; 1 where they are enough."""
        self.num_planned = 0
        """Step plans of the epoch so far, those taken included."""
        self.flush = Transfer()
        """Writes back what is staged after the last step."""

    def add(self, cold: ColdRows) -> None:
        """Add the next batch of the epoch."""
        assert self._planner is not None
        stream = RowStream.of([cold.rows_U], [cold.lookups_U])
        self.add_chunk(self._planner.plan(stream))

    def finish(self) -> None:
        """Plan what is left: no batch follows in this epoch."""
        assert self._planner is not None
        for plans in self._planner.plan_rest():
            self.add_chunk(plans)
        self.set_flush(self._planner.end_epoch())

    def add_chunk(self, plans: StepPlans) -> None:
        """Add step plans that follow those added before."""
        if plans.num_steps:
            self._chunks.append(plans)
            self.num_planned += plans.num_steps

    @property
    def chunks(self) -> tuple[StepPlans, ...]:
        """The plans not taken yet."""
        return tuple(self._chunks)

    def set_flush(self, residents: Residents) -> None:
        """Set which rows are written back after the last step."""
        self.flush = Transfer(write_back=self._moves(residents.rows, residents.slots))

    def set_fetches(self, fetches: EpochFetches) -> None:
        """Set where rows come from and go to, before any plan is taken.

        All plans of the epoch must be there.
        """
        self._fetches.extend(fetches.chunks)
        self._next_fetch = fetches.first_fetch
        self.flush = Transfer(write_back=replace(self.flush.write_back, fetches_N=fetches.of_residents))

    def take(self, rows_U: NDArray[np.int64], *, is_fresh: bool) -> StepPlan:
        """The plan of the next step.

        Args:
            rows_U: its distinct cold rows, as they were added.
            is_fresh: whether rows that no batch has used still have their initial values.
        """
        # The chunk of this step, and the step's number in it; a chunk is dropped with its last step.
        plans = self._chunks[0]
        fetches = self._fetches[0] if self._fetches else None
        step = self._num_taken - plans.first_step
        self._num_taken += 1
        if step == plans.num_steps - 1:
            self._chunks.popleft()
            if fetches is not None:
                self._fetches.popleft()
        self.num_shortened += int(plans.is_shortened[step])
        self.num_split += int(plans.is_split[step])

        # Planners count staging slots from 0; on the fast tier they follow the slots of hot rows.
        first_slot = np.int64(self._placement.fast.num_own_slots)
        staged_U = plans.slots[plans.offsets[step] : plans.offsets[step + 1]] + first_slot

        left = slice(plans.write_back_offsets[step], plans.write_back_offsets[step + 1])
        write_back = self._moves(plans.write_back_rows[left], plans.write_back_slots[left])
        came = slice(plans.fetch_offsets[step], plans.fetch_offsets[step + 1])
        rows = plans.fetch_rows[came]
        slots = plans.fetch_slots[came]
        # A row that no batch has used is initialized in its slot rather than fetched.
        is_first = plans.fetch_is_first[came] if is_fresh else np.zeros(rows.size, np.bool_)
        after = int(plans.after[step])
        # Numbers of the fetches, where rows are found by them.
        numbers = None
        if fetches is not None:
            assert is_fresh, "rows in a file are initialized at their first use"
            write_back = replace(write_back, fetches_N=fetches.of_write_backs[left])
            numbers = np.full(rows.size, -1)
            numbers[~is_first] = self._next_fetch + np.arange(np.count_nonzero(~is_first))
            self._next_fetch += int(np.count_nonzero(~is_first))

        # More rows than slots: the transfer only makes room, the executor fetches pass by pass.
        if plans.is_split[step]:
            num_slots = self._placement.num_staging_slots
            self.slots_wanted = max(self.slots_wanted, rows_U.size / num_slots)
            split = SplitBatch(rows_U, is_first, num_slots)
            if fetches is not None:
                split = replace(split, fetches_U=numbers, next_fetches_U=fetches.of_splits[came])
            return StepPlan(transfer=Transfer(after, write_back), split=split)
        transfer = Transfer(
            after,
            write_back,
            fetch=self._moves(
                rows[~is_first], slots[~is_first], None if numbers is None else numbers[~is_first]
            ),
            initialize=self._moves(rows[is_first], slots[is_first]),
        )
        return StepPlan(transfer=transfer, staged_U=staged_U)

    def _moves(
        self, rows: NDArray[np.int32], slots: NDArray[np.int32], fetches: NDArray[np.int64] | None = None
    ) -> Moves:
        return Moves(rows.astype(np.int64), slots + np.int64(self._placement.fast.num_own_slots), fetches)


_CHUNK_ENTRIES = 1 << 17
"""Distinct rows of the steps that are planned together."""
_ARRAYS = tuple(field.name for field in fields(StepPlans) if field.name != "first_step")


class EpochSpool:
    """The batches of one epoch and width, and then their step plans.

    Args:
        placement: that of the width.
        planner: that of the run.
        folder: where the files lie.
        memory_bytes: memory that a list of all cold rows may take.
    """

    def __init__(
        self, placement: StagingPlacement, planner: StagingPlanner, folder: Path, memory_bytes: int
    ) -> None:
        self._placement = placement
        self._planner = planner
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._sizes: list[int] = [0]
        self._rows = SpooledArrays(folder, alignment=1)
        self._lookups = SpooledArrays(folder, alignment=1)

    def add(self, cold: ColdRows) -> None:
        """Add the next batch of the epoch."""
        self._sizes.append(cold.rows_U.size)
        self._rows.append(cold.rows_U.astype(np.int32))
        self._lookups.append(cold.lookups_U.astype(np.int32))

    def finish(self) -> PlanQueue:
        """Plan the epoch, whose batches are all there."""
        # The epoch's lookups are mapped, not read: only the part that is being planned is in memory.
        offsets = np.cumsum(self._sizes, dtype=np.int64)
        rows = self._rows.map_joined(np.int32)
        lookups = self._lookups.map_joined(np.int32)
        uses = self._next_uses(offsets, rows)

        # Plans go to a file as they are made, and come back as maps of it.
        spool = SpooledArrays(self._folder)
        first_steps = []
        for plans in self._plans(offsets, rows, lookups, uses):
            first_steps.append(plans.first_step)
            for name in _ARRAYS:
                spool.append(getattr(plans, name))
        arrays = spool.map()
        queue = PlanQueue(self._placement, None)
        for number, first_step in enumerate(first_steps):
            of_chunk = arrays[number * len(_ARRAYS) : (number + 1) * len(_ARRAYS)]
            queue.add_chunk(StepPlans(first_step, **dict(zip(_ARRAYS, of_chunk, strict=True))))
        # What is in a slot at the end of the epoch is written back by the flush.
        queue.set_flush(self._planner.end_epoch())
        return queue

    def _next_uses(self, offsets: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.int32]:
        num_rows = max(self._placement.slow.num_own_slots, 1)
        next_step_of_row = mapped_zeros(self._folder, num_rows, np.int32, self._memory_bytes)
        next_step_of_row[:] = NEVER
        uses = mapped_zeros(self._folder, rows.size, np.int32)
        next_uses_backward(np.arange(offsets.size - 1), offsets, rows, next_step_of_row, uses)
        return uses

    def _plans(
        self,
        offsets: NDArray[np.int64],
        rows: NDArray[np.int32],
        lookups: NDArray[np.int32],
        uses: NDArray[np.int32],
    ) -> Iterator[StepPlans]:
        """Yield the plans of a few steps after the other."""
        chunk_of_step = offsets[1:] // _CHUNK_ENTRIES
        bounds = [0, *(np.flatnonzero(np.diff(chunk_of_step)) + 1).tolist(), offsets.size - 1]
        for first, stop in pairwise(bounds):
            if first == stop:
                continue
            part = slice(int(offsets[first]), int(offsets[stop]))
            arrays: list[NDArray[Any]] = [values[part].astype(np.int64) for values in (rows, lookups, uses)]
            yield self._planner.plan(RowStream(offsets[first : stop + 1] - offsets[first], *arrays))
