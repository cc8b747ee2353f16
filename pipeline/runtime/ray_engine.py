"""Run tasks in the processes of a Ray cluster, by Ray's joblib backend.

If a machine dies, its workers are restarted on the remaining machines, perhaps fewer, and repeat its tasks.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

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
    """Print nothing: a killed worker is replaced, or ends the run with a HotsetError."""


class _Backend(RayBackend):  # type: ignore[misc]
    """Ray's backend, allowed to yield results one by one: its pool may end before all are read."""

    supports_return_generator = True

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the pool, and start no other of that size, which may no longer fit."""
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
