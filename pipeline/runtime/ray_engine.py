"""Tasks in the processes of a Ray cluster, by the joblib backend that Ray brings.

A machine that dies takes its workers with it: workers are started anew on those left, fewer perhaps, and do
its tasks again.
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
from .engines import Engine, EngineName

_BACKEND = "hotset-ray"
_MOST_SECONDS, _POLL_SECONDS = 3.0, 0.05
_CONNECT_SECONDS = 5.0
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Nothing is sent to anyone, and a warning about GPUs, which no task uses, stays away."""


def _refuse_silence(address: str) -> None:
    """Raise EngineError at once where nobody listens at ``HOST:PORT``; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "://" in address or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise EngineError(
            f"no Ray cluster answers at RAY_ADDRESS {address}: {error.strerror or error}",
            hint="name one that runs, or unset it: without one Ray starts on this machine",
        ) from error


def _say_nothing(*_: Any, **__: Any) -> None:
    """Deaths are made up for, or end the run with an error of its own."""


class _Backend(RayBackend):  # type: ignore[misc]
    """Ray's, which may yield results as they come: ending its pool before all are read does no harm."""

    supports_return_generator = True

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the pool, and start no other of that size: there may be no room for it any more."""
        self.terminate()


class RayEngine(Engine):
    """Actors of the cluster that is connected already, that RAY_ADDRESS names, or that runs on this machine;
    where there is none, of one that is started here and ends with the run."""

    name: EngineName = "ray"

    def __init__(self) -> None:
        super().__init__()
        for setting, value in _SETTINGS.items():
            os.environ.setdefault(setting, value)
        self.deaths = (ray.exceptions.RayError,)
        joblib.register_parallel_backend(_BACKEND, _Backend)
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._connect()
        self._most = 0

    def _connect(self) -> None:
        _refuse_silence(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"no Ray cluster answers: {str(error).splitlines()[0]}",
                hint="RAY_ADDRESS names one that runs; without it one is started on this machine",
            ) from error
        # What Ray tells of nodes and workers that died it would print on stdout, among the command's data.
        ray._private.worker.print_to_stdstream = _say_nothing

    def num_workers(self) -> int:
        """The cluster's CPUs when the run began; what is divided by workers must not change under way."""
        self._most = self._most or self._cpus()
        return self._most

    def _cpus(self) -> int:
        return max(1, int(ray.cluster_resources().get("CPU", 1)))

    def _start(self, count: int, options: dict[str, Any]) -> Any:
        if count > self.num_workers():
            raise ConfigError(
                f"{count} workers on a Ray cluster of {self.num_workers()} CPUs", hint="give fewer --workers"
            )
        free, one_each = self._wait_for(count), {"num_cpus": 1}
        return joblib.Parallel(n_jobs=free, backend=_BACKEND, ray_remote_args=one_each, **options)

    def _wait_for(self, count: int) -> int:
        """``count``, or the CPUs that are free: a machine may have died, others may use the cluster."""
        deadline = time.monotonic() + _MOST_SECONDS
        while (free := int(ray.available_resources().get("CPU", 0))) < min(count, self._cpus()):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        return max(1, min(count, free))

    def stop(self) -> None:
        """Let go of the workers, and wait until no thread waits for them: at the end Ray would crash."""
        super().stop()
        deadline = time.monotonic() + _MOST_SECONDS
        for thread in threading.enumerate():
            if isinstance(thread, ResultThread):
                thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Leave the cluster where this engine joined it."""
        if self._is_ours:
            with suppress(Exception):  # whatever state a dying cluster is in
                ray.shutdown()
