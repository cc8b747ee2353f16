"""How far a call is, in plain lines; the speeds and times in them are those that bars show, too.

A terminal gets the bars of `progress_bars`, which take 0.1 s to import. Where stderr is a file or a pipe, a
bar would be noise: a line every half minute says as much, and short calls print none.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...stats.compile_notice import working_clock
from ..errors import format_byte_size

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
