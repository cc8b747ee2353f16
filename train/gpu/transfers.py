"""Runs transfers of a device that moves rows itself, or whose rows a thread moves.

On a device that moves rows itself, the host only queues. A transfer of a step is queued with the step, whose
copy includes its lists; others, such as the flush of an epoch, are run by the host while the device is idle.
Where a thread of the host moves rows of a device, an item starts once its ``after`` is queued, and what it
queues runs once that batch is computed; the loop queues the batch of an item once the item is done. So the
loop waits for the host's part of a transfer, which runs ahead of the device, and the device waits for events
alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..device import Device, Event
from ..execution.transfers import TransferItem, Transfers, TransferThread, Work


class QueuedTransfers(Transfers[Work]):
    """The items of a run on a device.

    Args:
        run: does the work of an item on the host, synchronously, while the device is idle.
        device: runs the items of steps.
    """

    def __init__(self, run: Callable[[Work], None], device: Device) -> None:
        super().__init__(run)
        self._device = device
        # The thread that plans ahead puts items; that of the steps takes them.
        self._lock = threading.Lock()
        self._computed: dict[int, Event] = {}
        """When batches are computed that items to come may wait for."""

    @property
    def num_done(self) -> int:
        with self._lock:
            return self.num_items - len(self._queue)

    def put(self, work: Work, after: int) -> int:
        with self._lock:
            return super().put(work, after)

    def begin(self, number: int) -> Work:
        """Make moves wait for what item ``number`` waits for; return its work.

        Items before it that belong to no step are run first.
        """
        self._run_before(number)
        with self._lock:
            item = self._queue.popleft()
        assert item.number == number
        # The stream runs in order: having waited for the events up to ``after`` once, later items need not.
        for batch in [batch for batch in self._computed if batch <= item.after]:
            self._device.wait("moves", self._computed.pop(batch))
        return item.work

    def wait_for(self, number: int) -> None:
        """Run an item, and those before it, synchronously, while the device is idle."""
        self._run_before(number + 1)

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed by all queued work."""
        self._computed[number] = computed or self._device.record("compute")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the device finish; items not yet begun are left for later."""
        self._device.synchronize()
        yield
        # What the block asked of a GPU outside its streams is over before they continue.
        self._device.synchronize()

    def drain(self) -> None:
        self._run_before(self.num_items)
        self._device.synchronize()

    def close(self) -> None:
        self._queue.clear()
        self._device.synchronize()
        self._device.close()

    def _run_before(self, number: int) -> None:
        """Run the items before ``number`` that are left."""
        while self._queue and self._queue[0].number < number:
            with self._lock:
                item = self._queue.popleft()
            self._device.synchronize()
            self._computed.clear()
            self._run(item.work)


class ThreadedTransfers(TransferThread[Work]):
    """A thread that runs the items of a device by the rule.

    Args:
        run: does the work of an item in the thread: queues in the stream of moves, and returns when nothing
            is left for the host to do.
        device: moves rows in that stream.
    """

    def __init__(self, run: Callable[[Work], None], device: Device) -> None:
        super().__init__(run)
        self._device = device
        # The loop marks batches while the thread looks for them.
        self._events = threading.Lock()
        self._computed_at: dict[int, Event] = {}
        """When batches are computed that items to come may wait for."""
        self._moved_at: dict[int, Event] = {}
        """When the rows of items are where they belong, for batches to come."""

    def begin_batch(self, number: int) -> None:
        """Let compute wait for the rows of item ``number``; raises what its work raised."""
        super().wait_for(number)
        with self._events:
            moved = self._moved_at[number]
            # Items without a batch, such as the flush of an epoch, are waited for by nobody.
            for earlier in [each for each in self._moved_at if each <= number]:
                del self._moved_at[earlier]
        self._device.wait("compute", moved)

    def wait_for(self, number: int) -> None:
        """Return once item ``number`` is done and the device is idle.

        Raises what its work raised.
        """
        super().wait_for(number)
        self._device.synchronize()

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed by all queued work."""
        computed = computed or self._device.record("compute")
        with self._events:
            self._computed_at[number] = computed
        super().mark_computed(number)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the thread between two items, and let the device finish."""
        with super().paused():
            self._device.synchronize()
            yield
            # What the block asked of a GPU outside its streams is over before they continue.
            self._device.synchronize()

    def drain(self) -> None:
        super().drain()
        self._device.synchronize()

    def close(self) -> None:
        """Stop after the current item, forget the others; the device finishes."""
        super().close()
        self._device.synchronize()
        self._device.close()

    def _run_item(self, item: TransferItem[Work]) -> None:
        with self._events:
            numbers = [number for number in self._computed_at if number <= item.after]
            passed = [self._computed_at.pop(number) for number in numbers]
        # The stream runs in order: having waited for the events up to ``after`` once, later items need not.
        for event in passed:
            self._device.wait("moves", event)
        super()._run_item(item)
        moved = self._device.record("moves")
        with self._events:
            self._moved_at[item.number] = moved
