"""Makes the steps of a run ahead of the loop: reads batches, plans them, sends their transfers off.

A thread does it while earlier batches are computed, at most a few batches ahead. Staging placements are
planned either a whole epoch at a time, the next one in the background while one runs, or batch by batch
with the little that is known ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from ..data.batch import Batch
from ..placements.schedule_file import Schedule
from ..placements.staging_placements import PlanQueue, Staging
from .embeddings import Embeddings, Part, Step, Width


class Feed:
    """The steps of a run.

    Args:
        embeddings: whose rows the steps move.
        read: a training batch by number.
        is_hot_only: whether a training batch looks up hot rows alone.
        is_fresh: rows that no batch has used have their initial values.
        schedule: step plans made beforehand.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        read: Callable[[int], Batch],
        is_hot_only: Callable[[int], bool],
        *,
        is_fresh: bool = True,
        schedule: Schedule | None = None,
    ) -> None:
        self._embeddings = embeddings
        self._read = read
        self._is_hot_only = is_hot_only
        self._is_fresh = is_fresh
        self._schedule = schedule
        self._last_item = -1
        """Of the last batch that has one."""
        self.num_shortened = self.num_split = 0
        """Transfers that wait longer than the prefetch depth wants; batches that run in passes."""
        self.slots_wanted = 1.0
        """Slots that the largest batch of any width needs, in those there are."""
        self._staged = [w for w in embeddings.widths if isinstance(w.placement, Staging)]
        assert not self._staged or len(self._staged) == len(embeddings.widths)

    def steps(self, epochs: Iterable[Iterable[int]]) -> Iterator[Step]:
        """Steps of epochs of batches given by number; what a step has to wait for is on its way."""
        if not self._staged:
            for numbers in epochs:
                for number in numbers:
                    yield self._embeddings.plan(number, self._read(number))
            return
        placements = [_staging(width) for width in self._staged]
        planners = [placement.planner() for placement in placements]

        def new_queues() -> list[PlanQueue]:
            return [PlanQueue(*pair) for pair in zip(placements, planners, strict=True)]

        if placements[0].needs_whole_epoch or self._schedule is not None:
            yield from self._planned_ahead(epochs, new_queues)
        else:
            for numbers in epochs:
                yield from self._planned_on_line(numbers, new_queues())

    def _planned_ahead(
        self, epochs: Iterable[Iterable[int]], new_queues: Callable[[], list[PlanQueue]]
    ) -> Iterator[Step]:
        """Each epoch planned as a whole, while the one before it runs."""

        def plan(epoch: int, numbers: list[int]) -> tuple[list[int], list[PlanQueue]]:
            if scheduled := self._scheduled(epoch, numbers):
                return numbers, scheduled
            queues = new_queues()
            for number in numbers:
                self._add(number, queues)
            for queue in queues:
                queue.finish()
            return numbers, queues

        with ThreadPoolExecutor(1, thread_name_prefix="plan") as pool:
            coming: deque[Future[tuple[list[int], list[PlanQueue]]]] = deque()
            for epoch, numbers in enumerate(epochs):
                coming.append(pool.submit(plan, epoch, list(numbers)))
                if len(coming) > 1:
                    yield from self._run_epoch(*coming.popleft().result())
            while coming:
                yield from self._run_epoch(*coming.popleft().result())

    def _scheduled(self, epoch: int, numbers: list[int]) -> list[PlanQueue] | None:
        """The plans of an epoch that are on disk, where they are those of all widths."""
        if self._schedule is None:
            return None
        staged = [number for number in numbers if self._is_staged(number)]
        queues = [self._schedule.queue(epoch, _staging(w), w.embedding_dim, staged) for w in self._staged]
        found = [queue for queue in queues if queue is not None]
        if len(found) == len(queues):
            return found
        # Planners remember which rows were used: what is not planned here from the start is not at all.
        self._schedule = None
        assert epoch == 0, "a schedule is for all epochs or for none"
        return None

    def _run_epoch(self, numbers: list[int], queues: list[PlanQueue]) -> Iterator[Step]:
        first_item = self._embeddings.conveyor.num_items
        for number in numbers:
            yield self._take(number, queues, first_item)
        self._flush(queues)

    def _planned_on_line(self, numbers: Iterable[int], queues: list[PlanQueue]) -> Iterator[Step]:
        """Batch by batch; a batch waits until the planner has seen enough of those behind it."""
        first_item = self._embeddings.conveyor.num_items
        waiting: deque[int] = deque()
        for number in numbers:
            waiting.append(number)
            self._add(number, queues)
            while waiting and self._is_ready(waiting[0], queues):
                yield self._take(waiting.popleft(), queues, first_item)
        for queue in queues:
            queue.finish()
        while waiting:
            yield self._take(waiting.popleft(), queues, first_item)
        self._flush(queues)

    def _add(self, number: int, queues: list[PlanQueue]) -> None:
        if not self._is_staged(number):
            return
        batch = self._read(number)
        for width, queue in zip(self._staged, queues, strict=True):
            queue.add(_staging(width).cold_lookups(width.reader.read(batch)))

    def _is_ready(self, number: int, queues: list[PlanQueue]) -> bool:
        return not self._is_staged(number) or all(queue.num_ready for queue in queues)

    def _is_staged(self, number: int) -> bool:
        return not self._is_hot_only(number) or _staging(self._staged[0]).serves_hot_only

    def _take(self, number: int, queues: list[PlanQueue], first_item: int) -> Step:
        """The step of a batch, its transfers on their way."""
        batch = self._read(number)
        if not self._is_staged(number):
            return self._embeddings.step_at_home(number, batch)
        parts = []
        for width, queue in zip(self._staged, queues, strict=True):
            ids = width.reader.read(batch)
            cold = _staging(width).cold_lookups(ids)
            parts.append(Part(ids, queue.take(cold, is_fresh=self._is_fresh)))
        transfers = [part.plan.transfer for part in parts]
        # Each width knows its own ``after``; the last of them is right for all.
        after = max(transfer.after for transfer in transfers if transfer)
        after = first_item + after if after >= 0 else -1
        kind = "hot_only" if batch.is_hot_only else "mixed"
        self._last_item = self._embeddings.send(transfers, after, kind)
        return Step(number, batch, tuple(parts), self._last_item)

    def _flush(self, queues: list[PlanQueue]) -> None:
        """Send home what is staged, once the last batch of the epoch is computed."""
        self.num_shortened += sum(queue.num_shortened for queue in queues)
        self.num_split += sum(queue.num_split for queue in queues)
        self.slots_wanted = max(self.slots_wanted, *(queue.slots_wanted for queue in queues))
        self._embeddings.send([queue.flush for queue in queues], self._last_item, "flush")


def _staging(width: Width) -> Staging:
    assert isinstance(width.placement, Staging)
    return width.placement
