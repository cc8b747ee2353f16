"""Run tasks in the processes of a Ray cluster.

If a worker or its machine dies, Ray runs the task again on another one.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import ray

from ..errors import ConfigError, EngineError, first_line
from .limits import Node

_MOST_RETRIES = 2
"""Times that a task is run again after its worker was killed."""
_MOST_WAIT_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
"""No usage statistics are sent, and no warning is printed about GPUs, which no task uses."""


def _check_reachable(address: str) -> None:
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


def nodes_of(found: Iterable[Mapping[str, Any]]) -> list[Node]:
    """Return the machines that run workers, by what Ray says of its nodes; several may share a machine."""
    machines: dict[str, Node] = {}
    for node in found:
        has = node["Resources"]
        cores = int(has.get("CPU", 0))
        if not node["Alive"] or not cores:
            continue
        # Ray divides the memory of a machine, or of its container, into these two.
        memory_bytes = int(has.get("memory", 0) + has.get("object_store_memory", 0))
        known = machines.get(node["NodeManagerAddress"], Node(0, 0))
        most = max(known.memory_bytes, memory_bytes)
        machines[node["NodeManagerAddress"]] = Node(known.cores + cores, most)
    return list(machines.values())


class RayEngine:
    """A Ray cluster: the connected one, that of RAY_ADDRESS, or the one running on this machine.

    If there is none, one is started on this machine and ends with the run.
    """

    def __init__(self) -> None:
        for setting, value in _SETTINGS.items():
            os.environ.setdefault(setting, value)
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            self._connect()
        self._nodes = nodes_of(ray.nodes())
        if not self._nodes:
            self.close()
            raise EngineError("the Ray cluster has no node with CPUs: start one that joins it")
        self._tasks: dict[Future[Any], Any] = {}
        """Ray's reference to each task whose result is not taken yet."""
        self._functions: dict[Callable[..., Any], Any] = {}
        """Ray sends a function to its workers once, and takes one that is given anew for another."""

    def _connect(self) -> None:
        _check_reachable(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"no Ray cluster answers: {str(error).splitlines()[0]}",
                hint="set RAY_ADDRESS to a running cluster, or unset it to start one on this machine",
            ) from error
        # Ray prints news of dead nodes and workers on stdout, where it would mix with the command's output.
        ray._private.worker.print_to_stdstream = _print_nothing

    def nodes(self) -> list[Node]:
        """Return the machines the cluster had at first: work is divided among them, always the same."""
        return self._nodes

    def num_workers(self) -> int:
        """Return the CPUs the cluster had at first."""
        return sum(node.cores for node in self._nodes)

    def check_workers(self, count: int) -> None:
        """Raise ConfigError for more workers than the cluster has CPUs."""
        if count > self.num_workers():
            raise ConfigError(
                f"{count} workers on a Ray cluster of {self.num_workers()} CPUs", hint="give fewer --workers"
            )

    def submit(self, cores: int, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run a call on some CPUs of one node; it is repeated if its worker is killed."""
        if function not in self._functions:
            self._functions[function] = ray.remote(function)
        remote = self._functions[function].options(num_cpus=cores, max_retries=_MOST_RETRIES)
        task = remote.remote(*arguments)
        future: Future[Any] = task.future()
        self._tasks[future] = task
        return future

    def result(self, future: Future[Any]) -> Any:
        """Return what a call returned, or raise what it raised.

        Raises:
            EngineError: its workers were killed again and again.
        """
        del self._tasks[future]
        try:
            return future.result()
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise EngineError(
                f"workers were killed {1 + _MOST_RETRIES} times in a row: {first_line(error)}",
                hint="out of memory? fewer --workers need less; the same command resumes the run",
            ) from error

    def cancel(self, futures: Iterable[Future[Any]]) -> None:
        """Kill the workers of these calls."""
        tasks = [self._tasks.pop(future) for future in futures]
        for task in tasks:
            ray.cancel(task, force=True)
        if tasks:
            ray.wait(tasks, num_returns=len(tasks), timeout=_MOST_WAIT_SECONDS)

    def close(self) -> None:
        """Leave the cluster, if this engine joined it."""
        if self._is_ours:
            with suppress(Exception):  # a dying cluster may raise anything, and the run is over
                ray.shutdown()
