"""Tasks that tests send to other processes; quick to import, because every worker does."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from hotset.pipeline.errors import InputError


def square(number: int) -> int:
    """A task."""
    return number * number


def die_at(number: int, fatal: int, mark: Path | None) -> int:
    """A task whose worker is killed, the first time or, without a mark, each time."""
    if number == fatal and not (mark and mark.exists()):
        if mark:
            mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def fail_at(number: int, bad: int) -> int:
    """A task that refuses one number."""
    if number == bad:
        raise InputError(f"{number} is bad", hint="give another")
    time.sleep(0.01)
    return os.getpid()


def where_at(number: int) -> tuple[str, int]:
    """A task that says which node of a Ray cluster it ran on, and in which process."""
    import ray

    time.sleep(0.02)  # so that all workers get some
    return str(ray.get_runtime_context().get_node_id()), os.getpid()
