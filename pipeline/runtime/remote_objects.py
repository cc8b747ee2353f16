"""What tasks take along to other processes, and what they bring back.

A task goes out as the pickled call it is. Most of what it holds is plain data; a `Traveller` is not: its copy
in the worker is made of what it packed, and what the copy has to tell when the task ends is told to the one
at home. So a stage hands its tasks the same objects whether they run in its own threads or elsewhere.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from itertools import count
from typing import Any

_WATCH_SECONDS = 0.5

_at_home: weakref.WeakValueDictionary[int, Traveller] = weakref.WeakValueDictionary()
_keys = count()
_arrived: list[tuple[int, Traveller]] = []
"""Copies that came with the task this process is at; a worker is at one task at a time."""
_watched: set[int] = set()


class Traveller(ABC):
    """An object of the run that tasks use wherever they are."""

    _key: int | None = None

    @abstractmethod
    def luggage(self) -> tuple[Any, ...]:
        """What its copies are made of: arguments of `arrive`."""

    @classmethod
    @abstractmethod
    def arrive(cls, *luggage: Any) -> Traveller:
        """A copy, in a worker."""

    def at_work(self) -> AbstractContextManager[Any]:
        """What a copy does around its task."""
        return nullcontext()

    @abstractmethod
    def news(self) -> Any:
        """What a copy has to tell; plain data."""

    @abstractmethod
    def hear(self, news: Any) -> None:
        """Take in, at home, what a copy told."""

    def __reduce__(self) -> Any:
        if self._key is None:
            self._key = next(_keys)
        _at_home[self._key] = self
        return _arrive, (type(self), self._key, self.luggage())


def _arrive(kind: type[Traveller], key: int, luggage: tuple[Any, ...]) -> Traveller:
    copy = kind.arrive(*luggage)
    _arrived.append((key, copy))
    return copy


class Call:
    """One task on its way: called in the worker, it returns the result and the news."""

    def __init__(self, function: Callable[..., Any], task: tuple[Any, ...], *, ends_with_home: bool) -> None:
        self._packed = pickle.dumps((function, task), protocol=pickle.HIGHEST_PROTOCOL)
        self._folder = os.getcwd()
        self._home = os.getpid() if ends_with_home else None
        self._task: tuple[Any, ...] = task
        """Kept at home until the news is told."""

    def __getstate__(self) -> tuple[bytes, str, int | None]:
        return self._packed, self._folder, self._home

    def __setstate__(self, state: tuple[bytes, str, int | None]) -> None:
        self._packed, self._folder, self._home = state

    def __call__(self) -> tuple[Any, list[tuple[int, Any]]]:
        _settle_in(self._folder, self._home)
        _arrived.clear()
        function, task = pickle.loads(self._packed)
        copies = list(_arrived)
        with ExitStack() as stack:
            for _, copy in copies:
                stack.enter_context(copy.at_work())
            result = function(*task)
            return result, [(key, copy.news()) for key, copy in copies]


def tell(news: list[tuple[int, Any]]) -> None:
    """Tell travellers at home what their copies brought back."""
    for key, of_copy in news:
        traveller = _at_home.get(key)
        if traveller is not None:
            traveller.hear(of_copy)


def _settle_in(folder: str, home: int | None) -> None:
    """Relative paths mean what they mean to the run, Ctrl-C is the run's to handle, and its end is ours."""
    if os.getcwd() != folder:
        os.chdir(folder)
    if home in (None, os.getpid()) or home in _watched:
        return
    _watched.add(home)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(home,), daemon=True).start()


def _end_with(home: int) -> None:
    while os.getppid() == home:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
