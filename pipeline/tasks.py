"""Independent tasks over workers: threads by default, because every kernel releases the GIL.

Results come in the order of the tasks, whatever order they finished in, and at most two tasks a
worker are in flight, so what a task holds bounds the memory. However a run ends, by an error, Ctrl-C or a
caller that stops reading, no task is at work when it has ended: nothing writes into a folder behind
the back of the next run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import joblib

ProgressCallback = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, in bytes or samples; total 0 means unknown."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


def num_workers(workers: int) -> int:
    """``workers``, or the cores this process may use where it is 0."""
    return workers if workers > 0 else int(joblib.cpu_count())


def run_tasks(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], *, workers: int = 0
) -> Iterator[Any]:
    """Yield ``function(*task)`` for each task, in order, computed by ``workers`` threads."""
    count = num_workers(workers)
    if count == 1:
        for task in tasks:
            yield function(*task)
        return
    crew = _Crew(function)
    parallel = joblib.Parallel(
        n_jobs=count, backend="threading", return_as="generator", pre_dispatch=2 * count, batch_size=1
    )
    results = parallel(crew.calls(tasks))
    try:
        for result in results:  # noqa: UP028 (closing this generator must not close that one)
            yield result
    finally:
        crew.stop()
        with suppress(Exception):  # joblib warns of results that nobody took
            for _ in results:
                pass


class _Crew:
    """The threads at work on the tasks of one run; once stopped, they begin none."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._changed = threading.Condition()
        self._num_at_work, self._is_stopped = 0, False

    def calls(self, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Each task as joblib wants it, until stopped."""
        for task in tasks:
            if self._is_stopped:
                return
            yield joblib.delayed(self._work)(*task)

    def _work(self, *task: Any) -> Any:
        with self._changed:
            if self._is_stopped:
                return None
            self._num_at_work += 1
        try:
            return self._function(*task)
        finally:
            with self._changed:
                self._num_at_work -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """Begin no further task, and wait for those begun."""
        with self._changed:
            self._is_stopped = True
            self._changed.wait_for(lambda: self._num_at_work == 0)
