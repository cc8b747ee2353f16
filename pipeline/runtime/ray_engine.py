"""Tasks in the processes of a Ray cluster, by Ray's own joblib backend.

A machine that dies takes its workers with it: workers are restarted on the remaining machines, perhaps
fewer, and repeat its tasks.

Objects of a run that its tasks use in other processes, and the calls that carry them there.

A task is sent to a worker as a pickled call. Most of its arguments are plain data. A `RemoteObject` is not:
unpickling it in the worker builds a copy from `state_for_worker`, and when the task ends, the copy's
`report` returns with the result and is applied to the original in the main process. So a stage passes its
tasks the same objects whether they run in its own threads or in other processes.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from itertools import count
from typing import Any, Generic, TypeVar

import joblib
import ray
from ray.util.joblib.ray_backend import RayBackend
from ray.util.multiprocessing.pool import ResultThread

from ..errors import ConfigError, EngineError

_BACKEND = "hotset-ray"
_MOST_WAIT_SECONDS = 3.0
_POLL_SECONDS = 0.05
_CONNECT_SECONDS = 5.0
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""No usage statistics are sent, and no warning is printed about GPUs, which no task uses."""


def _refuse_unreachable(address: str) -> None:
    """Raise EngineError if nothing listens at ``HOST:PORT``; Ray would try for minutes."""
    # Addresses that are no host and port are Ray's to judge.
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise EngineError(
            f"no Ray cluster answers at RAY_ADDRESS {address}: {error.strerror or error}",
            hint="set it to a running cluster, or unset it to start one on this machine",
        ) from error


def _print_nothing(*_: Any, **__: Any) -> None:
    """Print nothing: a killed worker is replaced, or ends the run with an error of ours."""


class _Backend(RayBackend):  # type: ignore[misc]
    """Ray's backend, allowed to yield results one by one: its pool may end before all are read."""

    supports_return_generator = True

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the pool, and start no other of that size: the cluster may have no room for it any more."""
        self.terminate()


class RayEngine:
    """Actors of a Ray cluster: the connected one, that of RAY_ADDRESS, or the one running on this machine.

    If there is none, one is started on this machine and ends with the run.
    """

    worker_failures = (ray.exceptions.RayError,)
    """Exceptions raised when a worker was killed, not when a task failed."""

    def __init__(self) -> None:
        self._parallel: Any = None
        self._count = 0
        for setting, value in _SETTINGS.items():
            os.environ.setdefault(setting, value)
        joblib.register_parallel_backend(_BACKEND, _Backend)
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._connect()
        self._most_workers = 0

    def _connect(self) -> None:
        _refuse_unreachable(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"no Ray cluster answers: {str(error).splitlines()[0]}",
                hint="set RAY_ADDRESS to a running cluster, or unset it to start one on this machine",
            ) from error
        # Ray prints news of dead nodes and workers on stdout, where it would mix with the command's output.
        ray._private.worker.print_to_stdstream = _print_nothing

    def num_workers(self) -> int:
        """Return the CPUs the cluster had at first: work is divided by this number, always the same."""
        self._most_workers = self._most_workers or self._num_cpus()
        return self._most_workers

    def _num_cpus(self) -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def parallel(self, count: int) -> Any:
        """Return a joblib.Parallel of ``count`` workers: results in order, two tasks per worker in flight."""
        if self._parallel is None or self._count != count:
            self.stop()
            self._parallel = self._start(count).__enter__()
            self._count = count
        return self._parallel

    def _start(self, count: int) -> Any:
        if count > self.num_workers():
            raise ConfigError(
                f"{count} workers on a Ray cluster of {self.num_workers()} CPUs", hint="give fewer --workers"
            )
        # As many workers as there is room for now: the tasks, and so the bytes, stay the same.
        free = self._wait_for(count)
        return joblib.Parallel(
            n_jobs=free,
            backend=_BACKEND,
            ray_remote_args={"num_cpus": 1},
            return_as="generator",
            pre_dispatch=2 * count,
            batch_size=1,
        )

    def _wait_for(self, count: int) -> int:
        """Return ``count``, or the free CPUs: a machine may have died, or others may use the cluster."""
        deadline = time.monotonic() + _MOST_WAIT_SECONDS
        while (free := int(ray.available_resources().get("CPU", 0))) < min(count, self._num_cpus()):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        return max(1, min(count, free))

    def stop(self) -> None:
        """End the workers and join the threads that wait for them: at exit they would crash Ray."""
        parallel = self._parallel
        self._parallel = None
        if parallel is not None:
            parallel.__exit__(None, None, None)
        deadline = time.monotonic() + _MOST_WAIT_SECONDS
        for thread in threading.enumerate():
            if isinstance(thread, ResultThread):
                thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Leave the cluster, if this engine joined it."""
        if self._is_ours:
            with suppress(Exception):  # a dying cluster may raise anything, and the run is over
                ray.shutdown()


Result = TypeVar("Result")
Reports = list[tuple[int, Any]]
"""The key of each object that a task used, and what its copy reported."""

_originals: weakref.WeakValueDictionary[int, RemoteObject] = weakref.WeakValueDictionary()
"""In the main process: objects that were sent to workers, by key."""
_keys = count()
_copies: list[tuple[int, RemoteObject]] = []
"""In a worker: copies that came with the current task; a worker runs one task at a time."""


class RemoteObject(ABC):
    """An object of the run that tasks may use in any process."""

    _key: int | None = None

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

    def __reduce__(self) -> Any:
        if self._key is None:
            self._key = next(_keys)
        _originals[self._key] = self
        return _build_copy, (type(self), self._key, self.state_for_worker())


def _build_copy(kind: type[RemoteObject], key: int, state: tuple[Any, ...]) -> RemoteObject:
    copy = kind.in_worker(*state)
    _copies.append((key, copy))
    return copy


class RemoteCall(Generic[Result]):
    """One task for a worker; calling it there returns the result and the reports."""

    def __init__(self, function: Callable[..., Result], task: tuple[Any, ...]) -> None:
        # Pickled here, not by the transport: the function is unpickled within `__call__`, where the copies
        # of remote objects are collected.
        self._packed = pickle.dumps((function, task), protocol=pickle.HIGHEST_PROTOCOL)
        self._folder = os.getcwd()
        self._task: tuple[Any, ...] = task
        """Never sent; keeps the originals alive until the reports are applied."""

    def __getstate__(self) -> tuple[bytes, str]:
        return self._packed, self._folder

    def __setstate__(self, state: tuple[bytes, str]) -> None:
        self._packed, self._folder = state

    def __call__(self) -> tuple[Result, Reports]:
        if os.getcwd() != self._folder:
            os.chdir(self._folder)
        _copies.clear()
        function, task = pickle.loads(self._packed)
        copies = list(_copies)
        with ExitStack() as stack:
            for _, copy in copies:
                stack.enter_context(copy.while_working())
            result = function(*task)
            return result, [(key, copy.report()) for key, copy in copies]


def apply_reports(reports: Reports) -> None:
    """Apply what a task's copies reported to the originals that still exist."""
    for key, report in reports:
        original = _originals.get(key)
        if original is not None:
            original.apply_report(report)
