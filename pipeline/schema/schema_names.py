"""Names in schemas: which may be used, the position of a column, and which name was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from ..errors import ConfigError

MAX_NAME_BYTES = 200
RESERVED = ("ids", "label", "dense", "is_hot", "sample_time")
"""Columns that shards have besides those named after a feature."""
DENSE_PREFIX = "dense."
"""Beginning of the names that the weights of a run give to dense layers, beside those of tables."""
_RENAME = 'rename the feature: "..." = { kind = ..., name = "..." }'


def check_name(name: str) -> None:
    """Refuse a name with ConfigError that cannot be a file's, a shard column's and a tensor's.

    A feature's name must be all of these.
    """
    # A name becomes a column, a tensor and a file, so it must not be taken in any of them.
    if name in RESERVED:
        raise ConfigError(
            f"a feature cannot be called {name!r}: shards have a column of that name",
            hint=f'rename it: under [sparse] or [dense], {name} = {{ kind = ..., name = "..." }}',
        )
    if name.startswith(DENSE_PREFIX):
        raise ConfigError(
            f"a feature cannot be called {shown(name)}: weights of dense layers begin with {DENSE_PREFIX!r}",
            hint=_RENAME,
        )
    # Files of a stage are called NAME.arrow, NAME.texts.arrow and fileNNNN-NAME.arrow.
    if name.endswith(".texts"):
        raise ConfigError(
            f"a feature cannot be called {shown(name)}: the texts of a feature are in a file of that name",
            hint=_RENAME,
        )
    if re.match(r"file\d{4,}-", name):
        raise ConfigError(
            f"a feature cannot be called {shown(name)}: what belongs to one file of a log is named like that",
            hint=_RENAME,
        )
    if not name or "/" in name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{shown(name)} cannot be the name of a file: "
            f"want 1 to {MAX_NAME_BYTES} bytes, no slash and no NUL",
            hint=_RENAME,
        )


def refuse_twice(names: Sequence[str], what: str = "column") -> None:
    """Raise ConfigError where a name stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{what} {name!r} is named twice")
        seen.add(name)


def find_columns(wanted: Iterable[str], fields: Iterable[str], source: str) -> list[int]:
    """Return the position of each wanted column among ``fields``.

    Raises:
        ConfigError: ``source`` has no such column, or two of that name.
    """
    # A name that stands twice is refused only where it is wanted: other columns may be called anything.
    fields = list(fields)
    positions = {name: position for position, name in enumerate(fields)}
    for name in wanted:
        if name not in positions:
            hint = nearest(name, fields) or f"it has {shown(fields)}"
            raise ConfigError(f"{source} has no column {name!r}", hint=hint)
        if fields.count(name) > 1:
            raise ConfigError(f"{source} has two columns {name!r}")
    return [positions[name] for name in wanted]


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return a hint with the name that ``word`` was probably meant to be."""
    found = get_close_matches(word, list(words), n=1)
    return f"did you mean {found[0]!r}?" if found else None


def shown(value: Any) -> str:
    """Return a value as a message shows it, cut short."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
