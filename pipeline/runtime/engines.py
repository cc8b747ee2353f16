"""Where tasks run: in threads, in processes of this machine, or in the processes of a Ray cluster.

Threads are the default and on one machine usually the fastest: kernels release the GIL, tables are held once
and nothing is sent. Processes cost 1 to 2 s to start and some 150 MiB each, and outlive one that is killed.
A cluster pays where one machine is too slow; all its machines see the folders at the same paths.
Whatever the engine, the same tasks write the same bytes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from ..errors import ConfigError, MissingExtraError

EngineName = Literal["threads", "processes", "ray"]
ENGINES = ("threads", "processes", "ray")


class Engine:
    """Processes beside this one that run tasks; started when first needed, kept from stage to stage."""

    name: EngineName
    deaths: tuple[type[BaseException], ...]
    """What is raised when a worker was killed, not when a task failed."""
    ends_with_home = False
    """Whether workers are children of this process."""

    def __init__(self) -> None:
        self._parallel: Any = None
        self._count = 0

    def num_workers(self) -> int:
        """Workers where no number is asked for."""
        raise NotImplementedError

    def parallel(self, count: int) -> Any:
        """A joblib.Parallel of ``count`` workers that yields in order; two tasks a worker in flight."""
        if self._parallel is None or self._count != count:
            self.stop()
            options = {"return_as": "generator", "pre_dispatch": 2 * count, "batch_size": 1}
            self._parallel = self._start(count, options).__enter__()
            self._count = count
        return self._parallel

    def _start(self, count: int, options: dict[str, Any]) -> Any:
        raise NotImplementedError

    def stop(self) -> None:
        """Let go of the workers; those at a task are killed."""
        parallel, self._parallel = self._parallel, None
        if parallel is not None:
            parallel.__exit__(None, None, None)

    def close(self) -> None:
        """Nothing will be asked for any more."""


class _Processes(Engine):
    """Fresh interpreters on this machine, by joblib's own executor, which never forks without exec."""

    name: EngineName = "processes"
    deaths = (BrokenProcessPool,)
    ends_with_home = True

    def num_workers(self) -> int:
        return int(joblib.cpu_count())

    def _start(self, count: int, options: dict[str, Any]) -> Any:
        return joblib.Parallel(n_jobs=count, backend="loky", max_nbytes=None, **options)

    def stop(self) -> None:
        if self._parallel is not None:
            super().stop()
            get_reusable_executor().shutdown(wait=True, kill_workers=True)


_current: ContextVar[Engine | None] = ContextVar("engine", default=None)


@contextmanager
def use_engine(name: EngineName) -> Iterator[None]:
    """Run the tasks of every stage called in the block where ``name`` says; changes no byte.

    Raises:
        ConfigError: there is no such engine.
        MissingExtraError: ray is not installed.
        EngineError: no cluster answers.
    """
    if name not in ENGINES:
        raise ConfigError(f"no engine {name!r}", hint=f"one of {', '.join(ENGINES)}")
    engine = _start(name)
    token = _current.set(engine)
    try:
        yield
    finally:
        _current.reset(token)
        if engine is not None:
            engine.stop()
            engine.close()


def _start(name: EngineName) -> Engine | None:
    if name == "ray":
        try:
            from .ray_engine import RayEngine
        except ModuleNotFoundError as error:
            raise MissingExtraError("--engine ray needs ray", hint="pip install 'hotset[ray]'") from error
        return RayEngine()
    return _Processes() if name == "processes" else None


def current_engine() -> Engine | None:
    """The engine of the block around, None for threads."""
    return _current.get()


@contextmanager
def interrupts_kept_here() -> Iterator[None]:
    """Processes started in the block are born deaf to Ctrl-C, which reaches all of a terminal's."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
