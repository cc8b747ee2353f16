"""CPU seconds of some functions while a job runs: how much of it is hashing and checks.

Functions are replaced by ones that time each call in its own thread and do the same; what timing costs, some
0.5 µs a call, counts as theirs.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock


class CallTimes:
    """CPU seconds and calls of functions by name; a call inside another timed one counts for the outer."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    @contextmanager
    def timing(self, targets: Sequence[tuple[str, Any, str]]) -> Iterator[None]:
        """Time the functions ``(name, owner, attribute)`` inside the block."""
        with ExitStack() as stack:
            for name, owner, attribute in targets:
                self.seconds.setdefault(name, 0.0)
                self.calls.setdefault(name, 0)
                timed = self._timed(name, getattr(owner, attribute))
                stack.enter_context(mock.patch.object(owner, attribute, timed))
            yield

    def _timed(self, name: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            # A function that calls another timed one is counted once, as a whole.
            if getattr(self._local, "is_inside", False):
                return function(*arguments, **options)
            self._local.is_inside = True
            started = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                spent = time.thread_time() - started
                self._local.is_inside = False
                with self._lock:
                    self.seconds[name] += spent
                    self.calls[name] += 1

        return call
