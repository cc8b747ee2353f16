"""Reads and plans batches and queues their transfers, ahead of the loop.

A thread does this while earlier batches are computed. Staging placements are planned as batches become known,
within the window of `stats.lookahead.window`; where rows spill to disk, the whole run is planned first, and
then the row stores are opened.

A batch with staging is read, and its cold lookups are located, twice: once to plan it and once to run it. In
between only its distinct cold rows are kept, 12 bytes each. The second pass runs in the thread that is ahead
of the loop anyway.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import format_byte_size
from ...stats.lookahead.planner import StagingPlanner
from ...stats.lookahead.window import WINDOW_BYTES
from ..data.batch import Batch
from ..metrics import Kind
from ..placements.placements import ColdRows, StagingPlacement
from ..placements.plan_queue import EpochSpool, PlanQueue
from ..spill.row_store import RowStore
from ..spill.run_plan import (
    EpochPlans,
    RunFetches,
    SpillShape,
    SpooledArrays,
    choose_all_sizes,
    find_fetches,
    mapped_zeros,
)
from ..spill.spilled_tier import SpilledTier
from ..threads import Readers
from .embeddings import Embeddings, PlannedStep, RowWidth, WidthLookups, WidthStep
from .row_parts import used_slow_rows

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


def open_stores(
    widths: Sequence[RowWidth],
    epochs: Sequence[Sequence[PlanQueue]],
    limits: SpillLimits,
    restored: Sequence[NDArray[np.int64]],
) -> None:
    """Divide the memory, and open the row store of each table group.

    The plans learn where rows come from and go to.

    Args:
        widths: those with cold rows on the slow tier.
        epochs: of each epoch the plans of all widths.
        limits: of all widths together.
        restored: of each width the rows of a checkpoint, ascending, which the stores are given before the
            first step.

    Raises:
        ConfigError: the memory is too little; the hint names what would do.
        HotsetError: the disk is too small.
    """
    # Widths without cold rows have nothing to spill.
    spilling = [
        (width, [of_widths[number] for of_widths in epochs], rows_U)
        for number, (width, rows_U) in enumerate(zip(widths, restored, strict=True))
        if width.placement.slow.num_own_slots
    ]
    # The sizes follow from what the plans fetch, so these are read before memory is divided.
    found = [_fetches_of(width, queues, rows_U, limits) for width, queues, rows_U in spilling]
    shapes = [_shape_of(width, fetches) for (width, _, _), fetches in zip(spilling, found, strict=True)]
    divided = choose_all_sizes(shapes, limits.memory_bytes)
    # Each plan learns where its rows come from and go to, then the store of the width can be opened.
    for (width, queues, rows_U), fetches, shape, sizes in zip(spilling, found, shapes, divided, strict=True):
        before, *of_epochs = fetches.epochs
        for queue, of_epoch in zip(queues, of_epochs, strict=True):
            queue.set_fetches(of_epoch)
        store = RowStore(shape, sizes, fetches.rows, limits.folder)
        _slow_tier(width).open(store, rows_U, before.of_residents)


def _fetches_of(
    width: RowWidth, queues: Sequence[PlanQueue], restored_U: NDArray[np.int64], limits: SpillLimits
) -> RunFetches:
    # Restored rows are those that an epoch without a step, before all others, writes back.
    plans = [EpochPlans((), restored_U)]
    plans += [EpochPlans(queue.chunks, queue.flush.write_back.rows_N) for queue in queues]
    num_rows = width.placement.slow.num_own_slots
    return find_fetches(plans, num_rows, limits.folder, limits.planning_bytes, restored_U)


def _shape_of(width: RowWidth, fetches: RunFetches) -> SpillShape:
    slow = _slow_tier(width)
    counts = slow.layout.last_F - slow.layout.first_F
    state_width = slow.state_SW.shape[1]
    rows_of_tables = tuple(counts.tolist())
    return SpillShape(
        width.embedding_dim, state_width, rows_of_tables, fetches.fetches_of_items, fetches.used
    )


def _slow_tier(width: RowWidth) -> SpilledTier:
    slow = width.executor.slow
    assert isinstance(slow, SpilledTier)
    return slow


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A training batch as a step needs it, before it is planned."""

    batch: Batch
    widths: tuple[WidthLookups, ...]
    cold: tuple[ColdRows, ...]
    """Rows of each width that staging slots have to serve; none where the batch needs no staging."""


class StepSource:
    """The steps of a run.

    Args:
        embeddings: the rows that the steps move.
        read: returns a training batch by number.
        is_hot_only: whether a training batch looks up hot rows alone.
        is_fresh: whether rows that no batch has used still have their initial values.
        is_resumed: whether rows were restored, which are fetched at their first use from here.
        readers: read batches ahead; None: each is read where its step is made.
        window_bytes: memory that cold rows of batches known ahead may take.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        read: Callable[[int], Batch],
        is_hot_only: Callable[[int], bool],
        *,
        is_fresh: bool = True,
        is_resumed: bool = False,
        readers: Readers | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._embeddings = embeddings
        self._read = read
        self._is_hot_only = is_hot_only
        self._is_fresh = is_fresh
        self._is_resumed = is_resumed
        self._readers = readers or Readers()
        self._window_bytes = window_bytes
        self._last_item = -1
        """Item of the last batch that has one."""
        self.num_shortened = 0
        """Transfers that wait for a later batch than the prefetch depth requires."""
        self.num_split = 0
        """Batches that run in passes."""
        self.slots_wanted = 1.0
        """Slots that the largest batch of any width needs, as a multiple of those there are."""
        self._planned: list[tuple[list[int], list[PlanQueue]]] | None = None
        """Batches and plans of all epochs, where the whole run is planned before its first step."""
        # Either every width stages rows or none does: the placement is one for all of them.
        self._staged = [w for w in embeddings.widths if isinstance(w.placement, StagingPlacement)]
        assert not self._staged or len(self._staged) == len(embeddings.widths)

    def steps(self, epochs: Iterable[Iterable[int]]) -> Generator[PlannedStep]:
        """Yield the steps of epochs of given batches, with transfers queued."""
        # Without staging a step needs nothing but its own batch.
        if not self._staged:
            for numbers in epochs:
                for number, read in self._readers.in_order(self._read_whole, numbers):
                    yield self._embeddings.plan(number, read.batch, read.widths)
            return
        if self._planned is not None:
            while self._planned:
                yield from self._run_epoch(*self._planned.pop(0))
            return
        # One planner per width serves all epochs: it remembers which rows were used before, and its window.
        window_bytes = self._window_bytes // len(self._staged)
        planners = [_staging(width).planner(window_bytes) for width in self._staged]
        self._mark_restored(planners)
        for numbers in epochs:
            queues = [
                PlanQueue(_staging(width), planner)
                for width, planner in zip(self._staged, planners, strict=True)
            ]
            yield from self._run_epoch(self._planned_ahead(numbers, queues), queues)
        self._report_cap(planners)

    def _planned_ahead(self, numbers: Iterable[int], queues: list[PlanQueue]) -> Iterator[int]:
        """Yield each batch once it is planned.

        That is when enough of those after it are known.
        """
        waiting: deque[int] = deque()
        num_taken = 0
        for number in numbers:
            waiting.append(number)
            self._add(number, queues)
            while waiting and (
                not self._is_staged(waiting[0]) or all(queue.num_planned > num_taken for queue in queues)
            ):
                num_taken += self._is_staged(waiting[0])
                yield waiting.popleft()
        # The end of the epoch is known now, so whatever was held back is planned.
        for queue in queues:
            queue.finish()
        yield from waiting

    def _report_cap(self, planners: Sequence[StagingPlanner]) -> None:
        if any(planner.window is not None and planner.window.is_capped for planner in planners):
            _log.warning(
                "row movement was planned with fewer batches known ahead than would be best, because their "
                "rows take more than %s of memory: more rows move than must",
                format_byte_size(self._window_bytes),
            )

    def plan_run(self, epochs: Iterable[Iterable[int]], limits: SpillLimits) -> None:
        """Plan all epochs now, and open the spill files, which need those plans.

        Raises:
            HotsetError: the memory or the disk is too small.
        """
        planned: list[tuple[list[int], list[PlanQueue]]] = []
        planners = [self._planner_within(_staging(width), limits) for width in self._staged]
        self._mark_restored(planners)
        for batches in epochs:
            numbers = list(batches)
            spools = [
                EpochSpool(_staging(width), planner, limits.folder, limits.planning_bytes)
                for width, planner in zip(self._staged, planners, strict=True)
            ]
            for number in numbers:
                self._add(number, spools)
            planned.append((numbers, [spool.finish() for spool in spools]))
        restored = [self._restored_rows(width, limits) for width in self._staged]
        open_stores(self._staged, [queues for _, queues in planned], limits, restored)
        self._planned = planned

    def _mark_restored(self, planners: Sequence[StagingPlanner]) -> None:
        """Tell new planners which rows have other than their initial values."""
        if self._is_resumed:
            for width, planner in zip(self._staged, planners, strict=True):
                for rows_N in used_slow_rows(width):
                    planner.mark_used(rows_N)

    def _restored_rows(self, width: RowWidth, limits: SpillLimits) -> NDArray[np.int64]:
        """These rows of a width on the slow tier, ascending."""
        if not self._is_resumed:
            return np.empty(0, np.int64)
        spool = SpooledArrays(limits.folder, alignment=1)
        for rows_N in used_slow_rows(width):
            spool.append(rows_N)
        return spool.map_joined(np.int64)

    @staticmethod
    def _planner_within(placement: StagingPlacement, limits: SpillLimits) -> StagingPlanner:
        """Build a planner whose array of cold rows is mapped if memory is short."""
        num_rows = max(placement.slow.num_own_slots, 1)
        return placement.planner(0, mapped_zeros(limits.folder, num_rows, np.int32, limits.planning_bytes))

    def _run_epoch(self, numbers: Iterable[int], queues: list[PlanQueue]) -> Iterator[PlannedStep]:
        """Read the batches of an epoch, which are planned, and queue their transfers."""
        first_item = self._embeddings.transfers.num_items
        for number, read in self._readers.in_order(self._read_whole, numbers):
            yield self._take(number, read, queues, first_item)
        self._flush(queues)

    def _add(self, number: int, queues: Sequence[PlanQueue | EpochSpool]) -> None:
        """Read a batch for its plan alone."""
        if not self._is_staged(number):
            return
        batch = self._read(number)
        for width, queue in zip(self._staged, queues, strict=True):
            queue.add(width.cold_rows(number, batch))

    def _is_staged(self, number: int) -> bool:
        """Return whether a batch needs staging slots."""
        return not self._is_hot_only(number) or _staging(self._staged[0]).stages_hot_only

    def _read_whole(self, number: int) -> ReadBatch:
        """Read a batch to run it; any thread may do so.

        This part needs no plan.
        """
        batch = self._read(number)
        widths = tuple(width.read(number, batch) for width in self._embeddings.widths)
        cold = zip(self._staged, widths, strict=True) if self._staged and self._is_staged(number) else ()
        return ReadBatch(batch, widths, tuple(_staging(width).cold_rows(read.by_row) for width, read in cold))

    def _take(self, number: int, read: ReadBatch, queues: list[PlanQueue], first_item: int) -> PlannedStep:
        """Plan a batch and queue its transfers."""
        batch = read.batch
        if not self._staged:
            return self._embeddings.plan(number, batch, read.widths)
        if not read.cold:
            return self._embeddings.hot_step(number, batch, read.widths)
        parts = []
        for queue, lookups, cold in zip(queues, read.widths, read.cold, strict=True):
            plan = queue.take(cold.rows_U, is_fresh=self._is_fresh)
            parts.append(WidthStep(lookups.ids, lookups.by_row, plan, lookups.exchange))
        transfers = [part.plan.transfer for part in parts]
        # Each group has an ``after``; the last of them is right for all. Plans count from the first batch of
        # their epoch, items from the first of the run.
        after = max(transfer.after for transfer in transfers if transfer)
        after = first_item + after if after >= 0 else -1
        kind: Kind = "hot_only" if batch.is_hot_only else "mixed"
        self._last_item = self._embeddings.send(transfers, after, kind)
        own = self._embeddings.own_part(batch)
        return PlannedStep(number, own, batch.num_samples, tuple(parts), self._last_item)

    def _flush(self, queues: list[PlanQueue]) -> None:
        """Write back what is staged, once the last batch of the epoch is computed."""
        self.num_shortened += sum(queue.num_shortened for queue in queues)
        self.num_split += sum(queue.num_split for queue in queues)
        self.slots_wanted = max(self.slots_wanted, *(queue.slots_wanted for queue in queues))
        self._embeddings.send([queue.flush for queue in queues], self._last_item, "flush")


def _staging(width: RowWidth) -> StagingPlacement:
    assert isinstance(width.placement, StagingPlacement)
    return width.placement
