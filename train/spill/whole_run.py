"""Plans a whole run before its first step, and opens its spill files, which need the plans.

A spill file holds rows by their next use. A whole epoch of lookahead is planned in little memory: what grows
with the epoch goes to nameless files. The distinct cold rows of the batches are appended to a file as they
are read; their next uses are found from its end to its start; the plans, made a few batches at a time, go to
a file too and are mapped. Memory holds the planner with 4 bytes per cold row, as many again while next uses
are found, and the current batches; both lists of rows are mapped files as well where they do not fit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.lookahead.planner import StagingPlanner
from ...stats.lookahead.step_plans import NEVER, RowStream, StepPlans, next_uses_backward
from ..execution.embeddings import used_slow_rows
from ..execution.step_source import StepSource
from ..execution.table_group import TableGroup
from ..placements.staging import ColdRows, PlanQueue, StagingPlacement
from .row_store import RowStore
from .run_plan import (
    EpochPlans,
    RunFetches,
    SpillShape,
    SpooledArrays,
    choose_all_sizes,
    find_fetches,
    mapped_zeros,
)
from .spilled_tier import SpilledTier

PLANNING_SHARE = 4
"""Part of the memory (one in so many) that a list of all cold rows may take while the run is planned.
Planning needs two such lists at a time; one that does not fit is a mapped file."""


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """The memory for cold rows, and the folder for the others."""

    memory_bytes: int
    folder: Path

    @property
    def planning_bytes(self) -> int:
        """Memory for a list of all cold rows."""
        return self.memory_bytes // PLANNING_SHARE


def plan_run(source: StepSource, epochs: Iterable[Iterable[int]], limits: SpillLimits) -> None:
    """Plan all epochs now, and open the spill files.

    Raises:
        ConfigError: the memory is too little; the hint names what would do.
        HotsetError: the disk is too small.
    """
    planned: deque[tuple[list[int], list[PlanQueue]]] = deque()
    planners = [_planner_within(group, limits) for group in source.staged]
    source.mark_restored(planners)
    for batches in epochs:
        numbers = list(batches)
        spools = [
            EpochSpool(_staging(group), planner, limits.folder, limits.planning_bytes)
            for group, planner in zip(source.staged, planners, strict=True)
        ]
        with source.readers:
            for _, cold in source.readers.in_order(source.read_cold, numbers):
                for spool, of_group in zip(spools, cold, strict=False):
                    spool.add(of_group)
        planned.append((numbers, [spool.finish() for spool in spools]))
    restored = [_restored_rows(source, group, limits) for group in source.staged]
    open_stores(source.staged, [queues for _, queues in planned], limits, restored)
    source.planned = planned


def _planner_within(group: TableGroup, limits: SpillLimits) -> StagingPlanner:
    """Build a planner whose array of cold rows is mapped if memory is short."""
    placement = _staging(group)
    num_rows = max(placement.slow.num_own_slots, 1)
    return placement.planner(0, mapped_zeros(limits.folder, num_rows, np.int32, limits.planning_bytes))


def _restored_rows(source: StepSource, group: TableGroup, limits: SpillLimits) -> NDArray[np.int64]:
    """Return the restored rows of a group on the slow tier, ascending."""
    if not source.is_resumed:
        return np.empty(0, np.int64)
    spool = SpooledArrays(limits.folder, alignment=1)
    for rows_N in used_slow_rows(group):
        spool.append(rows_N)
    return spool.map_joined(np.int64)


def open_stores(
    groups: Sequence[TableGroup],
    epochs: Sequence[Sequence[PlanQueue]],
    limits: SpillLimits,
    restored: Sequence[NDArray[np.int64]],
) -> None:
    """Divide the memory, and open the row store of each table group.

    The plans learn where rows come from and go to.

    Args:
        groups: those with cold rows on the slow tier.
        epochs: of each epoch the plans of all groups.
        limits: of all groups together.
        restored: of each group the rows of a checkpoint, ascending, which the stores are given before the
            first step.

    Raises:
        ConfigError: the memory is too little; the hint names what would do.
        HotsetError: the disk is too small.
    """
    # Widths without cold rows have nothing to spill.
    spilling = [
        (group, [of_groups[number] for of_groups in epochs], rows_U)
        for number, (group, rows_U) in enumerate(zip(groups, restored, strict=True))
        if group.placement.slow.num_own_slots
    ]
    # The sizes follow from what the plans fetch, so these are read before memory is divided.
    found = [_fetches_of(group, queues, rows_U, limits) for group, queues, rows_U in spilling]
    shapes = [_shape_of(group, fetches) for (group, _, _), fetches in zip(spilling, found, strict=True)]
    divided = choose_all_sizes(shapes, limits.memory_bytes)
    # Each plan learns where its rows come from and go to, then the store of the group can be opened.
    for (group, queues, rows_U), fetches, shape, sizes in zip(spilling, found, shapes, divided, strict=True):
        before, *of_epochs = fetches.epochs
        for queue, of_epoch in zip(queues, of_epochs, strict=True):
            queue.set_fetches(of_epoch)
        store = RowStore(shape, sizes, fetches.rows, limits.folder)
        _slow_tier(group).open(store, rows_U, before.of_residents)


def _fetches_of(
    group: TableGroup, queues: Sequence[PlanQueue], restored_U: NDArray[np.int64], limits: SpillLimits
) -> RunFetches:
    # Restored rows are those that an epoch without a step, before all others, writes back.
    plans = [EpochPlans((), restored_U)]
    plans += [EpochPlans(queue.chunks, queue.flush.write_back.rows_N) for queue in queues]
    num_rows = group.placement.slow.num_own_slots
    return find_fetches(plans, num_rows, limits.folder, limits.planning_bytes, restored_U)


def _shape_of(group: TableGroup, fetches: RunFetches) -> SpillShape:
    slow = _slow_tier(group)
    counts = slow.layout.last_F - slow.layout.first_F
    state_width = slow.state_SW.shape[1]
    rows_of_tables = tuple(counts.tolist())
    return SpillShape(
        group.embedding_dim, state_width, rows_of_tables, fetches.fetches_of_items, fetches.used
    )


def _slow_tier(group: TableGroup) -> SpilledTier:
    slow = group.slow
    assert isinstance(slow, SpilledTier)
    return slow


def _staging(group: TableGroup) -> StagingPlacement:
    assert isinstance(group.placement, StagingPlacement)
    return group.placement


_CHUNK_ENTRIES = 1 << 17
"""Distinct rows of the steps that are planned together."""
_ARRAYS = StepPlans._fields[1:]


class EpochSpool:
    """The batches of one epoch and group, and then their step plans.

    Args:
        placement: that of the group.
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
