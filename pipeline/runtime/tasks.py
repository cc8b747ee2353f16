"""Independent tasks over workers: threads by default, because every kernel releases the GIL.

Results come in the order of the tasks, whatever order they finished in, and at most two tasks a
worker are in flight, so what a task holds bounds the memory. However a run ends, by an error, Ctrl-C or a
caller that stops reading, no task is at work when it has ended: nothing writes into a folder behind
the back of the next run. Inside `use_engine` the same tasks run in other processes; when one of those is
killed, what it was at is done again by others, and so writes the same bytes.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import joblib

from ..errors import EngineError
from ..folders.manifest import first_line
from .engines import Engine, current_engine, interrupts_kept_here
from .remote_objects import Call, Traveller, tell

ProgressCallback = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, in bytes or samples; total 0 means unknown."""
_MOST_RESULTS = 8
"""Results a worker may be ahead of the one that is waited for."""
_MOST_DEATHS = 3
"""Workers that may be killed one after another with no task finished between."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


def num_workers(workers: int) -> int:
    """``workers``, or the cores the run may use where it is 0: of this process, or of the whole cluster."""
    engine = current_engine()
    if workers > 0:
        return workers
    return engine.num_workers() if engine is not None else int(joblib.cpu_count())


def num_processes(workers: int) -> int:
    """How many processes beside this one hold memory for the run."""
    count = num_workers(workers)
    return count if current_engine() is not None and count > 1 else 0


class Advance(Traveller):
    """A function of a number that tasks may call; elsewhere they are summed, and heard when a task ends."""

    def __init__(self, function: Callable[[int], None]) -> None:
        self._function = function
        self._sum = 0

    def __call__(self, number: int) -> None:
        self._function(number)

    def luggage(self) -> tuple[()]:
        return ()

    @classmethod
    def arrive(cls) -> Advance:
        copy = cls(lambda number: None)
        copy._function = copy._add
        return copy

    def _add(self, number: int) -> None:
        self._sum += number

    def news(self) -> int:
        return self._sum

    def hear(self, news: int) -> None:
        self._function(news)


def run_tasks(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], *, workers: int = 0, here: bool = False
) -> Iterator[Any]:
    """Yield ``function(*task)`` for each task, in order, computed by ``workers``.

    Args:
        function: a top-level function, or a method of what can be pickled.
        tasks: arguments of each call: plain data, small, and `Traveller` objects.
        workers: 0 takes all there are.
        here: the tasks share arrays, so they run in threads of this process, whatever the engine.

    Raises:
        EngineError: workers were killed again and again.
    """
    engine, count = current_engine(), num_workers(workers)
    if engine is not None and here:
        engine, count = None, min(count, int(joblib.cpu_count()))
    if count == 1:
        for task in tasks:
            yield function(*task)
    elif engine is None:
        yield from _run_here(function, tasks, count)
    else:
        yield from _run_away(function, tasks, count, engine)


def _run_here(function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], count: int) -> Iterator[Any]:
    """In threads of the standard library: joblib looks whether its own are done every 10 ms only."""
    todo, in_order, unfinished = iter(tasks), deque[Future[Any]](), set[Future[Any]]()
    with ThreadPoolExecutor(count) as pool:  # waits for those begun however it is left
        try:
            while True:
                unfinished = {future for future in unfinished if not future.done()}
                while len(unfinished) < 2 * count and len(in_order) < _MOST_RESULTS * count:
                    if (task := next(todo, None)) is None:
                        break
                    in_order.append(pool.submit(function, *task))
                    unfinished.add(in_order[-1])
                if not in_order:
                    return
                if in_order[0].done():
                    yield in_order.popleft().result()
                else:
                    wait(unfinished, return_when=FIRST_COMPLETED)
        finally:
            for future in in_order:
                future.cancel()


def _run_away(
    function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]], count: int, engine: Engine
) -> Iterator[Any]:
    """Run tasks in other processes; those that a killed one was at are sent again."""
    errand = _Errand(function, iter(tasks), engine)
    num_deaths, results = 0, iter(())
    try:
        while not errand.is_done:
            try:
                with interrupts_kept_here():
                    results = engine.parallel(count)(errand.calls())
                for result, news in results:
                    num_deaths = 0
                    tell(news)
                    errand.under_way.popleft()
                    yield result
                errand.is_done = True
            except engine.deaths as death:
                num_deaths += 1
                errand.recall()
                engine.stop()
                if num_deaths == _MOST_DEATHS:
                    raise EngineError(
                        f"workers were killed {num_deaths} times in a row: {first_line(death)}",
                        hint="out of memory? fewer --workers need less; the same command goes on from here",
                    ) from death
    finally:
        if not errand.is_done:
            errand.recall()
            _end(results)
            engine.stop()


def _end(results: Any) -> None:
    """End joblib's generator, which kills the tasks it waits for and would warn of that."""
    with warnings.catch_warnings(), suppress(AttributeError):
        warnings.simplefilter("ignore")
        results.close()


class _Errand:
    """The tasks of one run that go to other processes."""

    def __init__(
        self, function: Callable[..., Any], tasks: Iterator[tuple[Any, ...]], engine: Engine
    ) -> None:
        self._function, self._tasks, self._engine = function, tasks, engine
        self._lock, self._round = threading.Lock(), 0
        self.under_way: deque[Call] = deque()
        """Sent, and their results not yet taken."""
        self.is_done = False

    def calls(self) -> Iterator[Any]:
        """As joblib wants them: what was sent before and is not done, then the rest; none once recalled."""
        sent, this_round = list(self.under_way), self._round
        for call in sent:
            yield call, (), {}
        while True:
            with self._lock:  # joblib asks from threads of its own, perhaps after it gave up
                task = next(self._tasks, None) if self._round == this_round else None
                if task is None:
                    return
                call = Call(self._function, task, ends_with_home=self._engine.ends_with_home)
                self.under_way.append(call)
            yield call, (), {}

    def recall(self) -> None:
        """Send no more."""
        with self._lock:
            self._round += 1
