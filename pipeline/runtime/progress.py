"""How far a call is: in bars on a terminal, in plain lines elsewhere, with the same speeds and times.

Where stderr is a file or a pipe, a bar would be noise: a line every half minute says as much, and short calls
print none. Bars are drawn by rich, which takes 0.1 s to import, so it is imported where one is shown. A
terminal of 60 columns has no room for a bar next to a note, so a stage that shows losses has no bar there.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from ...stats.compile_notice import working_clock
from ..errors import format_byte_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn, Task, TaskID

_WINDOW_SECONDS = 30.0
_LEAST_SECONDS = 0.25
_SAMPLES = (
    *("generate", "encode", "split", "pack", "export", "log", "train", "evaluate", "predict"),
    *("hot", "trace", "drift"),
)
_UNITS = {"ingest": "B", "verify": "B", "count": "lookups", "rank": "lookups", "rows": "rows"}
_UNITS |= dict.fromkeys(_SAMPLES, "samples")
"""In what a stage reports how far it is; the rate of other stages means nothing to a user."""


class Progress(Protocol):
    """Called as ``progress(stage, done, total, note, step)``; a total of 0 is unknown, as is a step of 0."""

    def __call__(self, stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None: ...


def no_progress(stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
    """Show no progress."""


class Speed:
    """Speed of a stage over the last half minute; unknown until the calls span a moment.

    rich divides by the time between any two calls, and parts of a log often end at nearly the same time.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[float, int]] = deque()

    def after(self, seconds: float, done: int) -> float | None:
        """Return units per second after a call at ``seconds`` of a clock, with ``done`` units in all."""
        # Calls older than the window are dropped, but two always stay to measure by.
        self._calls.append((seconds, done))
        while len(self._calls) > 2 and seconds - self._calls[0][0] > _WINDOW_SECONDS:
            self._calls.popleft()
        first, done_first = self._calls[0]
        return (done - done_first) / (seconds - first) if seconds - first >= _LEAST_SECONDS else None


class Pace:
    """Speed of the stage that runs; one that goes on begins with the speed it had before."""

    def __init__(self, clock: Callable[[], float] = working_clock) -> None:
        self._clock = clock
        self._stage = ""
        self._speed = Speed()
        self._done = 0
        self._last: dict[str, float] = {}

    def after(self, stage: str, done: int) -> float | None:
        """Return units per second of ``stage`` after ``done`` units; None where it is unknown."""
        # A stage that begins again has a lower number than before.
        if stage != self._stage or done < self._done:
            self._stage, self._speed = stage, Speed()
        self._done = done
        speed = self._speed.after(self._clock(), done)
        if speed is None:
            return self._last.get(stage)
        self._last[stage] = speed
        return speed


class Lines:
    """Progress as lines of text, at most one in ``every_seconds``; any thread may report it.

    The first one comes after as many seconds, so a short call prints none.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        every_seconds: float = 30.0,
        clock: Callable[[], float] = working_clock,
    ) -> None:
        self._write = write
        self._every_seconds = every_seconds
        self._clock = clock
        self._pace = Pace(clock)
        self._lock = threading.Lock()
        self._last = clock()
        """When the last line was written, seconds of the clock."""

    def __call__(self, stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        """Take note of how far a stage is, and write a line where one is due."""
        with self._lock:
            speed = self._pace.after(stage, done)
            now = self._clock()
            if now - self._last < self._every_seconds:
                return
            self._last = now
            self._write(line_of(stage, done, total, note, step, speed))


def line_of(stage: str, done: int, total: int, note: str, step: int, speed: float | None) -> str:
    """Return ``train 45%: step 1,200, loss 0.4512, AUC 0.7601, 84.1 k samples/s, 3:12 left``."""
    unit = _UNITS.get(stage)
    share = f" {done / total:.0%}" if total else ""
    amount = format_byte_size(done) if unit == "B" else f"{done:,} {unit}" if unit else ""
    left = f"{clock_text((total - done) / speed)} left" if total and speed else ""
    parts = (f"step {step:,}" if step else amount, note, rate_text(stage, speed), left)
    return f"{stage}{share}: {', '.join(filter(None, parts))}".removesuffix(": ")


def rate_text(stage: str, speed: float | None, *, has_unit: bool = True) -> str:
    """Return the rate of the last half minute; nothing where it or its unit is unknown."""
    # Bytes have separate units; other rates name theirs where there is room.
    unit = _UNITS.get(stage)
    if not speed or unit is None:
        return ""
    if unit == "B":
        return f"{format_byte_size(int(speed))}/s"
    return f"{_short(speed)} {unit}/s" if has_unit else f"{_short(speed).strip()}/s"


def clock_text(seconds: float) -> str:
    """Return 4,000 seconds as ``1:06:40``, and 75 as ``1:15``."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def _short(number: float) -> str:
    """Return a number with three digits and k or M, which keeps its width while it changes."""
    for factor, letter in ((1e6, " M"), (1e3, " k")):
        if number >= factor:
            scaled = number / factor
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{letter}"
    return f"{number:.0f}"


_ROOM_FOR_BAR = 80
"""Least columns of a terminal in which a bar and a note fit on one line."""
_ROOM_FOR_UNIT = 70
"""Columns in which a note and the unit of the rate do."""


class Bars:
    """One progress bar at a time, of the stage that runs; any thread may report its progress."""

    def __init__(self, console: Console, clock: Callable[[], float] = working_clock) -> None:
        import rich.progress

        self._lock = threading.RLock()
        self._progress = rich.progress.Progress(console=console, transient=True, expand=True)
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
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.table import Column

    shown = _shown_column()
    columns: list[ProgressColumn] = [TextColumn("{task.description:<8}")]
    if has_room_for_bar(note, width):
        # It uses only the space that the other columns leave.
        columns.append(BarColumn(bar_width=None, table_column=Column(ratio=1)))
    columns.append(TaskProgressColumn())
    if note:
        columns.append(shown(lambda task: str(task.fields.get("note", ""))))
    has_unit = not note or width >= _ROOM_FOR_UNIT
    return (*columns, shown(partial(_rate_of, has_unit=has_unit)), shown(time_of))


@cache
def _shown_column() -> Callable[[Callable[[Task], str]], ProgressColumn]:
    """Return the class of columns with a text about the work so far, in one line."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class Shown(ProgressColumn):
        def __init__(self, show: Callable[[Task], str]) -> None:
            super().__init__()
            self._show = show

        def render(self, task: Task) -> Text:
            return Text(self._show(task), no_wrap=True)

    return Shown


def _rate_of(task: Task, *, has_unit: bool) -> str:
    return rate_text(task.description, task.fields.get("speed"), has_unit=has_unit)


def time_of(task: Task) -> str:
    """Return the remaining time, or the elapsed time if the end is unknown, with a word for its kind."""
    speed = task.fields.get("speed")
    left = (task.total - task.completed) / speed if task.total and speed else None
    if left is None or task.finished:
        return f"{clock_text(task.elapsed or 0)} passed"
    return f"{clock_text(left)} left"


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
