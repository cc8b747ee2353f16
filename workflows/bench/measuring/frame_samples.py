"""Where the CPU time of a job goes: its thread is looked at every millisecond, from another thread.

What is seen is the innermost Python function that has a name in a list of parts. Kernels, checksums and
system calls run without the interpreter's lock, so their time is that of the function that calls them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType

_INTERVAL_SECONDS = 0.001
OTHER = "other"
"""The part of all functions without a name in the list."""


def seconds_of_parts(job: Callable[[], object], part_of: Mapping[str, str]) -> dict[str, float]:
    """Run a job in this thread, and divide its CPU seconds among its parts by how often each was seen.

    Args:
        job: computes in this thread alone.
        part_of: the part of each function, by its qualified name.

    Returns:
        CPU seconds by part, in the order of ``part_of``, then those of OTHER, and all of a job never seen.
    """
    seen: Counter[str] = Counter()
    is_over = threading.Event()
    watched = threading.get_ident()

    def watch() -> None:
        while not is_over.wait(_INTERVAL_SECONDS):
            seen[_part_of(sys._current_frames()[watched], part_of)] += 1

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    before = time.thread_time()
    try:
        job()
        seconds = time.thread_time() - before
    finally:
        is_over.set()
        watcher.join()
    if not seen:
        seen[OTHER] = 1
    total = seen.total()
    return {part: seconds * seen[part] / total for part in [*dict.fromkeys(part_of.values()), OTHER]}


def _part_of(frame: FrameType | None, part_of: Mapping[str, str]) -> str:
    """Return the part of the innermost function that has one."""
    while frame is not None:
        part = part_of.get(frame.f_code.co_qualname)
        if part is not None:
            return part
        frame = frame.f_back
    return OTHER
