"""The streams of the command line: data on stdout, messages and progress on stderr.

Progress bars redraw themselves where the cursor stands, so whatever else is printed on the same terminal has
to know of them: messages go through the one console of stderr, and data is printed while no bar is shown.
"""

from __future__ import annotations

import functools
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TaskProgressColumn,
    TextColumn,
)
from rich.table import Table
from rich.text import Text

from ..pipeline.runtime.resources import ProgressCallback, silent
from ..pipeline.sizes import format_byte_size

_WIDE = 200
_UNITS = {
    "ingest": "B",
    "generate": "samples",
    "count": "lookups",
    "rank": "lookups",
    "encode": "samples",
    "split": "samples",
    "pack": "samples",
    "train": "samples",
}
"""In what a stage reports how far it is; the rate of other stages means nothing to a user."""


@functools.cache
def stderr_console() -> Console:
    """Return the one console for messages and progress, which keeps them from writing over each other."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def stdout_console() -> Console:
    """Return a console for data. Lines wrap at the width of a terminal; a pipe gets wide ones."""
    width = None if sys.stdout.isatty() else _WIDE
    return Console(highlight=False, emoji=False, width=width)


def print_table(console: Console, table: Table, *, num_keys: int = 1) -> None:
    """Print a table; one wider than the terminal as several below each other, so that no number is cut.

    Args:
        num_keys: columns at the left that tell the rows apart; each of the tables repeats them.
    """
    # rich puts a blank at each side of a cell, and only the text without markup takes room.
    widths = [
        2 + max(Text.from_markup(str(cell)).cell_len for cell in (column.header, *column.cells))
        for column in table.columns
    ]
    room = console.width - sum(widths[:num_keys])
    groups: list[list[int]] = [[]]
    for number in range(num_keys, len(widths)):
        if groups[-1] and sum(widths[other] for other in groups[-1]) + widths[number] > room:
            groups.append([])
        groups[-1].append(number)
    for group in groups:
        title = table.title if group is groups[0] else None
        part = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        columns = [table.columns[number] for number in (*range(num_keys), *group)]
        for column in columns:
            part.add_column(column.header, justify=column.justify)
        cells = zip(*(column.cells for column in columns), strict=True)
        for row, shown in zip(table.rows, cells, strict=True):
            part.add_row(*shown, style=row.style, end_section=row.end_section)
        console.print(part, "")


def say(message: str) -> None:
    """Print a message on stderr, wrapped only where that is a terminal."""
    if _Bars.shown is not None:
        _Bars.shown.drop_full()
    stderr_console().print(message, soft_wrap=not sys.stderr.isatty())


def command_prefix() -> str:
    """Return how a user types ``hotset`` in this shell: by its path where it is not on PATH."""
    script = Path(sys.argv[0])
    if shutil.which("hotset") or script.name != "hotset":
        # Started by another name, by `python -m` or a test, the file of sys.argv is no command.
        return (
            "hotset" if shutil.which("hotset") else f"{shlex.quote(sys.executable)} -m hotset.workflows.cli"
        )
    script = script.absolute()
    near = script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script
    return shlex.quote(str(near))


def print_json(result: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(result, indent=1, default=str))


class _Bars:
    """One progress bar at a time, of the stage that runs."""

    shown: _Bars | None = None
    """The bars on the terminal now."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._stage = ""
        self._task: TaskID | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Show how far a stage is; the bar of the stage before it goes. A total of 0 is unknown yet."""
        # rich draws a pulse instead of a share where the total is None.
        if self._task is None or stage != self._stage:
            self._drop()
            self._stage = stage
            self._task = self.progress.add_task(stage, total=total or None)
        self.progress.update(self._task, completed=done, total=total or None)

    def drop_full(self) -> None:
        """Take off a bar that has reached its end: the message to come reports the stage."""
        if self._task is not None and self.progress.tasks[0].finished:
            self._drop()

    def _drop(self) -> None:
        if self._task is not None:
            self.progress.remove_task(self._task)
        self._task = None


@contextmanager
def progress_bars() -> Iterator[ProgressCallback]:
    """Yield a progress callback that draws a bar for the stage that runs where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield silent
        return
    columns = (
        TextColumn("{task.description:<8}"),
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        _RateColumn(),
        _TimeColumn(),
    )
    with Progress(*columns, console=stderr_console(), transient=True, expand=True) as progress:
        _Bars.shown = _Bars(progress)
        try:
            yield _Bars.shown
        finally:
            _Bars.shown = None


@contextmanager
def bars_hidden() -> Iterator[None]:
    """Take the bars off the terminal while something is printed on stdout, which may be the same one."""
    bars = _Bars.shown
    if bars is None:
        yield
        return
    bars.drop_full()
    bars.progress.stop()
    try:
        yield
    finally:
        bars.progress.start()


class _RateColumn(ProgressColumn):
    """Bytes, samples or lookups per second, of the last half minute."""

    def render(self, task: Task) -> Text:
        """Return the rate, nothing where it is unknown or in a unit that no user knows."""
        unit = _UNITS.get(task.description)
        if not task.speed or unit is None:
            return Text("")
        if unit == "B":
            return Text(f"{format_byte_size(int(task.speed))}/s", no_wrap=True)
        return Text(f"{_short(task.speed)} {unit}/s", no_wrap=True)


class _TimeColumn(ProgressColumn):
    """Time left; the time that has passed where nothing tells how long it takes."""

    def render(self, task: Task) -> Text:
        """Return minutes and seconds, and the word that tells which time they are."""
        left = task.time_remaining
        seconds = int(task.elapsed or 0) if left is None or task.finished else int(left)
        hours, rest = divmod(seconds, 3600)
        clock = f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
        return Text(f"{clock} {'passed' if left is None or task.finished else 'left'}", no_wrap=True)


def _short(number: float) -> str:
    """Return a number with three digits and k or M, which keeps its width while it changes."""
    for factor, letter in ((1e6, " M"), (1e3, " k")):
        if number >= factor:
            scaled = number / factor
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{letter}"
    return f"{number:.0f}"
