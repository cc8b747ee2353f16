"""Run independent tasks on workers.

Workers are threads by default, because every kernel releases the GIL. Results are yielded in the order of the
tasks, whatever order they finish in, and at most two tasks per worker are in flight, so the size of a task
bounds the memory. When a run ends, by an error, Ctrl-C or a caller that stops reading, no task is still
running that could write into the folder during the next run. Inside `use_engine` the same tasks run in other
processes; if one of those is killed, the others repeat its tasks, and write the same bytes.

`Resources` holds the workers, memory and progress callback of a call; none of them changes a byte.

A thread reuses its buffers for its next task, because fresh pages cost more than the work done in them: 0.1 s
per GiB at their first touch, and 2 s if the host of a virtual machine has to find the memory first. A reused
buffer may also still be in the processor's cache. The buffers of a stage's threads end with the threads;
those of the caller's thread are dropped when the next stage frees memory.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import EngineError, first_line
from .engines import current_engine
from .limits import usable_cores
from .remote_objects import RemoteCall, RemoteObject, Reports, apply_reports

if TYPE_CHECKING:
    from .ray_engine import RayEngine


Result = TypeVar("Result")
Task = tuple[Any, ...]
_MOST_RESULTS = 8
"""Results per worker that may wait for an earlier one."""
_MOST_WORKER_FAILURES = 3
"""Workers that may be killed one after another with no task finished between."""


def num_workers(workers: int) -> int:
    """Return ``workers``, or if it is 0 the cores the run may use: of this process, or of the cluster."""
    engine = current_engine()
    if workers > 0:
        return workers
    return engine.num_workers() if engine is not None else usable_cores()


def num_processes(workers: int) -> int:
    """Return how many other processes hold memory for the run."""
    count = num_workers(workers)
    return count if current_engine() is not None and count > 1 else 0


class Advance(RemoteObject):
    """A progress callback of one number; a worker process sums its numbers and reports them per task."""

    def __init__(self, function: Callable[[int], None]) -> None:
        self._function = function
        self._sum = 0

    def __call__(self, number: int) -> None:
        self._function(number)

    def state_for_worker(self) -> tuple[()]:
        return ()

    @classmethod
    def in_worker(cls) -> Advance:
        copy = cls(lambda number: None)
        copy._function = copy._add
        return copy

    def _add(self, number: int) -> None:
        self._sum += number

    def report(self) -> int:
        return self._sum

    def apply_report(self, report: int) -> None:
        self._function(report)


def run_tasks(
    function: Callable[..., Result],
    tasks: Iterable[Task],
    *,
    workers: int = 0,
    shares_memory: bool = False,
) -> Generator[Result]:
    """Yield ``function(*task)`` for each task, in order, computed by ``workers``.

    Args:
        function: a top-level function, or a method of an object that can be pickled.
        tasks: arguments of each call: plain data, small, and `RemoteObject` instances.
        workers: number of workers; 0 takes every core.
        shares_memory: the tasks share arrays, so they run in threads of this process, whatever the engine.

    Raises:
        EngineError: workers were killed again and again.
    """
    engine = current_engine()
    count = num_workers(workers)
    # Tasks that share memory stay in this process, whatever engine is in force.
    if engine is not None and shares_memory:
        engine = None
        count = min(count, usable_cores())
    # One worker needs no thread.
    if count == 1:
        for task in tasks:
            yield function(*task)
    elif engine is None:
        yield from _run_in_threads(function, tasks, count)
    else:
        yield from _run_in_processes(function, tasks, count, engine)


def _run_in_threads(function: Callable[..., Result], tasks: Iterable[Task], count: int) -> Iterator[Result]:
    """Run tasks in threads of the standard library: joblib polls its own only every 10 ms."""
    todo = iter(tasks)
    in_order: deque[Future[Result]] = deque()
    unfinished: set[Future[Result]] = set()
    pool = ThreadPoolExecutor(count)
    is_closed = False
    try:
        while True:
            # Submit while fewer than two tasks per worker are unfinished and not too many results wait for a
            # slow one.
            unfinished = {future for future in unfinished if not future.done()}
            while len(unfinished) < 2 * count and len(in_order) < _MOST_RESULTS * count:
                if (task := next(todo, None)) is None:
                    break
                in_order.append(pool.submit(function, *task))
                unfinished.add(in_order[-1])
            if not in_order:
                return
            # Yield the oldest result if it is there, else sleep until any task ends and submit again.
            if in_order[0].done():
                yield in_order.popleft().result()
            else:
                wait(unfinished, return_when=FIRST_COMPLETED)
    except GeneratorExit:
        is_closed = True
        raise
    finally:
        # By whatever way it ends, tasks that have started are waited for.
        wait([future for future in in_order if not future.cancel()])
        # Threads are joined, too, which frees their buffers; but not where the caller stopped reading, as
        # then it may be the collector of garbage that closes this generator. It runs in any thread, at any
        # allocation: also while a thread starts or joins another one, and so holds a lock that to join a
        # thread here would wait for.
        pool.shutdown(wait=not is_closed)


def _run_in_processes(
    function: Callable[..., Result], tasks: Iterable[Task], count: int, engine: RayEngine
) -> Iterator[Result]:
    """Run tasks in other processes; those that a killed worker did not finish are sent again."""
    run = _RemoteRun(function, iter(tasks))
    num_failures = 0
    results: Iterator[tuple[Result, Reports]] = iter(())
    try:
        while not run.is_done:
            try:
                results = engine.parallel(count)(run.calls())
                for result, reports in results:
                    num_failures = 0
                    apply_reports(reports)
                    run.in_flight.popleft()
                    yield result
                run.is_done = True
            except engine.worker_failures as failure:
                # A killed worker breaks the whole pool: start another, which gets the tasks in flight first.
                num_failures += 1
                run.cancel()
                engine.stop()
                if num_failures == _MOST_WORKER_FAILURES:
                    raise EngineError(
                        f"workers were killed {num_failures} times in a row: {first_line(failure)}",
                        hint="out of memory? fewer --workers need less; the same command resumes the run",
                    ) from failure
    finally:
        # A task failed or the caller stopped reading: no worker may go on writing.
        if not run.is_done:
            run.cancel()
            _close(results)
            engine.stop()


def _close(results: Iterator[Any]) -> None:
    """Close joblib's generator, which kills the tasks it waits for and would warn of that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(results, Generator):
            results.close()


class _RemoteRun:
    """The tasks of one `run_tasks` that are sent to other processes."""

    def __init__(self, function: Callable[..., Any], tasks: Iterator[Task]) -> None:
        self._function = function
        self._tasks = tasks
        self._lock = threading.Lock()
        self._attempt = 0
        self.in_flight: deque[RemoteCall[Any]] = deque()
        """Tasks that were sent and whose results are not taken yet."""
        self.is_done = False

    def calls(self) -> Iterator[tuple[RemoteCall[Any], tuple[()], dict[str, Any]]]:
        """Yield calls as joblib wants them: those in flight again, then the rest; none once cancelled."""
        sent = list(self.in_flight)
        attempt = self._attempt
        for call in sent:
            yield call, (), {}
        while True:
            # joblib asks from its threads, perhaps even after it gave up: then the attempt has changed, and
            # the next task belongs to the next attempt.
            with self._lock:
                task = next(self._tasks, None) if self._attempt == attempt else None
                if task is None:
                    return
                call = RemoteCall(self._function, task)
                self.in_flight.append(call)
            yield call, (), {}

    def cancel(self) -> None:
        """Send no more tasks in this attempt."""
        with self._lock:
            self._attempt += 1


ProgressCallback = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, in bytes or samples; total 0 means unknown."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Workers, memory and progress of one call; never part of a config or a fingerprint."""

    workers: int = 0
    """Number of workers; 0 takes every core the run may use."""

    memory_bytes: int | None = None
    """Cap on anonymous resident memory of all processes together; None takes a quarter of the machine's."""

    progress: ProgressCallback = silent
    """Receives the progress of each stage."""


DEFAULT_RESOURCES = Resources()
"""Every core, a quarter of the machine's memory, and no progress shown."""


_local = threading.local()


def thread_buffer(name: str, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Return an uninitialized array that is the calling thread's until it requests ``name`` again."""
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    held: dict[str, NDArray[np.uint8]] = _local.__dict__
    if name not in held or held[name].nbytes < num_bytes:
        # Free the old buffer first, so that the two never exist together; an eighth more than requested lets
        # parts of slightly different sizes share one.
        held.pop(name, None)
        held[name] = np.empty(num_bytes + num_bytes // 8, np.uint8)
    array: NDArray[Any] = held[name][:num_bytes].view(dtype).reshape(shape)
    return array


def placed_like_file(memory: NDArray[np.uint8], position: int) -> NDArray[np.uint8]:
    """Return the end of ``memory`` that begins as far into a page as a file does at ``position``.

    On AMD's Zen 3 the system takes 4 times as long to copy text from the page cache to memory that begins 1
    to 31 bytes further into its page, as large arrays do: 95 ns for a line of Criteo's log and not 24.

    Args:
        memory: contiguous, mmap.PAGESIZE bytes longer than what is wanted of it.
        position: bytes.
    """
    return memory[(position - memory.ctypes.data) % mmap.PAGESIZE :]


def drop_thread_buffers() -> None:
    """Drop the calling thread's buffers."""
    _local.__dict__.clear()


def release_pages(array: NDArray[Any]) -> None:
    """Return the pages of a contiguous array to the system; its values are undefined from then on."""
    # Only whole pages may go: the first and last may hold bytes of others.
    start = -(-array.ctypes.data // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (array.ctypes.data + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if stop > start and hasattr(mmap, "MADV_DONTNEED"):
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), mmap.MADV_DONTNEED)
