"""Plans a whole epoch of lookahead in little memory: what grows with the epoch lies in files without a name.

The distinct cold rows of the batches are appended to a file as they are read; their next uses are found from
its end to its start; the plans, made a few batches at a time, go to a file too and are mapped. In memory are
the planner with its 4 bytes a cold row, as many again while next uses are found, and the batches at hand;
both lists of rows are mapped files as well where memory is too little for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.lookahead.planner import StagingPlanner
from ...stats.lookahead.step_plans import NEVER, RowStream, StepPlans, next_uses_backward
from ..spill.mapped_arrays import SpooledArrays, mapped_zeros
from .plan_queue import PlanQueue
from .staging_placements import ColdRows, StagingPlacement

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
