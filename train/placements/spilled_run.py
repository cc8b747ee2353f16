"""Rows that a row store keeps on disk: the slow tier, and the plan of the whole run that the store needs.

The plan is made before the first step; the spill files are opened then. A spill file holds rows by their next
use. A whole epoch of lookahead is planned in little memory: what grows with the epoch goes to nameless files.
The distinct cold rows of the batches are appended to a file as they are read; their next uses are found from
its end to its start; the plans, made a few batches at a time, go to a file too and are mapped. Memory holds
the planner with 4 bytes per cold row, as many again while next uses are found, and the current batches; both
lists of rows are mapped files as well where they do not fit.

Rows that no batch has used are stored nowhere: their initial values are a function of (seed, table, id).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.lookahead.planner import StagingPlanner
from ...stats.lookahead.step_plans import NEVER, RowStream, StepPlans, next_uses_backward
from ..rows.embeddings import used_slow_rows
from ..rows.step_plan import ColdRows
from ..rows.table_group import TableGroup
from ..rows.tiers import FileTier, InitialValues, Layout, Moves
from ..threads import WorkThreads
from .placements import StepSource
from .spill_plan import (
    EpochPlans,
    RunFetches,
    SpillShape,
    SpooledArrays,
    choose_all_sizes,
    find_fetches,
    mapped_zeros,
)
from .spilled_rows import RowStore
from .staging import PlanQueue, StagingPlacement


class SpilledTier(FileTier):
    """Rows in a store."""

    def __init__(self, layout: Layout, embedding_dim: int, state_width: int) -> None:
        super().__init__(layout, embedding_dim, state_width)
        self._store: RowStore | None = None
        self._initial: InitialValues | None = None
        self._restored_U = np.empty(0, np.int64)
        self._next_fetches_U = self._restored_U

    @property
    def store(self) -> RowStore:
        assert self._store is not None, "the plan of the run comes first"
        return self._store

    @property
    def file_bytes(self) -> tuple[int, int]:
        return (0, 0) if self._store is None else self._store.file_bytes

    def stored_rows(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
        return iter(()) if self._store is None else self._store.newest()

    def shape_of(self, fetches: RunFetches) -> SpillShape:
        """Return what a store of these rows is like."""
        dims = (self.weights_SD.shape[1], self.state_SW.shape[1])
        counts = self.layout.last_F - self.layout.first_F
        return SpillShape(*dims, tuple(counts.tolist()), fetches.fetches_of_items, fetches.used)

    def open(self, store: RowStore, restored_U: NDArray[np.int64], next_fetches_U: NDArray[np.int64]) -> None:
        """Keep the rows in ``store`` from now on.

        Args:
            restored_U: rows, ascending, that `refill` is going to put there.
            next_fetches_U: number of the next fetch of each, -1 where there is none.
        """
        self._store = store
        self._restored_U = restored_U
        self._next_fetches_U = next_fetches_U

    def refill(
        self, rows_N: NDArray[np.int64], weights_ND: NDArray[np.float32], state_NW: NDArray[np.float32]
    ) -> None:
        """Put restored rows where their next fetches will find them."""
        if self._store is None:  # a table group without cold rows
            return
        next_fetches_N = np.array(self._next_fetches_U[np.searchsorted(self._restored_U, rows_N)])
        order_N = np.arange(rows_N.size)
        self._store.put(rows_N, next_fetches_N, weights_ND, state_NW, order_N)

    def put(self, moves: Moves, weights_SD: NDArray[np.float32], state_SW: NDArray[np.float32]) -> None:
        if moves.num_rows:
            assert moves.fetches_N is not None, "the plan says what is fetched next"
            # Copies, because mapped arrays may be read-only: the kernel would be compiled for them once more.
            rows_N, fetches_N = np.array(moves.rows_N), np.array(moves.fetches_N)
            self.store.put(rows_N, fetches_N, weights_SD, state_SW, moves.slots_N)

    def take(self, moves: Moves, weights_SD: NDArray[np.float32], state_SW: NDArray[np.float32]) -> None:
        if moves.num_rows:
            assert moves.fetches_N is not None, "the plan numbers the fetches"
            self.store.take(moves.fetches_N, weights_SD, state_SW, moves.slots_N)

    def finish(self) -> None:
        """Give memory back after the last step."""
        if self._store is not None:
            self._store.finish()

    @property
    def most_read(self) -> int:
        return 0 if self._store is None else self._store.most_read

    def initialize(self, initial: InitialValues, threads: WorkThreads | None = None) -> None:
        """Remember how rows get their initial values."""
        self._initial = initial

    def fill(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Write initial values, and over them what is stored."""
        self._fill_initial(wanted_U, weights_UD)
        self.store.pick(wanted_U, weights_UD)

    def _fill_initial(self, rows_N: NDArray[np.int64], weights_ND: NDArray[np.float32]) -> None:
        assert self._initial is not None
        weights = torch.from_numpy(weights_ND)
        self._initial.write(*self.layout.rows_at(rows_N), weights, np.arange(rows_N.size))

    def parts_of_table(self, table: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the rows of a table in id order, part by part."""
        own = self.layout.slots_of_table(table)
        if own.start == own.stop:
            return
        # A range holds rows of one table, and those of others are passed by.
        bounds = self.store.sizes.range_first
        for number in np.flatnonzero((own.start <= bounds[:-1]) & (bounds[1:] <= own.stop)).tolist():
            for weights_ND, state_NW in self.store.parts_of_range(number, self._fill_initial):
                yield torch.from_numpy(state_NW if state else weights_ND)


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
    planned: deque[tuple[list[int], Sequence[PlanQueue]]] = deque()
    planners = [_planner_within(placement, limits) for placement in source.placements]
    source.mark_restored(planners)
    for batches in epochs:
        numbers = list(batches)
        queues = [EpochSpool(*each, limits) for each in zip(source.placements, planners, strict=True)]
        with source.readers:
            for _, cold in source.readers.in_order(source.read_cold, numbers):
                for queue, of_group in zip(queues, cold, strict=False):
                    queue.add(of_group)
        for queue in queues:
            queue.finish()
        planned.append((numbers, queues))
    _open_stores(source, [queues for _, queues in planned], limits)
    source.planned = planned


def _planner_within(placement: StagingPlacement, limits: SpillLimits) -> StagingPlanner:
    """Build a planner whose array of cold rows is mapped if memory is short."""
    num_rows = max(placement.slow.num_own_slots, 1)
    return placement.planner(None, mapped_zeros(limits.folder, num_rows, np.int32, limits.planning_bytes))


def _restored_rows(source: StepSource, group: TableGroup, limits: SpillLimits) -> NDArray[np.int64]:
    """Return the restored rows of a group on the slow tier, ascending."""
    if not source.is_resumed:
        return np.empty(0, np.int64)
    spool = SpooledArrays(limits.folder)
    for rows_N in used_slow_rows(group):
        spool.append(rows_N)
    return spool.map_joined(np.int64)


def _open_stores(source: StepSource, epochs: Sequence[Sequence[PlanQueue]], limits: SpillLimits) -> None:
    """Divide the memory, and open the row store of each table group."""
    spilling = []
    # The sizes follow from what the plans fetch, so these are read before memory is divided.
    for group, *queues in zip(source.staged, *epochs, strict=True):
        slow = group.slow
        assert isinstance(slow, SpilledTier)
        # Table groups without cold rows have nothing to spill.
        if slow.layout.num_own_slots:
            restored_U = _restored_rows(source, group, limits)
            # Restored rows are those that an epoch without a step, before all others, writes back.
            plans = [EpochPlans((), restored_U)]
            plans += [EpochPlans(queue.chunks, queue.flush.write_back.rows_N) for queue in queues]
            limited = (slow.layout.num_own_slots, limits.folder, limits.planning_bytes)
            spilling.append((slow, queues, restored_U, find_fetches(plans, *limited, restored_U)))
    shapes = [slow.shape_of(fetches) for slow, _, _, fetches in spilling]
    divided = choose_all_sizes(shapes, limits.memory_bytes)
    # Each plan learns where its rows come from and go to, then the store of the group can be opened.
    for (slow, queues, rows_U, fetches), shape, sizes in zip(spilling, shapes, divided, strict=True):
        before, *of_epochs = fetches.epochs
        for queue, of_epoch in zip(queues, of_epochs, strict=True):
            queue.set_fetches(of_epoch)
        slow.open(RowStore(shape, sizes, fetches.rows, limits.folder), rows_U, before.of_residents)


_CHUNK_ENTRIES = 1 << 17
"""Distinct rows of the steps that are planned together."""
_ARRAYS = StepPlans._fields[1:]


class EpochSpool(PlanQueue):
    """The batches of one epoch and group, and then their step plans."""

    def __init__(self, placement: StagingPlacement, planner: StagingPlanner, limits: SpillLimits) -> None:
        super().__init__(placement, planner)
        self._limits = limits
        self._sizes: list[int] = [0]
        self._rows = SpooledArrays(limits.folder)
        self._lookups = SpooledArrays(limits.folder)

    def add(self, cold: ColdRows) -> None:
        self._sizes.append(cold.rows_U.size)
        self._rows.append(cold.rows_U.astype(np.int32))
        self._lookups.append(cold.lookups_U.astype(np.int32))

    def finish(self) -> None:
        # The epoch's lookups are mapped, not read: only the part that is being planned is in memory.
        offsets = np.cumsum(self._sizes, dtype=np.int64)
        rows = self._rows.map_joined(np.int32)
        lookups = self._lookups.map_joined(np.int32)
        uses = self._next_uses(offsets, rows)

        # Plans go to a file as they are made, and come back as maps of it.
        spool = SpooledArrays(self._limits.folder)
        first_steps = []
        for plans in self._plans(offsets, rows, lookups, uses):
            first_steps.append(plans.first_step)
            for name in _ARRAYS:
                spool.append(getattr(plans, name))
        arrays = iter(spool.map())
        for first_step in first_steps:
            self._add_chunk(StepPlans(first_step, *islice(arrays, len(_ARRAYS))))
        self._end_epoch()
        # The planner goes with the last epoch: it has an array of all cold rows.
        del self._planner

    def _next_uses(self, offsets: NDArray[np.int64], rows: NDArray[np.int32]) -> NDArray[np.int32]:
        num_rows = max(self._placement.slow.num_own_slots, 1)
        next_step_of_row = mapped_zeros(self._limits.folder, num_rows, np.int32, self._limits.planning_bytes)
        next_step_of_row[:] = NEVER
        uses = mapped_zeros(self._limits.folder, rows.size, np.int32)
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
            yield from self._planner.plan(RowStream(offsets[first : stop + 1] - offsets[first], *arrays))
