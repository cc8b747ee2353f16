"""Progress bars and their columns: share, speed, time and a note.

A terminal of 60 columns has no room for all of them next to a bar, so a stage that shows losses has no bar
there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

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
from rich.table import Column
from rich.text import Text

from ...stats.compile_notice import working_clock
from .progress import Pace, clock_text, rate_text

_ROOM_FOR_BAR = 80
"""Least columns of a terminal in which a bar and a note fit on one line."""
_ROOM_FOR_UNIT = 70
"""Columns in which a note and the unit of the rate do."""


class Bars:
    """One progress bar at a time, of the stage that runs; any thread may report its progress."""

    def __init__(self, console: Console, clock: Callable[[], float] = working_clock) -> None:
        self._lock = threading.RLock()
        self._progress = Progress(console=console, transient=True, expand=True)
        self._stage = ""
        self._task: TaskID | None = None
        self._pace = Pace(clock)

    def __enter__(self) -> Bars:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Show the bars, again perhaps."""
        self._progress.start()

    def stop(self) -> None:
        """Remove the bars from the terminal."""
        self._progress.stop()

    def __call__(self, stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        """Show the progress of a stage in place of the previous bar. A total of 0 is unknown."""
        # Threads begin a stage together: a second bar would stay, and messages would be written over.
        with self._lock:
            self._set_columns(note)
            # rich draws a pulse instead of a share where the total is None.
            if self._task is None or stage != self._stage:
                self._drop()
                self._stage = stage
                self._task = self._progress.add_task(stage, total=total or None, note=note)
            # Training continues after an evaluation, with its previous rate until a new one is known.
            speed = self._pace.after(stage, done)
            self._progress.update(self._task, completed=done, total=total or None, note=note, speed=speed)

    def show_note(self, note: str) -> None:
        """Show a note next to the bar until its stage reports again."""
        with self._lock:
            if self._task is not None:
                self._set_columns(note)
                self._progress.update(self._task, note=note)

    def _set_columns(self, note: str) -> None:
        width = self._progress.console.width
        self._progress.columns = columns_for(note, width)
        self._progress.expand = has_room_for_bar(note, width)

    def drop_full(self) -> None:
        """Remove a bar that has reached its end: the next message reports the stage."""
        with self._lock:
            if self._task is not None and self._progress.tasks[0].finished:
                self._drop()

    def _drop(self) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = None


def has_room_for_bar(note: str, width: int) -> bool:
    """Return whether a bar fits next to the note in a terminal of ``width`` columns."""
    return not note or width >= _ROOM_FOR_BAR


def columns_for(note: str, width: int) -> tuple[ProgressColumn, ...]:
    """Return the columns of a bar that has this note in a terminal of ``width`` columns."""
    columns: list[ProgressColumn] = [TextColumn("{task.description:<8}")]
    if has_room_for_bar(note, width):
        # It uses only the space that the other columns leave.
        columns.append(BarColumn(bar_width=None, table_column=Column(ratio=1)))
    columns.append(TaskProgressColumn())
    if note:
        columns.append(_ShownColumn(lambda task: str(task.fields.get("note", ""))))
    has_unit = not note or width >= _ROOM_FOR_UNIT
    return (*columns, _ShownColumn(partial(_rate_of, has_unit=has_unit)), _ShownColumn(time_of))


class _ShownColumn(ProgressColumn):
    """A text about the work so far, in one line."""

    def __init__(self, show: Callable[[Task], str]) -> None:
        super().__init__()
        self._show = show

    def render(self, task: Task) -> Text:
        """Return the text."""
        return Text(self._show(task), no_wrap=True)


def _rate_of(task: Task, *, has_unit: bool) -> str:
    return rate_text(task.description, task.fields.get("speed"), has_unit=has_unit)


def time_of(task: Task) -> str:
    """Return the remaining time, or the elapsed time if the end is unknown, with a word for its kind."""
    speed = task.fields.get("speed")
    left = (task.total - task.completed) / speed if task.total and speed else None
    if left is None or task.finished:
        return f"{clock_text(task.elapsed or 0)} passed"
    return f"{clock_text(left)} left"
