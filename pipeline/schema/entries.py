"""Features as a schema file describes them, and the tables that several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ConfigError

BRACKETS = "brackets"
"""Form of lists in text with brackets around them, such as those of JSON, Python or Postgres."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One feature as a schema file describes it."""

    column: str
    name: str
    """Name of the feature."""
    kind: str
    form: bool | str = False
    """Whether rows hold lists; BRACKETS of text that may have these around a list."""
    separator: str | None = None
    """What is between the elements of a list in text, if it is not the default."""
    weight_separator: str | None = None
    """What is between an element and its weight."""
    transform: str = "log1p"
    min_count: int | None = None
    embedding_dim: int | None = None
    unit: str | None = None
    """Unit of times that are numbers."""
    format: str | None = None
    """How times are written."""
    table: str = ""
    """Table that the feature looks up in; empty in a dense one."""

    def separator_in(self, format: str) -> str:
        """Return what is between the elements of a list in text of a log; "" where lists are no text."""
        plain = "|" if format == "csv" else ""
        return self.separator or ("," if self.form == BRACKETS else plain)


def by_table(sparse: list[Entry]) -> list[Entry]:
    """Return the features of a table next to each other, tables in the order of their first feature."""
    # A column is written once, with all its features: the order is one that writing and reading keep.
    while True:
        by_table = _grouped(sparse, lambda entry: entry.table)
        by_column = _grouped(by_table, lambda entry: entry.column)
        if by_column == sparse:
            return by_table
        sparse = by_column


def _grouped(entries: list[Entry], key: Callable[[Entry], str]) -> list[Entry]:
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    return [entry for group in groups.values() for entry in group]


def check_tables(sparse: list[Entry]) -> None:
    """Raise ConfigError where features cannot share the table that they name."""
    entry_of = {entry.name: entry for entry in sparse}
    said: dict[tuple[str, str], Entry] = {}
    for entry in sparse:
        owner = entry_of.get(entry.table, entry)
        if owner.table != entry.table:
            raise ConfigError(
                f"feature {entry.name!r} has the table {owner.name!r}, and that feature has another one",
                hint=f'write table = "{owner.table}" for both',
            )
        # Ids, counts and rows of a table are the same for all its features.
        for key in ("kind", "min_count", "embedding_dim"):
            own = getattr(entry, key)
            first = entry if own is None else said.setdefault((entry.table, key), entry)
            if getattr(first, key) != own:
                raise ConfigError(
                    f"features {first.name!r} and {entry.name!r} have one table, {entry.table!r}, "
                    f"and the {key} {getattr(first, key)} and {own}",
                    hint=f"give them the same {key}, or different tables",
                )
