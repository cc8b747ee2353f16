"""Shows the progress of calls from Python, as commands show theirs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .progress import Lines, Progress, no_progress

_is_shown = threading.Lock()
"""Held while a call shows its progress: two would draw over each other."""


@contextmanager
def shown_progress(switch: bool | Callable[..., object], num_arguments: int = 3) -> Iterator[Progress]:
    """Yield what shows the progress of a call from Python.

    Args:
        switch: a function to call with the first ``num_arguments`` arguments, or whether to show progress on
            stderr: as a bar on a terminal, as one line that changes in a notebook, and as a line every half
            minute anywhere else. Calls inside others, or in other threads at the same time, show none.
    """
    if callable(switch):
        call = switch

        def report(*arguments: Any) -> None:
            call(*arguments[:num_arguments])

        yield report
        return
    if not switch or not _is_shown.acquire(blocking=False):
        yield no_progress
        return
    try:
        if _is_notebook():
            # A notebook shows a line again where it begins with a carriage return.
            yield Lines(lambda line: _print(f"\r{line:<79}"), every_seconds=0.5)
            _print(f"\r{'':<79}\r")
        elif sys.stderr.isatty():
            from rich.console import Console

            from .progress_bars import Bars

            with Bars(Console(stderr=True)) as bars:
                yield bars
        else:
            yield Lines(lambda line: _print(f"{line}\n"))
    finally:
        _is_shown.release()


def _print(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return getattr(shell, "kernel", None) is not None
