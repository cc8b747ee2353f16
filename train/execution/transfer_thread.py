"""Runs transfers in a thread of their own, ahead of the batches they serve.

The rule: items run in order; an item starts once the batch it names as ``after`` is computed; a batch is
computed once its own item is done. The planner sees to it that this is enough, here it is only kept. A
thread serves the host and the GPU alike; on a GPU "computed" and "done" are events in streams, and neither
thread waits for the device itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..device_streams import HostLanes, Lanes, Mark

Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class Item(Generic[Work]):
    """One transfer in the sequence of all."""

    number: int
    after: int
    """The batch, by the number of its item, that has to be computed before; -1 for none."""
    work: Work


class Conveyor(Generic[Work]):
    """A thread that runs items by the rule.

    Args:
        run: does the work of an item.
        lanes: of the device the work is on.
    """

    def __init__(self, run: Callable[[Work], None], lanes: Lanes | None = None) -> None:
        self._run = run
        self._lanes = lanes or HostLanes()
        self._state = threading.Condition()
        self._queue: deque[Item[Work]] = deque()
        self._next = 0
        self._done, self._computed = -1, -1
        self._done_marks: dict[int, Mark] = {}
        self._computed_marks: dict[int, Mark] = {}
        self._last_mark: Mark = None
        self._is_busy = self._is_closed = False
        self._num_pauses = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self.busy_seconds = 0.0
        """Spent in transfers."""
        self.stall_seconds = 0.0
        """Batches waited this long for transfers."""
        self.num_stalls = 0
        """Batches that waited at all."""

    @property
    def num_items(self) -> int:
        """Items put so far."""
        return self._next

    def put(self, work: Work, after: int) -> int:
        """Add an item; returns its number. ``after`` is the number of an earlier one or -1."""
        with self._state:
            self._refuse()
            number = self._next
            assert after < number, "an item cannot wait for its own batch"
            self._next += 1
            self._queue.append(Item(number, after, work))
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
            mark = self._done_marks.pop(number, None)
        self._lanes.wait(mark)

    def computed(self, number: int) -> None:
        """Say that the batch of item ``number`` is computed; its successors are not."""
        mark = self._lanes.mark()
        with self._state:
            self._computed_marks[number] = mark
            self._computed = number
            self._state.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Between two items; those put before may be done or not."""
        with self._state:
            self._raise_error()
            self._num_pauses += 1
            self._state.wait_for(lambda: not self._is_busy)
            mark = self._last_mark
        try:
            self._raise_error()
            self._lanes.wait(mark)
            yield
        finally:
            with self._state:
                self._num_pauses -= 1
                self._state.notify_all()

    def drain(self) -> None:
        """Return once every item put so far is done; the batches they wait for must be computed."""
        with self._state:
            self._state.wait_for(lambda: self._done == self._next - 1 or self._error is not None)
            self._refuse()
            mark = self._last_mark
        self._lanes.wait(mark)

    def close(self) -> None:
        """Stop the thread after the item it is at, and forget the others."""
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
            raise RuntimeError("the conveyor is closed")

    def _work(self) -> None:
        try:
            with self._lanes.transferring():
                while (item := self._take()) is not None:
                    start = time.perf_counter()
                    self._run(item.work)
                    self._finish(item, time.perf_counter() - start)
        except BaseException as error:
            with self._state:
                self._error, self._is_busy = error, False
                self._state.notify_all()

    def _take(self) -> Item[Work] | None:
        with self._state:
            self._state.wait_for(lambda: self._is_closed or self._may_start())
            if self._is_closed:
                return None
            item = self._queue.popleft()
            self._is_busy = True
            marks = [self._computed_marks.pop(n) for n in list(self._computed_marks) if n <= item.after]
        for mark in marks:
            self._lanes.wait(mark)
        return item

    def _may_start(self) -> bool:
        return bool(self._queue) and not self._num_pauses and self._computed >= self._queue[0].after

    def _finish(self, item: Item[Work], seconds: float) -> None:
        mark = self._lanes.mark()
        with self._state:
            self._done, self._last_mark = item.number, mark
            self._done_marks[item.number] = mark
            self._is_busy = False
            self.busy_seconds += seconds
            self._state.notify_all()
