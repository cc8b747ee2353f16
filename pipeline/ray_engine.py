"""Tasks in the processes of a Ray cluster, by the joblib backend that Ray brings.

A machine that dies takes its workers with it: workers are started anew on those left, fewer perhaps, and do
its tasks again.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import Any

import joblib
import ray
from ray.util.joblib.ray_backend import RayBackend

from .engines import Engine, EngineName
from .errors import ConfigError, EngineError

_BACKEND = "hotset-ray"
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""Nothing is sent to anyone, and a warning about GPUs, which no task uses, stays away."""


class _Backend(RayBackend):  # type: ignore[misc]
    """Ray's, which may yield results as they come: ending its pool before all are read does no harm."""

    supports_return_generator = True


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
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"no Ray cluster answers: {str(error).splitlines()[0]}",
                hint="RAY_ADDRESS names one that runs; without it one is started on this machine",
            ) from error

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
        return joblib.Parallel(n_jobs=min(count, self._cpus()), backend=_BACKEND, **options)

    def close(self) -> None:
        """Leave the cluster where this engine joined it."""
        if self._is_ours:
            with suppress(Exception):  # whatever state a dying cluster is in
                ray.shutdown()
