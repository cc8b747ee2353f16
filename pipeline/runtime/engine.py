"""The interface of engines: worker processes that run tasks, started when first needed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

EngineName = Literal["threads", "processes", "ray"]
ENGINES: tuple[EngineName, ...] = ("threads", "processes", "ray")


class Engine(ABC):
    """Processes beside this one that run tasks; started when first needed, kept from stage to stage."""

    name: EngineName
    worker_failures: tuple[type[BaseException], ...]
    """Exceptions raised when a worker was killed, not when a task failed."""
    ends_with_main_process = False
    """Whether workers are children of this process, and so end with it."""

    def __init__(self) -> None:
        self._parallel: Any = None
        self._count = 0

    @abstractmethod
    def num_workers(self) -> int:
        """Return the number of workers to use if none is asked for."""

    def parallel(self, count: int) -> Any:
        """Return a joblib.Parallel of ``count`` workers: results in order, two tasks per worker in flight."""
        if self._parallel is None or self._count != count:
            self.stop()
            options = {"return_as": "generator", "pre_dispatch": 2 * count, "batch_size": 1}
            self._parallel = self._start(count, options).__enter__()
            self._count = count
        return self._parallel

    @abstractmethod
    def _start(self, count: int, options: dict[str, Any]) -> Any:
        """Return a new joblib.Parallel of ``count`` workers."""

    def stop(self) -> None:
        """End the workers; those that run a task are killed."""
        parallel = self._parallel
        self._parallel = None
        if parallel is not None:
            parallel.__exit__(None, None, None)

    def close(self) -> None:  # noqa: B027  (most engines hold nothing else)
        """Let go of what the engine holds besides its workers; it is not used again."""
