"""Runs transfers of a device that moves rows itself.

The host only queues. A transfer of a step is queued with the step, whose copy includes its lists. Others,
such as the flush of an epoch, are run by the host while the device is idle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..device import Device, Event
from ..rows.transfers import Transfers, Work


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
