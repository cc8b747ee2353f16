"""Notice that kernels are being compiled: a clock that stands still meanwhile, and a listener.

A first run compiles for half a minute. No rate counts that, or the first placement that trains would look
like the slowest one. Separate from `kernel`, which imports Numba, so that a command without kernels does not
wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter


class _Compiling:
    """The time in which some thread of this process compiled a kernel, or loaded one from the cache."""

    lock = threading.Lock()
    num_threads = 0
    """Threads that compile now, those that wait for the compiler included."""
    start = 0.0
    seconds = 0.0
    """Seconds before ``start``."""
    listener: Callable[[str], None] | None = None


def working_clock() -> float:
    """Return seconds of a clock that stands still while kernels are compiled, or loaded from the cache."""
    with _Compiling.lock:
        now = _Compiling.start if _Compiling.num_threads else perf_counter()
        return now - _Compiling.seconds


@contextmanager
def compiling() -> Iterator[None]:
    """Hold the clock while this thread gets a kernel's code; blocks of several threads count once."""
    with _Compiling.lock:
        if not _Compiling.num_threads:
            _Compiling.start = perf_counter()
        _Compiling.num_threads += 1
    try:
        yield
    finally:
        with _Compiling.lock:
            _Compiling.num_threads -= 1
            if not _Compiling.num_threads:
                _Compiling.seconds += perf_counter() - _Compiling.start


def call_when_compiling(listener: Callable[[str], None]) -> None:
    """Call ``listener`` with the name of each kernel that is about to be compiled."""
    _Compiling.listener = listener


def note_compiled_kernel(name: str) -> None:
    """Report a kernel whose code is not in the cache; Numba compiles one at a time."""
    if _Compiling.listener is not None:
        _Compiling.listener(name)
