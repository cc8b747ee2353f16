"""Objects that tasks use in other processes, and the pickled calls.

A task is sent to a worker as a pickled call. Most of its arguments are plain data. A `RemoteObject` is not:
unpickling it in the worker builds a copy from `state_for_worker`, and when the task ends, the copy's
`report` returns with the result and is applied to the original in the main process. So a stage passes its
tasks the same objects whether they run in its own threads or in other processes.
"""

from __future__ import annotations

import os
import pickle
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import count
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


Reports = list[tuple[int, Any]]
"""The key of each object that a task used, and what its copy reported."""


_originals: weakref.WeakValueDictionary[int, RemoteObject] = weakref.WeakValueDictionary()
"""In the main process: objects that were sent to workers, by key."""


_keys = count()


_copies: list[tuple[int, RemoteObject]] = []
"""In a worker: copies that were sent with the current task; a worker runs one task at a time."""


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
