"""A table in memory as the part of a log: its columns are read as those of a Parquet file are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import ConfigError, InputError
from ..folders.manifest import FileEntry
from ..schema.schema import Schema
from ..schema.schema_names import find_columns
from .part import Part
from .tabular import misfit, parse_batch


class TableParts:
    """Runs of rows of an Arrow table.

    Args:
        table: columns named as in the log, others beside them perhaps; list-valued features are lists.
        schema: that of the log, whatever its format.
        rows_of_part: rows that are parsed together.

    Raises:
        InputError: the table lacks a column, or one is of another type than the schema has.
    """

    unit = "row"
    num_header_lines = 0
    min_line_bytes = 0

    def __init__(self, table: Any, schema: Schema, *, rows_of_part: int) -> None:
        # Where rows stand in time matters to the parts of a log alone.
        self.schema = replace(schema, format="parquet", fields=(), time=None)
        names = self.schema.columns(has_label=False)
        try:
            find_columns(names, table.schema.names, "the table")
        except ConfigError as error:
            raise InputError(str(error), hint=error.hint) from None
        for name in names:
            fault = misfit(self.schema, name, table.schema.field(name).type, has_label=False)
            if fault:
                raise InputError(f"the table: {fault}")
        self._table = table.select(list(names))
        self._rows_of_part = rows_of_part

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[_RowsPart]:
        """Yield the parts in order."""
        for number, batch in enumerate(self._table.to_batches(max_chunksize=self._rows_of_part)):
            yield _RowsPart(f"rows{number:07}", self.schema, batch)

    def finish(self, digest: Any) -> None:
        """Do nothing: a table in memory has no checksum."""


@dataclass(frozen=True, slots=True)
class _RowsPart:
    """Some rows of the table."""

    name: str
    schema: Schema
    batch: Any

    def read(self) -> Part:
        return parse_batch(self.batch, self.schema, has_label=False)
