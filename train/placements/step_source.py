"""Reads and plans batches and queues their transfers, ahead of the loop.

A thread does this while earlier batches are computed. Staging placements are planned as batches become known,
within the window of `stats.lookahead.step_plans`; where rows spill to disk, `spill.whole_run` has planned the
run before its first step.

A batch with staging is read, and its cold lookups are located, twice: once to plan it and once to run it. In
between only its distinct cold rows are kept, 12 bytes each. Where readers are several threads, they do both;
plans alone are made by one thread, in the order of the batches.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ...pipeline.errors import format_byte_size
from ..data.batch import Batch, Lookups
from ..metrics import Kind
from ..rows.embeddings import Embeddings, used_slow_rows
from ..rows.step_plan import ColdRows, GroupStep, PlannedStep
from ..threads import Readers

if TYPE_CHECKING:
    from ...stats.lookahead.planner import StagingPlanner
    from .staging import PlanQueue, StagingPlacement

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A training batch as a step needs it, before it is planned."""

    batch: Batch
    parts: tuple[GroupStep, ...]
    """Its lookups in each table group."""
    cold: tuple[ColdRows, ...]
    """Rows of each group that staging slots have to serve; none where the batch needs no staging."""


class StepSource:
    """The steps of a run.

    Args:
        embeddings: the rows that the steps move.
        read: returns a training batch by number.
        is_hot_only: whether a training batch looks up hot rows alone.
        is_fresh: whether rows that no batch has used still have their initial values.
        is_resumed: whether rows were restored: at its next use such a row is fetched, not initialized.
        readers: read batches ahead; None: each is read where its step is made.
        read_lookups: returns the lookups of a training batch, of which its cold rows are; None: `read`.
        window_bytes: memory that cold rows of batches known ahead may take; None: `WINDOW_BYTES`.
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
        read_lookups: Callable[[int], Lookups] | None = None,
        window_bytes: int | None = None,
    ) -> None:
        self._embeddings = embeddings
        self._read = read
        self._read_lookups = read_lookups or read
        self._is_hot_only = is_hot_only
        self._is_fresh = is_fresh
        self.is_resumed = is_resumed
        self.readers = readers or Readers()
        self._last_item = -1
        """Item of the last batch that has one."""
        self.num_shortened = 0
        """Transfers that wait for a later batch than the prefetch depth requires."""
        self.num_split = 0
        """Batches that run in passes."""
        self.slots_wanted = 1.0
        """Slots that the largest batch of any group needs, as a multiple of those there are."""
        self.planned: deque[tuple[list[int], Sequence[PlanQueue]]] | None = None
        """Batches and plans of all epochs, where the whole run is planned before its first step."""
        # Either every group stages rows or none does: the placement is one for all of them.
        self.staged = [group for group in embeddings.groups if group.placement.is_staging]
        """Table groups whose cold rows are staged."""
        self.placements = [cast("StagingPlacement", group.placement) for group in self.staged]
        assert not self.staged or len(self.staged) == len(embeddings.groups)
        self._window_bytes = window_bytes

    def steps(
        self,
        epochs: Iterable[Iterable[int]],
        prepare: Callable[[PlannedStep], PlannedStep] | None = None,
    ) -> Generator[PlannedStep]:
        """Yield the steps of epochs of given batches, queued and prepared."""
        with self.readers:
            for numbers, queues in self._epochs(epochs):
                first_item = self._embeddings.transfers.num_items
                for number, read in self.readers.in_order(self._read_whole, numbers):
                    step = self._plan(number, read, queues, first_item)
                    yield step if prepare is None else prepare(step)
                if queues:
                    self._flush(queues)

    def _epochs(self, epochs: Iterable[Iterable[int]]) -> Iterator[tuple[Iterable[int], Sequence[PlanQueue]]]:
        """Yield the batches of each epoch, and the queues of their plans."""
        if self.planned is not None:
            while self.planned:
                yield self.planned.popleft()
            return
        if not self.staged:
            for numbers in epochs:
                yield numbers, ()
            return
        from ...stats.lookahead.step_plans import WINDOW_BYTES
        from .staging import PlanQueue

        window_bytes = WINDOW_BYTES if self._window_bytes is None else self._window_bytes
        # One planner per group serves all epochs: it remembers which rows were used before, and its window.
        planners = [each.planner(window_bytes // len(self.staged)) for each in self.placements]
        self.mark_restored(planners)
        for numbers in epochs:
            queues = list(map(PlanQueue, self.placements, planners))
            yield self._window(numbers, queues), queues
        if any(planner.window is not None and planner.window.is_capped for planner in planners):
            _log.warning(
                "row movement was planned with fewer batches known ahead than would be best, because their "
                "rows take more than %s of memory: more rows move than must",
                format_byte_size(window_bytes),
            )

    def _window(self, numbers: Iterable[int], queues: Sequence[PlanQueue]) -> Iterator[int]:
        """Yield each batch once it is planned: when enough of those after it are known."""
        waiting: deque[int] = deque()
        num_taken = 0
        for number, cold in self.readers.in_order(self.read_cold, numbers):
            waiting.append(number)
            for queue, of_group in zip(queues, cold, strict=False):
                queue.add(of_group)
            while waiting and (
                not self._is_staged(waiting[0]) or all(queue.num_planned > num_taken for queue in queues)
            ):
                num_taken += self._is_staged(waiting[0])
                yield waiting.popleft()
        # The end of the epoch is known now, so whatever was held back is planned.
        for queue in queues:
            queue.finish()
        yield from waiting

    def mark_restored(self, planners: Sequence[StagingPlanner]) -> None:
        """Tell new planners which rows have other than their initial values."""
        if self.is_resumed:
            for group, planner in zip(self.staged, planners, strict=True):
                for rows_N in used_slow_rows(group):
                    planner.mark_used(rows_N)

    def read_cold(self, number: int) -> list[ColdRows]:
        """Return the cold rows of each group; none where a batch needs no staging."""
        if not self._is_staged(number):
            return []
        lookups = self._read_lookups(number)
        return [group.cold_rows(lookups) for group in self.staged]

    def _is_staged(self, number: int) -> bool:
        """Return whether a batch needs staging slots."""
        return not self._is_hot_only(number) or self.placements[0].stages_hot_only

    def _read_whole(self, number: int) -> ReadBatch:
        """Read a batch to run it; any thread may do so, as this part needs no plan."""
        batch = self._read(number)
        parts = tuple(group.read(batch) for group in self._embeddings.groups)
        if not self.staged or not self._is_staged(number):
            return ReadBatch(batch, parts, ())
        cold = zip(self.placements, parts, strict=True)
        return ReadBatch(batch, parts, tuple(each.cold_rows(part.lookups) for each, part in cold))

    def _plan(
        self, number: int, read: ReadBatch, queues: Sequence[PlanQueue], first_item: int
    ) -> PlannedStep:
        """Plan a batch and queue its transfers."""
        batch = read.batch
        if not read.cold:
            plans = [each.placement.plan(is_hot_only=batch.is_hot_only) for each in self._embeddings.groups]
            return self._embeddings.step(number, batch, plans, read.parts)
        plans = [
            queue.take(cold.rows_U, is_fresh=self._is_fresh)
            for queue, cold in zip(queues, read.cold, strict=True)
        ]
        transfers = [plan.transfer for plan in plans]
        # Each group has an ``after``; the last of them is right for all. Plans count from the first batch of
        # their epoch, items from the first of the run.
        after = max(transfer.after for transfer in transfers if transfer)
        after = first_item + after if after >= 0 else -1
        kind: Kind = "hot_only" if batch.is_hot_only else "mixed"
        self._last_item = self._embeddings.send(transfers, after, kind)
        return self._embeddings.step(number, batch, plans, read.parts, self._last_item)

    def count(self, step: PlannedStep) -> None:
        """Count a step that is run; those planned ahead of a checkpoint are planned once more."""
        for part in step.parts:
            self.num_shortened += part.plan.is_shortened
            if (split := part.plan.split) is not None:
                self.num_split += 1
                self.slots_wanted = max(self.slots_wanted, split.rows_U.size / split.num_slots)

    def _flush(self, queues: Sequence[PlanQueue]) -> None:
        """Write back what is staged, once the last batch of the epoch is computed."""
        self._embeddings.send([queue.flush for queue in queues], self._last_item, "flush")
