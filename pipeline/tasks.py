"""Independent tasks over workers: threads by default, because every kernel releases the GIL.

Results come in the order of the tasks, whatever order they finished in, and at most two tasks a
worker are in flight, so what a task holds bounds the memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import joblib

ProgressCallback = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, in bytes or samples; total 0 means unknown."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


def num_workers(workers: int) -> int:
    """``workers``, or the cores this process may use where it is 0."""
    return workers if workers > 0 else len(os.sched_getaffinity(0))


def run_tasks(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], *, workers: int = 0
) -> Iterator[Any]:
    """Yield ``function(*task)`` for each task, in order, computed by ``workers`` threads."""
    count = num_workers(workers)
    if count == 1:
        for task in tasks:
            yield function(*task)
        return
    parallel = joblib.Parallel(
        n_jobs=count, backend="threading", return_as="generator", pre_dispatch=2 * count, batch_size=1
    )
    yield from parallel(joblib.delayed(function)(*task) for task in tasks)
