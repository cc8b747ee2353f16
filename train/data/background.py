"""A bounded queue from a thread that makes items to the one that uses them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BackgroundIterator(Generic[Item]):
    """Iterate ``items`` in a thread, at most ``depth`` ahead of the caller.

    An exception in the thread is raised by the caller's next step, before items that are still queued.
    """

    def __init__(self, items: Iterable[Item], depth: int, name: str) -> None:
        self._items = items
        self._depth = max(depth, 1)
        self._state = threading.Condition()
        self._queue: deque[Item] = deque()
        self._error: BaseException | None = None
        self._is_over = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __iter__(self) -> Iterator[Item]:
        self._thread.start()
        while True:
            with self._state:
                self._state.wait_for(lambda: self._queue or self._is_over or self._error)
                if self._error is not None:
                    raise self._error
                if not self._queue:
                    return
                item = self._queue.popleft()
                self._state.notify_all()
            # Outside the lock: the thread fills the queue while the caller uses the item.
            yield item

    def close(self) -> None:
        """Stop the thread at its next item."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            for item in self._items:
                # One item at a time, and only while the queue has room: a batch is large.
                with self._state:
                    self._state.wait_for(lambda: len(self._queue) < self._depth or self._is_closed)
                    if self._is_closed:
                        return
                    self._queue.append(item)
                    self._state.notify_all()
        # Whatever stopped the work, an interruption too, is raised again where the items are taken.
        except BaseException as error:
            with self._state:
                self._error = error
        finally:
            # A generator is closed in the thread that ran it, so that its own cleanup runs here too.
            if isinstance(self._items, Generator):
                self._items.close()
            with self._state:
                self._is_over = True
                self._state.notify_all()
