"""Names in schemas: which may be used, where a column stands, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from ..errors import ConfigError

MAX_NAME_BYTES = 200
RESERVED = ("ids", "label", "dense", "is_hot")
"""Columns that shards have besides those called like a feature."""


def check_name(name: str) -> None:
    """A feature's name becomes a file's and a column's of shards; raises ConfigError where it cannot."""
    if name in RESERVED:
        raise ConfigError(
            f"a feature cannot be called {name!r}: shards have a column of that name",
            hint=f'call it otherwise: under [sparse] or [dense], {name} = {{ kind = ..., name = "..." }}',
        )
    if not name or "/" in name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(
            f"{shown(name)} cannot be the name of a file: "
            f"want 1 to {MAX_NAME_BYTES} bytes, no slash and no NUL",
            hint='call the feature otherwise: "..." = { kind = ..., name = "..." }',
        )


def refuse_twice(names: Sequence[str], what: str = "column") -> None:
    """Raise ConfigError where a name stands twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{what} {name!r} is named twice")
        seen.add(name)


def find_columns(wanted: Iterable[str], fields: Iterable[str], source: str) -> list[int]:
    """The place of each wanted column among ``fields``.

    Raises:
        ConfigError: ``source`` has no such column, or two of that name.
    """
    fields = list(fields)
    places = {name: place for place, name in enumerate(fields)}
    for name in wanted:
        if name not in places:
            hint = nearest(name, fields) or f"it has {shown(fields)}"
            raise ConfigError(f"{source} has no column {name!r}", hint=hint)
        if fields.count(name) > 1:
            raise ConfigError(f"{source} has two columns {name!r}")
    return [places[name] for name in wanted]


def nearest(word: str, words: Iterable[str]) -> str | None:
    """A hint that names what ``word`` was probably meant to be."""
    found = get_close_matches(word, list(words), n=1)
    return f"did you mean {found[0]!r}?" if found else None


def shown(value: Any) -> str:
    """A value in a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
