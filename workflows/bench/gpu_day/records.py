"""The file of findings of a part, written line by line."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TRACE_CHARACTERS = 2000
"""Characters that are kept of the end of a traceback."""
_MARGIN = 1.2
"""Remaining time at which a piece of work begins, in multiples of the time of the previous piece."""


class Records:
    """The findings of one part.

    Args:
        path: file of the findings, appended to.
        seconds: time the part has; parts of several pieces stop before it is over.
        done: names of pieces that an earlier call has done.
    """

    def __init__(self, path: Path, seconds: float, done: Collection[str] = ()) -> None:
        self._path = path
        self._end = time.monotonic() + seconds
        self._done = frozenset(done)
        self._is_left_open = False

    @property
    def seconds_left(self) -> float:
        """Time until the part is stopped."""
        return self._end - time.monotonic()

    def fact(self, **content: Any) -> None:
        """Note something about the machine."""
        self._write({"fact": content})

    def check(self, name: str, is_right: bool, detail: str = "") -> None:
        """Note whether something holds."""
        self._write({"check": {"name": name, "is_right": is_right, "detail": detail}})

    @contextmanager
    def catching(self, name: str) -> Iterator[None]:
        """Note a check that failed where the block raises, and continue after it."""
        try:
            yield
        except Exception:  # whatever a first run on a device raises is a finding, and not the last one
            self.check(name, False, traceback.format_exc()[-_TRACE_CHARACTERS:])

    def row(self, **content: Any) -> None:
        """Note a measurement."""
        self._write({"row": content})

    def pieces(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the names of pieces of work one by one, those done earlier apart, while there is time.

        What the part does not reach is then known by name, even if it is killed.
        """
        last_seconds = 0.0
        for name in self.announce(names):
            # What took long takes long again.
            if not self.has_time(last_seconds):
                return
            begin = time.monotonic()
            yield name
            last_seconds = time.monotonic() - begin
            if not self._is_left_open:
                self.finish(name)
            self._is_left_open = False

    def leave_open(self) -> None:
        """Count the current piece of work as left out, so that a later call repeats it."""
        self._is_left_open = True

    def announce(self, names: Sequence[str]) -> list[str]:
        """Note the names of all pieces of work, and return those that are left to do."""
        self._write({"pieces": {"names": list(names)}})
        return [name for name in names if name not in self._done]

    def has_time(self, last_seconds: float) -> bool:
        """Return whether there is time for a piece, the one before having taken so long."""
        return self.seconds_left > _MARGIN * last_seconds

    def finish(self, name: str) -> None:
        """Note that a piece was done, whether or not what it found is right."""
        self._write({"done": {"name": name}})

    def _write(self, record: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(_finite(record)) + "\n")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
