"""Engines of tasks: threads of this process, or a Ray cluster.

Threads are the default and the fastest on one machine: kernels release the GIL, tables are held once and
nothing is serialized. A cluster pays off where one machine is too slow; all its machines see the folders at
the same paths. Whatever the engine, the same tasks write the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import ConfigError, MissingExtraError, install_hint

if TYPE_CHECKING:
    from .ray_engine import RayEngine

EngineName = Literal["threads", "ray"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)

_current: ContextVar[RayEngine | None] = ContextVar("engine", default=None)


@contextmanager
def use_engine(name: EngineName) -> Iterator[None]:
    """Run the tasks of every stage called in the block by engine ``name``; changes no byte.

    Raises:
        ConfigError: there is no such engine.
        MissingExtraError: ray or joblib is not installed.
        EngineError: no cluster answers.
    """
    if name not in ENGINES:
        raise ConfigError(f"there is no engine {name!r}", hint=f"use one of {', '.join(ENGINES)}")
    # The engine starts before the first task, so that a missing cluster is reported first.
    engine = _start_ray() if name == "ray" else None
    token = _current.set(engine)
    try:
        yield
    finally:
        _current.reset(token)
        if engine is not None:
            engine.stop()
            engine.close()


def _start_ray() -> RayEngine:
    try:
        from .ray_engine import RayEngine
    except ModuleNotFoundError as error:
        raise MissingExtraError("--engine ray needs ray", hint=install_hint("ray")) from error
    return RayEngine()


def current_engine() -> RayEngine | None:
    """Return the engine of the surrounding `use_engine`, None for threads."""
    return _current.get()
