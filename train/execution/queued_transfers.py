"""Transfers that a device runs by itself: queued in its stream of moves, ordered by events.

The rule is that of `transfer_thread`: items run in order; an item starts once the batch it names as ``after``
is computed; a batch is computed once its own item is done. Here the host only queues. A transfer of a step is
queued with the step, whose copy brings its lists; others, such as the flush of an epoch, are run by the host
while the device stands still.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ..device.verbs import Device, Event
from .transfer_thread import TransferItem

Work = TypeVar("Work")


class QueuedTransfers(Generic[Work]):
    """The items of a run on a device.

    Args:
        run: does the work of an item on the host, at once; the device stands still meanwhile.
        device: runs the items of steps.
    """

    def __init__(self, run: Callable[[Work], None], device: Device) -> None:
        self._run = run
        self._device = device
        # The thread that plans ahead puts items; that of the steps takes them.
        self._lock = threading.Lock()
        self._queue: deque[TransferItem[Work]] = deque()
        self._next = 0
        self._computed: dict[int, Event] = {}
        """When batches are computed that items to come may wait for."""
        self.busy_seconds = 0.0
        """Always 0: the host does not know how long the device takes."""
        self.stall_seconds = 0.0
        self.num_stalls = 0

    @property
    def num_items(self) -> int:
        """Items put so far."""
        return self._next

    @property
    def num_done(self) -> int:
        """Items done so far, where the device stands still."""
        with self._lock:
            return self._next - len(self._queue)

    def put(self, work: Work, after: int) -> int:
        """Add an item; returns its number. ``after`` is the number of an earlier one or -1."""
        with self._lock:
            number = self._next
            assert after < number, "an item cannot wait for its own batch"
            self._next += 1
            self._queue.append(TransferItem(number, after, work))
            return number

    def begin(self, number: int) -> Work:
        """Let the stream of moves wait for what item ``number`` waits for, and return its work to be queued.

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
        """Run an item, and those before it, at once, while the device stands still."""
        self._run_before(number + 1)

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed by what the device was given so far."""
        self._computed[number] = computed or self._device.record("compute")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let the device finish what it was given; items that were put and not begun are left for later."""
        self._device.synchronize()
        yield
        # What the block asked of a GPU outside its streams is over before they continue.
        self._device.synchronize()

    def drain(self) -> None:
        """Return once every item put so far is done; the batches they wait for must be computed."""
        self._run_before(self._next)
        self._device.synchronize()

    def close(self) -> None:
        """Let the device finish what it was given, and forget the items not begun."""
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
