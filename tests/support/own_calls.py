"""Functions of the package that each step of a training run calls."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

_INLINED = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Code that later versions of Python run inside the function around it."""


class Function(NamedTuple):
    """A function of the package, named by the place where it is written."""

    module: str
    name: str
    line: int


def own_calls(run: Callable[[], object]) -> Counter[Function]:
    """Return how often ``run`` calls each function of the package, in threads that it starts, too.

    A generator counts once more whenever it goes on. What dataclasses generate does not count.
    """
    calls: Counter[Function] = Counter()
    lock = threading.Lock()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in _INLINED:
            return
        if code.co_filename == "<string>" and code.co_name.startswith("__"):
            return
        module: str = frame.f_globals.get("__name__", "")
        if module.startswith("hotset.") and not module.startswith("hotset.tests."):
            with lock:
                calls[Function(module, code.co_qualname, code.co_firstlineno)] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def calls_of_each_step(few: Counter[Function], many: Counter[Function], more_steps: int) -> list[Function]:
    """Return the functions of every step, given the calls of two runs, one ``more_steps`` longer."""
    return sorted(function for function, number in many.items() if number - few[function] >= more_steps)
