"""Makes the steps of a run ahead of the loop: reads batches, plans them, queues their transfers.

A thread does it while earlier batches are computed, at most a few batches ahead. Staging placements are
planned either a whole epoch at a time, the next one in the background while one runs, or batch by batch
with the few batches known ahead.

A batch with staging is read, and its cold lookups are located, twice: once to plan it and once to run it.
Keeping them in between would take 12 bytes per cold lookup for as far as the plan looks ahead, an epoch as a
rule: 2.5 GB for 40 million samples of 26 lookups, a fifth of them cold. The batches are mapped files, and the
second pass runs in the thread that is ahead of the loop anyway.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.staging.staging_planner import StagingPlanner
from ..data.batch import Batch
from ..data.readers import Readers
from ..data.stored_batches import StoredBatch, StoredBatches
from ..meter import Kind
from ..placements.plan_queue import PlanQueue
from ..placements.schedule_file import Schedule
from ..placements.spooled_plans import EpochSpool
from ..placements.staging_placements import ColdRows, StagingPlacement
from ..spill.mapped_arrays import SpooledArrays, mapped_zeros
from .embeddings import Embeddings
from .row_parts import used_slow_rows
from .row_width import PlannedStep, RowWidth, WidthLookups, WidthStep
from .spilled_run import SpillLimits, open_stores


@dataclass(frozen=True, slots=True)
class DoneSteps:
    """How far a resumed run has come."""

    epochs: int
    """Whole epochs that are done."""
    batches: tuple[int, ...]
    """Batches of the next one that are done, in order."""

    @classmethod
    def of(cls, numbers: NDArray[np.int32], num_batches: int) -> DoneSteps:
        """Divide the batches of all steps so far, (num_steps,), by epochs of ``num_batches``."""
        epochs = numbers.size // num_batches
        return cls(epochs, tuple(numbers[epochs * num_batches :].tolist()))


NOTHING_DONE = DoneSteps(0, ())


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
        done: where a run goes on in the middle.
        schedule: step plans made beforehand.
        stored: training batches by row; without them they are grouped here.
        readers: read batches ahead; None: each is read where its step is made.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        read: Callable[[int], Batch],
        is_hot_only: Callable[[int], bool],
        *,
        is_fresh: bool = True,
        is_resumed: bool = False,
        done: DoneSteps = NOTHING_DONE,
        schedule: Schedule | None = None,
        stored: StoredBatches | None = None,
        readers: Readers | None = None,
    ) -> None:
        self._embeddings = embeddings
        self._read = read
        self._is_hot_only = is_hot_only
        self._is_fresh = is_fresh
        self._is_resumed = is_resumed
        self._done = done
        self._schedule = schedule
        self._stored_batches = stored
        self._readers = readers or Readers()
        self._last_item = -1
        """Item of the last batch that has one."""
        self.num_shortened = 0
        """Transfers that wait for a later batch than the prefetch depth asks for."""
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
        """The steps of epochs of batches given by number; the transfers of each are queued already."""
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
        # One planner per width serves all epochs: it remembers which rows were used before.
        placements = [_staging(width) for width in self._staged]
        planners = [placement.planner() for placement in placements]
        self._mark_restored(planners)

        def new_queues() -> list[PlanQueue]:
            return [PlanQueue(*pair) for pair in zip(placements, planners, strict=True)]

        if placements[0].needs_whole_epoch or self._schedule is not None:
            yield from self._planned_by_epoch(epochs, new_queues)
        else:
            for numbers in epochs:
                yield from self._planned_online(numbers, new_queues())

    def plan_run(self, epochs: Iterable[Iterable[int]], limits: SpillLimits) -> None:
        """Plan all epochs now, and open the files of rows that do not fit in memory, which need those plans.

        Raises:
            HotsetError: the memory or the disk is too small.
        """
        planned: list[tuple[list[int], list[PlanQueue]]] = []
        planners: list[StagingPlanner] = []
        # Each epoch either has a schedule on disk or is planned here; planners go on from epoch to epoch.
        for epoch, batches in enumerate(epochs, self._done.epochs):
            numbers = list(batches)
            queues = self._scheduled(epoch, numbers)
            if queues is None:
                if not planners:
                    planners = [self._planner_within(_staging(width), limits) for width in self._staged]
                    self._mark_restored(planners)
                spools = [
                    EpochSpool(_staging(width), planner, limits.folder, limits.planning_bytes)
                    for width, planner in zip(self._staged, planners, strict=True)
                ]
                for number in numbers:
                    self._add(number, spools)
                queues = [spool.finish() for spool in spools]
            planned.append((numbers, queues))
        # A schedule's checkers keep a byte a row each, one of whole epochs and one of steps.
        plan_bytes = 2 if self._schedule is not None else 0
        restored = [self._restored_rows(width, limits) for width in self._staged]
        open_stores(self._staged, [queues for _, queues in planned], limits, plan_bytes, restored)
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
        """A planner whose one array of all cold rows is a mapped file where memory has no room for it."""
        num_rows = max(placement.slow.num_own_slots, 1)
        return placement.planner(mapped_zeros(limits.folder, num_rows, np.int32, limits.planning_bytes))

    def _planned_by_epoch(
        self, epochs: Iterable[Iterable[int]], new_queues: Callable[[], list[PlanQueue]]
    ) -> Iterator[PlannedStep]:
        """Plan each epoch as a whole, while the one before it runs."""

        # Runs in the planning thread, one epoch ahead of the run.
        def plan(epoch: int, numbers: list[int]) -> tuple[list[int], list[PlanQueue]]:
            if scheduled := self._scheduled(epoch, numbers):
                return numbers, scheduled
            queues = new_queues()
            for number in numbers:
                self._add(number, queues)
            for queue in queues:
                queue.finish()
            return numbers, queues

        # One thread: the planners take epochs in order. At most two epochs of plans are held at a time.
        with ThreadPoolExecutor(1, thread_name_prefix="plan") as pool:
            pending: deque[Future[tuple[list[int], list[PlanQueue]]]] = deque()
            for epoch, numbers in enumerate(epochs, self._done.epochs):
                pending.append(pool.submit(plan, epoch, list(numbers)))
                if len(pending) > 1:
                    yield from self._run_epoch(*pending.popleft().result())
            while pending:
                yield from self._run_epoch(*pending.popleft().result())

    def _scheduled(self, epoch: int, numbers: list[int]) -> list[PlanQueue] | None:
        """The plans of an epoch that are on disk; None unless those of all widths fit."""
        if self._schedule is None:
            return None
        staged = [number for number in numbers if self._is_staged(number)]
        num_done = 0
        if epoch == self._done.epochs:
            num_done = sum(self._is_staged(number) for number in self._done.batches)
        queues = [
            self._schedule.queue(epoch, _staging(width), width.embedding_dim, staged, num_done)
            for width in self._staged
        ]
        found = [queue for queue in queues if queue is not None]
        if len(found) == len(queues):
            return found
        # Planners remember which rows were used: a run is planned here from its first epoch or not at all.
        # A schedule that fits the first epoch and not a later one is refused by `Schedule.queue`.
        assert epoch == self._done.epochs, "a schedule is for all epochs or for none"
        self._schedule = None
        return None

    def _run_epoch(self, numbers: list[int], queues: list[PlanQueue]) -> Iterator[PlannedStep]:
        first_item = self._embeddings.transfers.num_items
        for number, read in self._readers.in_order(self._read_whole, numbers):
            yield self._take(number, read, queues, first_item)
        self._flush(queues)

    def _planned_online(self, numbers: Iterable[int], queues: list[PlanQueue]) -> Iterator[PlannedStep]:
        """Plan batch by batch; a batch waits until the planner has seen enough of those behind it."""
        first_item = self._embeddings.transfers.num_items
        waiting: deque[int] = deque()
        # A batch runs as soon as the planner holds it back no longer.
        for number in numbers:
            waiting.append(number)
            self._add(number, queues)
            while waiting and self._is_ready(waiting[0], queues):
                ready = waiting.popleft()
                yield self._take(ready, self._read_whole(ready), queues, first_item)
        # The end of the epoch is known now, so whatever was held back is planned.
        for queue in queues:
            queue.finish()
        for number in waiting:
            yield self._take(number, self._read_whole(number), queues, first_item)
        self._flush(queues)

    def _add(self, number: int, queues: Sequence[PlanQueue | EpochSpool]) -> None:
        """Read a batch for its plan alone."""
        if not self._is_staged(number):
            return
        # What `transpose` stored has the distinct rows already; otherwise the batch itself is read.
        stored = self._stored(number)
        batch = self._read(number) if stored is None else None
        for width, queue in zip(self._staged, queues, strict=True):
            if stored is not None:
                queue.add(width.stored_cold_rows(number, stored))
            elif batch is not None:
                queue.add(width.cold_rows(number, batch))

    def _stored(self, number: int) -> StoredBatch | None:
        return None if self._stored_batches is None else self._stored_batches.read(number)

    def _is_ready(self, number: int, queues: list[PlanQueue]) -> bool:
        return not self._is_staged(number) or all(queue.num_ready for queue in queues)

    def _is_staged(self, number: int) -> bool:
        return not self._is_hot_only(number) or _staging(self._staged[0]).stages_hot_only

    def _read_whole(self, number: int) -> ReadBatch:
        """Read a batch to run it: what needs no plan, and may be done in any thread."""
        batch = self._read(number)
        stored = self._stored(number)
        widths = tuple(width.read(number, batch, stored) for width in self._embeddings.widths)
        is_staged = bool(self._staged) and self._is_staged(number)
        cold = zip(self._staged, widths, strict=True) if is_staged else ()
        return ReadBatch(batch, widths, tuple(_staging(width).cold_rows(read.by_row) for width, read in cold))

    def _take(self, number: int, read: ReadBatch, queues: list[PlanQueue], first_item: int) -> PlannedStep:
        """Plan a batch and queue its transfers."""
        batch = read.batch
        if not read.cold:
            return self._embeddings.hot_step(number, batch, read.widths)
        parts = []
        for queue, lookups, cold in zip(queues, read.widths, read.cold, strict=True):
            plan = queue.take(cold.rows_U, is_fresh=self._is_fresh)
            parts.append(WidthStep(lookups.ids, lookups.by_row, plan, lookups.exchange))
        transfers = [part.plan.transfer for part in parts]
        # Each width has an ``after`` of its own; the last of them is right for all. Plans count from the
        # first batch of their epoch, items from the first of the run.
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
