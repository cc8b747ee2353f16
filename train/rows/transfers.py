"""Runs transfers ahead of the batches they serve, in a thread of the host.

The rule: items run in order; an item starts once the batch it names as ``after`` is computed; a batch is
computed once its item is done. The planner makes sure that this is enough; this module only keeps the rule.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ...stats.compile_notice import working_clock

if TYPE_CHECKING:
    from ..device import Event

Work = TypeVar("Work")


@dataclass(frozen=True, slots=True)
class TransferItem(Generic[Work]):
    """One transfer in the sequence of all."""

    number: int
    after: int
    """The batch, by the number of its item, that has to be computed before this item starts; -1 for none."""
    work: Work


class Transfers(ABC, Generic[Work]):
    """Runs items by the rule.

    Args:
        run: does the work of an item.
    """

    def __init__(self, run: Callable[[Work], None]) -> None:
        self._run = run
        self._queue: deque[TransferItem[Work]] = deque()
        self.num_items = 0
        """Items put so far."""
        self.busy_seconds = 0.0
        """Seconds spent in transfers; 0 where the host does not know how long a device takes."""
        self.stall_seconds = 0.0
        """Seconds that batches waited for transfers."""
        self.num_stalls = 0
        """Batches that waited at all."""

    @property
    @abstractmethod
    def num_done(self) -> int:
        """Items that are done; exact while a device is idle."""

    def put(self, work: Work, after: int) -> int:
        """Add an item; return its number. ``after`` is the number of an earlier one or -1."""
        number = self.num_items
        assert after < number, "an item cannot wait for its own batch"
        self.num_items += 1
        self._queue.append(TransferItem(number, after, work))
        return number

    @abstractmethod
    def wait_for(self, number: int) -> None:
        """Return once item ``number`` is done; raises what its work raised."""

    @abstractmethod
    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        """Mark the batch of item ``number`` as computed, but no later one.

        Args:
            computed: where a device computes the batch, the event after it; None: the event is made here.
        """

    @abstractmethod
    def paused(self) -> AbstractContextManager[None]:
        """Hold the transfers between two items; those put before may be done or not."""

    @abstractmethod
    def drain(self) -> None:
        """Return once all items put are done; their batches must be computed."""

    @abstractmethod
    def close(self) -> None:
        """Stop after the present item, and forget the others; a device finishes what it was given."""


class TransferThread(Transfers[Work]):
    """A thread that runs items by the rule."""

    def __init__(self, run: Callable[[Work], None]) -> None:
        super().__init__(run)
        # One condition guards the queue and all that follows; every change of it notifies both threads.
        self._state = threading.Condition()
        # Items that are done and batches that are computed, each up to this number.
        self._done = -1
        self._computed = -1
        self._is_busy = False
        self._is_closed = False
        self._num_pauses = 0
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def num_done(self) -> int:
        return self._done + 1

    def put(self, work: Work, after: int) -> int:
        with self._state:
            self._check()
            number = super().put(work, after)
            # The thread starts with the first item: most placements have none.
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="transfers", daemon=True)
                self._thread.start()
            self._state.notify_all()
            return number

    def wait_for(self, number: int) -> None:
        with self._state:
            self._check()
            if self._done < number:
                start = working_clock()
                self._state.wait_for(lambda: self._done >= number or self._error is not None)
                self.stall_seconds += working_clock() - start
                self.num_stalls += 1
                self._check()

    def mark_computed(self, number: int, computed: Event | None = None) -> None:
        with self._state:
            self._computed = number
            self._state.notify_all()

    @contextmanager
    def paused(self) -> Iterator[None]:
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
        with self._state:
            self._state.wait_for(lambda: self.num_done == self.num_items or self._error is not None)
            self._check()

    def close(self) -> None:
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _check(self) -> None:
        self._raise_error()
        if self._is_closed:
            raise RuntimeError("the transfer thread is closed")

    def _work(self) -> None:
        try:
            while True:
                with self._state:
                    self._state.wait_for(lambda: self._is_closed or self._may_start())
                    if self._is_closed:
                        return
                    item = self._queue.popleft()
                    self._is_busy = True
                start = working_clock()
                self._run(item.work)
                with self._state:
                    self._done = item.number
                    self._is_busy = False
                    self.busy_seconds += working_clock() - start
                    self._state.notify_all()
        except BaseException as error:
            # Whatever it is, it is kept for the other thread, whose next call raises it.
            with self._state:
                self._error = error
                self._is_busy = False
                self._state.notify_all()

    def _may_start(self) -> bool:
        return bool(self._queue) and not self._num_pauses and self._computed >= self._queue[0].after
