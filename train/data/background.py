"""A bounded queue from a thread that makes things to the one that uses them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Ahead(Generic[Thing]):
    """Iterates ``things`` in a thread, at most ``depth`` ahead of the caller.

    What the thread raises reaches the caller with its next step, before what is still in the queue.
    """

    def __init__(self, things: Iterable[Thing], depth: int, name: str) -> None:
        self._things = things
        self._depth = max(depth, 1)
        self._state = threading.Condition()
        self._queue: deque[Thing] = deque()
        self._error: BaseException | None = None
        self._is_over = self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def __iter__(self) -> Iterator[Thing]:
        self._thread.start()
        while True:
            with self._state:
                self._state.wait_for(lambda: self._queue or self._is_over or self._error)
                if self._error is not None:
                    raise self._error
                if not self._queue:
                    return
                thing = self._queue.popleft()
                self._state.notify_all()
            yield thing

    def close(self) -> None:
        """Stop the thread at its next thing."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        try:
            for thing in self._things:
                with self._state:
                    self._state.wait_for(lambda: len(self._queue) < self._depth or self._is_closed)
                    if self._is_closed:
                        return
                    self._queue.append(thing)
                    self._state.notify_all()
        except BaseException as error:
            with self._state:
                self._error = error
        finally:
            if isinstance(self._things, Generator):
                self._things.close()
            with self._state:
                self._is_over = True
                self._state.notify_all()
