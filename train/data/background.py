"""A bounded queue from a thread that makes items to the one that uses them.

Taking an item is a call or two of queues in C, without a lock of this module: the loop of a device does it
once for each step. To give the place of an item back wakes the thread, which takes longer than all else, so
several places may be given back at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")
PLACES_AT_A_TIME = 4
"""Places that the loop of a device gives back at a time."""


class BackgroundIterator(Generic[Item]):
    """Iterate ``items`` in a thread, at most ``depth`` ahead of the caller.

    An exception in the thread is raised by the caller's next step, before items that are still queued.

    Args:
        items: iterated in the thread.
        depth: items ahead.
        name: of the thread.
        given_back: items whose places the thread gets back at a time; it may be so many less one less ahead.
    """

    def __init__(self, items: Iterable[Item], depth: int, name: str, given_back: int = 1) -> None:
        assert given_back <= max(depth, 1), "the thread would wait for places, and the caller for an item"
        self._items = items
        self._given_back = given_back
        # Each item comes in a tuple of its own; an empty one says that there are no more.
        self._queue: SimpleQueue[tuple[Item] | tuple[()]] = SimpleQueue()
        # The thread takes a place for each item, and the caller gives it back.
        self._places: SimpleQueue[None] = SimpleQueue()
        for _ in range(max(depth, 1)):
            self._places.put(None)
        self._error: BaseException | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __iter__(self) -> Iterator[Item]:
        self._thread.start()
        num_taken = 0
        while True:
            taken = self._queue.get()
            # Set before the end is queued, and so before this thread could wait for ever.
            if self._error is not None:
                raise self._error
            if not taken:
                return
            num_taken += 1
            if num_taken == self._given_back:
                num_taken = 0
                for _ in range(self._given_back):
                    self._places.put(None)
            yield taken[0]

    def close(self) -> None:
        """Stop the thread at its next item."""
        self._is_closed = True
        # The thread may be waiting for a place.
        self._places.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            for item in self._items:
                # One item at a time, and only while the queue has room: a batch is large.
                self._places.get()
                if self._is_closed:
                    return
                self._queue.put((item,))
        # Whatever stopped the work, an interruption too, is raised again where the items are taken.
        except BaseException as error:
            self._error = error
        finally:
            try:
                # A generator is closed in the thread that ran it, so that its own cleanup runs here too.
                if isinstance(self._items, Generator):
                    self._items.close()
            finally:
                self._queue.put(())
