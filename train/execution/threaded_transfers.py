"""Transfers of a device that a thread of the host runs: it queues copies, and moves rows between them itself.

The rule is that of `transfer_thread`, in the words of a device: an item starts once the batch it names as
``after`` is queued, and what it queues runs once that batch is computed; the loop queues the batch of an item
once the item is done, and the batch runs once all is done that the item queued. So the loop waits for the
host's part of a transfer, as it runs ahead of the device, and the device waits for events alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from ..device.verbs import Device, Event
from .transfer_thread import TransferItem, TransferThread

Work = TypeVar("Work")


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
        """Return once item ``number`` is done and the device stands still; raises what its work raised."""
        super().wait_for(number)
        self._device.synchronize()

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed by what the device was given so far."""
        computed = computed or self._device.record("compute")
        with self._events:
            self._computed_at[number] = computed
        super().mark_computed(number)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the thread between two items, and let the device finish what it was given."""
        with super().paused():
            self._device.synchronize()
            yield
            # What the block asked of a GPU outside its streams is over before they continue.
            self._device.synchronize()

    def drain(self) -> None:
        """Return once every item put so far is done; the batches they wait for must be computed."""
        super().drain()
        self._device.synchronize()

    def close(self) -> None:
        """Stop the thread after its present item, forget the others, and let the device finish."""
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
