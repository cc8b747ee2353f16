"""Where tasks run: in threads, in processes of this machine, or in the processes of a Ray cluster.

Threads are the default and usually the fastest on one machine: kernels release the GIL, tables are held once
and nothing is serialized. Processes cost 1 to 2 s to start and some 150 MiB each, and survive the kill of
one of them. A cluster pays off where one machine is too slow; all its machines see the folders at the same
paths. Whatever the engine, the same tasks write the same bytes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..errors import ConfigError, MissingExtraError, install_hint
from .engine import ENGINES, Engine, EngineName

_current: ContextVar[Engine | None] = ContextVar("engine", default=None)


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
    # The engine starts before the first task, so that what it lacks is told at once.
    engine = _start_engine(name)
    token = _current.set(engine)
    try:
        yield
    finally:
        _current.reset(token)
        if engine is not None:
            engine.stop()
            engine.close()


def _start_engine(name: EngineName) -> Engine | None:
    if name == "ray":
        try:
            from .ray_engine import RayEngine
        except ModuleNotFoundError as error:
            raise MissingExtraError("--engine ray needs ray", hint=install_hint("ray")) from error
        return RayEngine()
    if name == "processes":
        # joblib takes longer to import than many commands run, and threads do without it.
        from .process_engine import ProcessEngine

        return ProcessEngine()
    return None


def current_engine() -> Engine | None:
    """Return the engine of the surrounding `use_engine`, None for threads."""
    return _current.get()


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Start child processes that ignore SIGINT, which a terminal sends to all; the parent handles it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
