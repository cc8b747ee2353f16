"""How many rows of each table changed from one run to another, for programs and as a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from ...console import stdout_console

if TYPE_CHECKING:
    from ....train.serving.changes import TableChanges


def counts_of(changes: Iterable[TableChanges]) -> dict[str, dict[str, int]]:
    """Return the counts of each table by its name."""
    names = ("num_rows", "num_new", "num_changed", "num_gone")
    return {each.name: {name: getattr(each, name) for name in names} for each in changes}


def show_changes(counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print what `counts_of` returned as a table."""
    table = Table(box=None, pad_edge=False)
    for name in ("table", "rows", "new", "changed", "gone"):
        table.add_column(name, justify="left" if name == "table" else "right")
    for name, of_table in counts.items():
        table.add_row(name, *(f"{count:,}" for count in of_table.values()))
    stdout_console().print(table)
