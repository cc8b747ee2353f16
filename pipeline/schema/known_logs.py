"""Published logs: a TOML file each in ``logs/``, which says where a log is from and what its files look like.

Such a file is a schema and a table ``[known]``. There, ``header`` has all columns as they were published, and
``line`` is a pattern that each line matches in a log without names. Splits of one log may share both.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "logs"
KNOWN_LOGS = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))
"""Names of the known logs."""
_LINE_NUMBERS = ("", "id")
"""Columns, in small letters, that any log may have besides its own: numbers of its lines."""


@dataclass(frozen=True, slots=True)
class KnownLog:
    """What is known of a log besides its columns."""

    schema: dict[str, Any]
    """Keys of its schema file."""
    header: tuple[str, ...] = ()
    """Its columns as published."""
    line: str = ""
    """Pattern of its lines, where they have no names above them."""

    @staticmethod
    @cache
    def read(name: str) -> KnownLog:
        """Return the known log of that name."""
        keys = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        known = keys.pop("known", {})
        return KnownLog(keys, tuple(known.get("header", ())), known.get("line", ""))

    def names_of(self, fields: Sequence[str], wanted: Sequence[str]) -> dict[str, str] | None:
        """Return what ``fields`` call the columns of this log; None where they are those of another one.

        Letters may be small or capital.

        Args:
            fields: names in the first line of a log.
            wanted: columns of this log that must be there.
        """
        actual = {name.lower(): name for name in fields}
        known = {name.lower() for name in self.header}
        if len(actual) != len(fields) or not known or not actual.keys() <= known | set(_LINE_NUMBERS):
            return None
        return (
            {name: actual[name.lower()] for name in wanted}
            if set(map(str.lower, wanted)) <= actual.keys()
            else None
        )

    def is_line(self, line: str) -> bool:
        """Return whether a line looks like those of this log, which have no names above them."""
        return bool(self.line) and re.fullmatch(self.line, line) is not None
