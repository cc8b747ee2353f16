"""Run independent tasks on workers, within ``--memory``.

Workers are threads by default: kernels release the GIL, tables are held once and nothing is serialized. With
the engine ``ray`` they are processes of a Ray cluster, which pays off where one machine is too slow; all its
machines see the folders at the same paths. Whatever the engine, the same tasks write the same bytes.

Results are yielded in the order of the tasks, whatever order they finish in, and at most two tasks per worker
are in flight, so the size of a task bounds the memory. When a run ends, by an error, Ctrl-C or a caller that
stops reading, no task is still running that could write into the folder during the next run.

`Resources` holds the workers, memory and progress callback of a call; none of them changes a byte. The cap is
on anonymous resident memory, of this process and its workers on one machine together. Part of it is spent
before a stage begins (interpreter, libraries, compiled kernels, what the allocators keep): the rest is the
stage's room. Pages of mapped files belong to the page cache and do not count, so what a stage cannot hold
goes to files, see `folders.output`. On a cluster every machine has the cap, or by default a quarter of its
own memory; of machines that differ the one with the least room decides. More machines never leave a worker
less.

A thread reuses its buffers for its next task, because fresh pages cost more than the work done in them: 0.1 s
per GiB at their first touch, and 2 s if the host of a virtual machine has to find the memory first. A reused
buffer may also still be in the processor's cache. The buffers of a stage's threads end with the threads;
those of the caller's thread are dropped when the next stage frees memory.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import MIB, ConfigError, MemoryCapError, MissingExtraError, format_byte_size, install_hint
from .limits import SHARE, Node, anonymous_bytes, default_memory_bytes, usable_cores

if TYPE_CHECKING:
    from .ray_engine import RayEngine

Result = TypeVar("Result")
Task = tuple[Any, ...]
EngineName = Literal["threads", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
_MOST_RESULTS = 8
"""Results per worker that may wait for an earlier one."""
_engine: ContextVar[RayEngine | None] = ContextVar("engine", default=None)
"""Engine of the surrounding `use_engine`, None for threads."""


@contextmanager
def use_engine(name: EngineName) -> Iterator[None]:
    """Run the tasks of every stage called in the block by engine ``name``; changes no byte.

    Raises:
        ConfigError: there is no such engine.
        MissingExtraError: ray is not installed.
        EngineError: no cluster answers.
    """
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r}", hint=f"use one of {', '.join(ENGINES)}")
    # The engine starts before the first task, so that a missing cluster is reported first.
    engine = _start_ray() if name == "ray" else None
    token = _engine.set(engine)
    try:
        yield
    finally:
        _engine.reset(token)
        if engine is not None:
            engine.close()


class _Imagined:
    """Equal machines that run nothing."""

    def __init__(self, machines: Sequence[Node]) -> None:
        self.machines = list(machines)

    def nodes(self) -> list[Node]:
        return self.machines

    def num_workers(self) -> int:
        return sum(node.cores for node in self.machines)


@contextmanager
def imagined_cluster(machines: Sequence[Node]) -> Iterator[None]:
    """Count workers and memory in the block as on a cluster of equal machines; here if there are none."""
    token = _engine.set(_Imagined(machines) if machines else _engine.get())  # type: ignore[arg-type]
    try:
        yield
    finally:
        _engine.reset(token)


def imagined_node() -> Node | None:
    """Return the machine that starts the run in `imagined_cluster`, None elsewhere."""
    engine: object = _engine.get()
    return engine.machines[0] if isinstance(engine, _Imagined) else None


def _start_ray() -> RayEngine:
    try:
        from .ray_engine import RayEngine
    except ModuleNotFoundError as error:
        raise MissingExtraError("--engine ray needs ray", hint=install_hint("ray")) from error
    return RayEngine()


def num_workers(workers: int) -> int:
    """Return ``workers``, or if it is 0 the cores the run may use: of this process, or of the cluster."""
    engine = _engine.get()
    if workers > 0:
        return workers
    return engine.num_workers() if engine is not None else usable_cores()


def cores_of_worker(nodes: Sequence[Node], workers: int) -> int:
    """Return the cores that a worker takes, the most with which the nodes run ``workers`` together."""
    cores = 1
    while sum(node.cores // (cores + 1) for node in nodes) >= workers:
        cores += 1
    return cores


def nodes() -> list[Node]:
    """Return the machines of the cluster; none without one."""
    engine = _engine.get()
    return engine.nodes() if engine is not None else []


def crew_size(workers: int) -> int:
    """Return how many workers one machine runs at a time at most: caps are those of a machine."""
    count = num_workers(workers)
    cores = cores_of_worker(nodes(), count) if nodes() else 1
    return max((node.num_workers(cores, count) for node in nodes()), default=count)


def threads_here(workers: int) -> int:
    """Return how many threads run tasks that share memory: of this machine, whatever the engine."""
    count = num_workers(workers)
    imagined = imagined_node()
    return count if _engine.get() is None else min(count, imagined.cores if imagined else usable_cores())


def num_processes(workers: int) -> int:
    """Return how many other processes hold memory for the run on one machine at most."""
    return crew_size(workers) if _engine.get() is not None and num_workers(workers) > 1 else 0


_packed = threading.local()
"""Its ``objects`` are the remote objects of the call that this thread packs or unpacks, in order."""


class RemoteObject(ABC):
    """An object of the run that tasks use in any process: a worker gets a copy, which reports back."""

    @abstractmethod
    def state_for_worker(self) -> tuple[Any, ...]:
        """Return the arguments of `in_worker`: plain data that a copy is built from."""

    @classmethod
    @abstractmethod
    def in_worker(cls, *state: Any) -> RemoteObject:
        """Build a copy in a worker."""

    def while_working(self) -> AbstractContextManager[Any]:
        """Return a context that a copy holds while its task runs."""
        return nullcontext()

    @abstractmethod
    def report(self) -> Any:
        """Return, in a worker, what the main process has to know of the task; plain data."""

    @abstractmethod
    def apply_report(self, report: Any) -> None:
        """Apply, in the main process, what a copy reported."""

    def __reduce__(self) -> tuple[Any, ...]:
        _packed.objects.append(self)
        return _copy_of, (type(self), self.state_for_worker())


def _copy_of(kind: type[RemoteObject], state: tuple[Any, ...]) -> RemoteObject:
    copy = kind.in_worker(*state)
    _packed.objects.append(copy)
    return copy


def pack_call(function: Callable[..., Any], task: Task) -> tuple[bytes, list[RemoteObject]]:
    """Return a task as `run_packed` takes it, and the objects that its reports are for, in their order."""
    _packed.objects = []
    return pickle.dumps((function, task), pickle.HIGHEST_PROTOCOL), _packed.objects


def run_packed(packed: bytes, folder: str) -> tuple[Any, list[Any]]:
    """In a worker: run one task in the working directory of the main process; return result and reports."""
    if os.getcwd() != folder:
        os.chdir(folder)
    # Pickle builds each object once, in the order in which it packed them.
    _packed.objects = []
    function, task = pickle.loads(packed)
    copies: list[RemoteObject] = _packed.objects
    with ExitStack() as stack:
        for copy in copies:
            stack.enter_context(copy.while_working())
        return function(*task), [copy.report() for copy in copies]


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
    engine = _engine.get()
    count = num_workers(workers)
    # Tasks that share memory stay in this process, whatever engine is in force.
    if engine is not None and shares_memory:
        engine = None
        count = threads_here(workers)
    # One worker needs no thread.
    if count == 1:
        for task in tasks:
            yield function(*task)
    elif engine is None:
        yield from _run_in_threads(function, tasks, count)
    else:
        yield from _run_in_cluster(function, tasks, count, engine)


def _run_in_threads(function: Callable[..., Result], tasks: Iterable[Task], count: int) -> Iterator[Result]:
    in_order: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(count)
    is_closed = False
    try:
        submitted = (pool.submit(function, *task) for task in tasks)
        for future in _finished(submitted, in_order, count):
            yield future.result()
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


def _run_in_cluster(
    function: Callable[..., Result], tasks: Iterable[Task], count: int, engine: RayEngine
) -> Iterator[Result]:
    folder = os.getcwd()
    in_order: deque[Future[tuple[Result, list[Any]]]] = deque()
    originals: deque[list[RemoteObject]] = deque()

    def submitted() -> Iterator[Future[tuple[Result, list[Any]]]]:
        for task in tasks:
            packed, used = pack_call(function, task)
            originals.append(used)
            yield engine.submit(cores, run_packed, packed, folder)

    engine.check_workers(count)
    # A worker takes as many cores as leave each machine no more workers than its memory was divided among.
    cores = cores_of_worker(engine.nodes(), count)
    is_full = sum(node.cores // cores for node in engine.nodes()) == count
    try:
        for future in _finished(submitted(), in_order, count, ahead=2 if is_full else 1):
            result, reports = engine.result(future)
            for original, report in zip(originals.popleft(), reports, strict=True):
                original.apply_report(report)
            yield result
    finally:
        # A task failed or the caller stopped reading: no worker may go on writing.
        engine.cancel(in_order)


def _finished(
    submitted: Iterator[Future[Result]], in_order: deque[Future[Result]], count: int, ahead: int = 2
) -> Iterator[Future[Result]]:
    """Yield futures in order as they finish; ``in_order`` holds those that are submitted and not yielded.

    ``ahead``: tasks per worker that are submitted and not finished.
    """
    unfinished: set[Future[Result]] = set()
    while True:
        # Submit while few tasks per worker are unfinished and not too many results wait for a slow one.
        unfinished = {future for future in unfinished if not future.done()}
        while len(unfinished) < ahead * count and len(in_order) < _MOST_RESULTS * count:
            if (future := next(submitted, None)) is None:
                break
            in_order.append(future)
            unfinished.add(future)
        if not in_order:
            return
        # Yield the oldest result if it is there, else sleep until any task ends and submit again.
        if in_order[0].done():
            yield in_order.popleft()
        else:
            wait(unfinished, return_when=FIRST_COMPLETED)


ProgressCallback = Callable[[str, int, int], None]
"""Called as ``progress(stage, done, total)``, in bytes or samples; total 0 means unknown."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Workers, memory, progress and scratch of one call; never part of a config or a fingerprint."""

    workers: int = 0
    """Number of workers; 0 takes every core the run may use."""

    memory_bytes: int | None = None
    """Cap on the anonymous resident memory of the run on one machine; None takes a quarter of what it has."""

    progress: ProgressCallback = silent
    """Receives the progress of each stage."""

    scratch: Path | None = None
    """Folder for large temporary files of `pack`; None takes the unfinished folder of the shards."""


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


Item = TypeVar("Item")
FIXED_BYTES = 160 * MIB
"""Memory of the interpreter, libraries and kernels; 47 MiB at import, 110 to 140 after some stages."""
_SLACK_BYTES = 32 * MIB
"""Allowance for what allocators take beyond what is requested."""
_WAYS_OUT = {"ingest": "a smaller --block-bytes needs less"}
"""Remedies of stages that take fewer workers by themselves where memory is short."""


def room_for(stage: str, resources: Resources, needed_bytes: int, *, here: bool = False) -> int:
    """Return the bytes that ``stage`` may hold at a time on each machine; at least ``needed_bytes``.

    Args:
        stage: for the message.
        resources: the cap, and the workers: each may be a process, which has fixed costs too. Without a cap
            the stage gets a quarter of the machine's memory, or what it needs.
        needed_bytes: the least the stage can do with on a machine.
        here: the tasks share memory, so they run in threads of this machine, whatever the engine.

    Raises:
        MemoryCapError: the stage cannot keep within the cap; the hint names one that would do.
    """
    check_cap(stage, resources, needed_bytes, here=here)
    give_back()
    return max(needed_bytes, min(rooms_of_machines(resources, here=here)))


def rooms_of_machines(resources: Resources, *, here: bool = False) -> list[int]:
    """Return what the cap of each machine leaves; negative where its processes take more."""
    spent = max(FIXED_BYTES, anonymous_bytes() + _SLACK_BYTES)
    cap = resources.memory_bytes
    if here or not nodes():
        imagined = imagined_node()
        own = imagined.memory_bytes // SHARE if imagined else default_memory_bytes()
        return [(cap or own) - spent]
    # Each worker process spends the fixed part of an interpreter before it holds anything for the stage.
    workers = num_workers(resources.workers)
    cores = cores_of_worker(nodes(), workers)
    crews = [node.num_workers(cores, workers) if workers > 1 else 0 for node in nodes()]
    caps = [cap or node.memory_bytes // SHARE for node in nodes()]
    return [own - spent - crew * FIXED_BYTES for own, crew in zip(caps, crews, strict=True)]


def workers_within(stage: str, resources: Resources, worker_bytes: int, shared_bytes: int = 0) -> int:
    """Return the largest number of workers that keeps ``stage`` within the memory cap of every machine.

    Args:
        stage: for the message.
        resources: the cap, a quarter of the machine's memory where there is none, and the most workers.
        worker_bytes: memory of each worker.
        shared_bytes: memory that the workers of a machine should have in common; one worker does without.

    Raises:
        MemoryCapError: not even one worker keeps a cap that was given; the hint names one that would do.
    """
    # One worker fewer until all fit, as each takes the same.
    fewer = replace(resources, workers=num_workers(resources.workers))
    while fewer.workers > 1:
        needed = crew_size(fewer.workers) * worker_bytes + shared_bytes
        if min(rooms_of_machines(fewer)) >= needed:
            break
        fewer = replace(fewer, workers=fewer.workers - 1)
    check_cap(stage, replace(resources, workers=1), worker_bytes)
    return fewer.workers


def least_cap(resources: Resources, needed_bytes: int, *, here: bool = False) -> int:
    """Return the smallest ``--memory`` for a stage (bytes), with the fixed costs of a machine's processes."""
    return (1 + (0 if here else num_processes(resources.workers))) * FIXED_BYTES + needed_bytes


def check_cap(stage: str, resources: Resources, needed_bytes: int, *, here: bool = False) -> None:
    """Raise MemoryCapError where ``stage`` cannot keep within the memory cap, if there is one."""
    check_caps(resources, {stage: least_cap(resources, needed_bytes, here=here)})


def check_caps(resources: Resources, least_caps: Mapping[str, int]) -> None:
    """Raise MemoryCapError where one of the stages cannot keep within the memory cap, if there is one.

    The error names the stage that needs the most, so the cap in its hint does for all of them. An imagined
    machine has no more memory than it is said to have.
    """
    stage, largest = max(least_caps.items(), key=lambda need: need[1])
    option, cap = "--memory", resources.memory_bytes
    machine = imagined_node()
    if machine is not None and (cap is None or machine.memory_bytes < cap):
        option, cap = "--node-memory", machine.memory_bytes
    if cap is None or cap >= largest:
        return
    # Rounded up to whole mebibytes, so that the cap in the hint is accepted.
    enough = -(-largest // MIB)
    way_out = _WAYS_OUT.get(stage, "fewer --workers need less")
    error = MemoryCapError(
        f"{stage} cannot stay within {format_byte_size(cap)} of memory",
        hint=f"{option} {enough}MiB would do; {way_out}",
    )
    error.least_bytes = largest
    raise error


def groups_within(
    room_bytes: int, items: Iterable[Item], bytes_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Group consecutive items that fit in ``room_bytes`` together; one that does not is a group by itself."""
    group: list[Item] = []
    held = 0
    # Items are not reordered: a group is a run of them.
    for item in items:
        needed = bytes_of(item)
        if group and held + needed > room_bytes:
            yield group
            group = []
            held = 0
        group.append(item)
        held += needed
    if group:
        yield group


def give_back() -> None:
    """Return to the system what this thread's buffers and the allocators keep."""
    import pyarrow as pa  # which stages have imported

    # First what this package keeps, then the pools of Arrow and of the C library.
    drop_thread_buffers()
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # another C library
        return
