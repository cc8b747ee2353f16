"""What a person sees: data on stdout, messages and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from ..pipeline.runtime.tasks import ProgressCallback, silent

_WIDE = 200


def stdout_console() -> Console:
    """For data; a pipe gets lines as long as they are."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, emoji=False, width=width)


def say(message: str) -> None:
    """A message for people, on stderr, not wrapped when that is no terminal."""
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    console.print(message, soft_wrap=not sys.stderr.isatty())


def print_json(result: dict[str, Any]) -> None:
    """One object on stdout."""
    print(json.dumps(result, indent=1, default=str))


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """A progress callback that draws a bar a stage on stderr, nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield silent
        return
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield advance
