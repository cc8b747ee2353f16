"""Where a part of a GPU day writes what it finds, line by line, as it finds it."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TRACE_CHARACTERS = 2000
"""Characters that are kept of the end of a traceback."""


class Records:
    """The findings of one part.

    Args:
        path: file of the findings, appended to.
        seconds: time the part has; parts that repeat things stop before it is over.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        self._path = path
        self._end = time.monotonic() + seconds

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

    def _write(self, record: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(_finite(record)) + "\n")


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
