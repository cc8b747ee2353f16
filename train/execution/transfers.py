"""Runs transfers ahead of the batches they serve, on host or device.

The rule: items run in order; an item starts once the batch it names as ``after`` is computed; a batch is
computed once its item is done. The planner makes sure that this is enough; this module only keeps the rule.

On a device that moves rows itself, the host only queues. A transfer of a step is queued with the step, whose
copy includes its lists; others, such as the flush of an epoch, are run by the host while the device is idle.
Where a thread of the host moves rows of a device, an item starts once its ``after`` is queued, and what it
queues runs once that batch is computed; the loop queues the batch of an item once the item is done. So the
loop waits for the host's part of a transfer, which runs ahead of the device, and the device waits for events
alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..device import Device, Event

Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class TransferItem(Generic[Work]):
    """One transfer in the sequence of all."""

    number: int
    after: int
    """The batch, by the number of its item, that has to be computed before this item starts; -1 for none."""
    work: Work


class TransferThread(Generic[Work]):
    """A thread that runs items by the rule.

    Args:
        run: does the work of an item.
    """

    def __init__(self, run: Callable[[Work], None]) -> None:
        self._run = run
        # One condition guards all that follows; every change of it notifies both threads.
        self._state = threading.Condition()
        self._queue: deque[TransferItem[Work]] = deque()
        self._next = 0
        # Items that are done and batches that are computed, each up to this number.
        self._done = -1
        self._computed = -1
        self._is_busy = False
        self._is_closed = False
        self._num_pauses = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.busy_seconds = 0.0
        """Seconds spent in transfers."""
        self.stall_seconds = 0.0
        """Seconds that batches waited for transfers."""
        self.num_stalls = 0
        """Batches that waited at all."""

    @property
    def num_items(self) -> int:
        """Items put so far."""
        return self._next

    @property
    def num_done(self) -> int:
        """Items that are done."""
        return self._done + 1

    def put(self, work: Work, after: int) -> int:
        """Add an item; return its number.

        ``after`` is the number of an earlier one or -1.
        """
        with self._state:
            self._refuse()
            number = self._next
            assert after < number, "an item cannot wait for its own batch"
            self._next += 1
            self._queue.append(TransferItem(number, after, work))
            # The thread starts with the first item: most placements have none.
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="transfers", daemon=True)
                self._thread.start()
            self._state.notify_all()
            return number

    def wait_for(self, number: int) -> None:
        """Return once item ``number`` is done; raises what its work raised."""
        with self._state:
            self._refuse()
            if self._done < number:
                start = time.perf_counter()
                self._state.wait_for(lambda: self._done >= number or self._error is not None)
                self.stall_seconds += time.perf_counter() - start
                self.num_stalls += 1
                self._refuse()

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed, but no later one.

        Args:
            computed: where a device computes the batch, the event after it; None: the event is made here.
        """
        with self._state:
            self._computed = number
            self._state.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold the thread between two items; those put before may be done or not."""
        with self._state:
            self._raise_error()
            # Counted before the wait, so that no further item starts meanwhile.
            self._num_pauses += 1
            self._state.wait_for(lambda: not self._is_busy)
        try:
            self._raise_error()
            yield
        finally:
            with self._state:
                self._num_pauses -= 1
                self._state.notify_all()

    def drain(self) -> None:
        """Return once every item put so far is done.

        The batches they wait for must be computed.
        """
        with self._state:
            self._state.wait_for(lambda: self._done == self._next - 1 or self._error is not None)
            self._refuse()

    def close(self) -> None:
        """Stop the thread after its present item, and forget the others."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _refuse(self) -> None:
        self._raise_error()
        if self._is_closed:
            raise RuntimeError("the transfer thread is closed")

    def _work(self) -> None:
        try:
            while (item := self._take()) is not None:
                start = time.perf_counter()
                self._run_item(item)
                self._finish(item, time.perf_counter() - start)
        except BaseException as error:
            # Kept for the other thread, whose next call raises it.
            with self._state:
                self._error = error
                self._is_busy = False
                self._state.notify_all()

    def _run_item(self, item: TransferItem[Work]) -> None:
        self._run(item.work)

    def _take(self) -> TransferItem[Work] | None:
        """Wait for the next item that may start; None once the thread is closed."""
        with self._state:
            self._state.wait_for(lambda: self._is_closed or self._may_start())
            if self._is_closed:
                return None
            item = self._queue.popleft()
            self._is_busy = True
        return item

    def _may_start(self) -> bool:
        return bool(self._queue) and not self._num_pauses and self._computed >= self._queue[0].after

    def _finish(self, item: TransferItem[Work], seconds: float) -> None:
        with self._state:
            self._done = item.number
            self._is_busy = False
            self.busy_seconds += seconds
            self._state.notify_all()


class QueuedTransfers(Generic[Work]):
    """The items of a run on a device.

    Args:
        run: does the work of an item on the host, synchronously, while the device is idle.
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
        """Return how many items are done; exact while the device is idle."""
        with self._lock:
            return self._next - len(self._queue)

    def put(self, work: Work, after: int) -> int:
        """Add an item; return its number.

        ``after`` is the number of an earlier one or -1.
        """
        with self._lock:
            number = self._next
            assert after < number, "an item cannot wait for its own batch"
            self._next += 1
            self._queue.append(TransferItem(number, after, work))
            return number

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
        """Return once every item put so far is done.

        The batches they wait for must be computed.
        """
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
        """Return once every item put so far is done.

        The batches they wait for must be computed.
        """
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
