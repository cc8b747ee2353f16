"""A Parquet file or a table in memory as batches of rows.

Row groups are streamed: memory holds one batch per worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import ConfigError, FormatError, InputError, ManifestError, raise_system_fault
from ..folders.manifest import FileEntry
from ..folders.totals import ColumnsFacts
from ..schema.schema import Schema, find_columns
from .column_values import is_fixed_text, is_list, is_text
from .part import Part, UnreadPart
from .raw_file import RawFile
from .tabular import check_types, find_fields, misfit, parse_batch


class TableParts:
    """Runs of rows of an Arrow table.

    Args:
        table: columns named as in the log, and perhaps others; list-valued features are lists.
        schema: schema of the log, in any format.
        rows_of_part: rows that are parsed together.

    Raises:
        InputError: the table lacks a column, or one is of another type than the schema has.
    """

    unit = "row"
    num_header_lines = 0
    min_line_bytes = 0
    is_hashed_whole = False

    def __init__(self, table: Any, schema: Schema, *, rows_of_part: int) -> None:
        # Only the parts of a log need the times of rows.
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


@dataclass(frozen=True, slots=True)
class _RowsPart:
    """Some rows of the table."""

    name: str
    schema: Schema
    batch: Any

    def read(self) -> Part:
        return parse_batch(self.batch, self.schema, has_label=False)

    def checksum(self) -> None:
        """Return nothing: a table in memory has no checksum."""


DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Errors that pyarrow raises for a file that is damaged or not Parquet."""


VALUE_BYTES = 8
"""Bytes that a value counts in a block."""
_SHORT_TEXT_BYTES = 64
"""Average length from which on the texts of a column count with all of their bytes."""


def open_parquet(file: RawFile, dictionaries: Sequence[str] = ()) -> Any:
    """Open a log as a `pyarrow.parquet.ParquetFile`.

    Args:
        file: the log.
        dictionaries: columns whose texts are numbered in memory, too.

    Raises:
        FormatError: it is no Parquet file.
    """
    try:
        return pq.ParquetFile(
            file.path, memory_map=True, page_checksum_verification=True, read_dictionary=list(dictionaries)
        )
    except DAMAGE as error:
        raise_system_fault(file.path, error)
        raise FormatError(
            f"{file.path} is not a Parquet file: {str(error).splitlines()[0]}",
            hint="the file may be cut off or damaged: fetch it again",
        ) from error


def damaged_parquet(file: RawFile, error: Exception) -> InputError:
    """Return the error for a file that cannot be decoded; raise SystemFaultError where the system failed."""
    raise_system_fault(file.path, error)
    return InputError(
        f"{file.path} cannot be read to its end: {str(error).splitlines()[0]}",
        hint="the file may be cut off or damaged: fetch it again",
    )


class ParquetParts:
    """Batches of the rows of a Parquet file, none across two row groups."""

    unit = "row"
    num_header_lines = 0
    min_line_bytes = 0
    is_hashed_whole = True

    def __init__(
        self, file: RawFile, number: int, schema: Schema, *, block_bytes: int, has_label: bool
    ) -> None:
        self._file = file
        self._number = number
        self._schema = schema
        self._block_bytes = block_bytes
        self._has_label = has_label
        self._constants: dict[str, str] = {}
        self._names = schema.columns(has_label=has_label)
        fields = self._fields()
        self._check_columns(fields)
        self._lists = {name for name in self._names if is_list(fields.field(name).type)}

    def _fields(self) -> Any:
        with open_parquet(self._file) as parquet:
            return parquet.schema_arrow

    def _texts_by_number(self) -> list[str]:
        """Return the columns whose texts are stored once and numbered: they stay so in memory.

        A few long texts may take a thousand times the bytes of the file if each row gets its own.
        """
        with open_parquet(self._file) as parquet:
            if not parquet.num_row_groups:
                return []
            group = parquet.metadata.row_group(0)
            chunks = [group.column(number) for number in range(group.num_columns)]
            numbered = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
            fields = [field for field in parquet.schema_arrow if field.name in self._names]
            texts = [field for field in fields if is_text(field.type) and not is_fixed_text(field.type)]
            return [field.name for field in texts if field.name in numbered]

    def _check_columns(self, fields: Any) -> None:
        partitions = self._file.partitions
        lacking = [name for name in self._names if name in partitions and name not in fields.names]
        self._constants = {name: partitions[name] for name in lacking}
        self._names = tuple(name for name in self._names if name not in self._constants)
        find_fields(self._names, fields.names, self._file)
        fields = [fields.field(name) for name in self._names]
        check_types(self._file, self._schema, fields, has_label=self._has_label)

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[UnreadPart]:
        """Yield each batch of rows; a row group whose parts are finished is not read again."""
        with open_parquet(self._file, self._texts_by_number()) as parquet:
            # A row group is read as a whole or not at all: parts do not cross from one to the next.
            row = 0
            num_rows = parquet.metadata.num_rows
            for group in range(parquet.num_row_groups):
                end = row + parquet.metadata.row_group(group).num_rows
                names = self._finished_names(row, end, finished)
                if names:
                    yield from (_FinishedPart(name) for name in names)
                    row = end
                    continue
                for batch in self._cut(self._batches(parquet, group)):
                    # The file's bytes are shared out by rows, so that the parts' add up to them.
                    first_byte = self._file.num_bytes * row // num_rows
                    last_byte = self._file.num_bytes * (row + batch.num_rows) // num_rows
                    yield BatchPart(self._name(row), self, batch, last_byte - first_byte)
                    row += batch.num_rows

    def parse(self, batch: Any) -> Part:
        """Parse a batch, checked first: a damaged file may decode to offsets that point nowhere."""
        try:
            batch.validate(full=True)
            return parse_batch(batch, self._schema, has_label=self._has_label, constants=self._constants)
        except DAMAGE as error:
            raise damaged_parquet(self._file, error) from error

    def _batches(self, parquet: Any, group: int) -> Iterator[Any]:
        try:
            yield from parquet.iter_batches(
                self._rows_of_part(parquet.metadata.row_group(group)),
                row_groups=[group],
                columns=list(self._names),
                use_threads=False,
            )
        except DAMAGE as error:
            raise damaged_parquet(self._file, error) from error

    def _cut(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches, those with much longer lists than others cut at ``block_bytes`` of values."""
        most = self._block_bytes // VALUE_BYTES
        for batch in batches:
            # The running sum of values: one for each plain column of a row, and one for each list element.
            values = np.full(batch.num_rows, len(self._names) - len(self._lists), np.int64)
            for name in self._lists:
                lengths = pc.fill_null(pc.list_value_length(batch.column(name)), 1)
                values += lengths.to_numpy(zero_copy_only=False)
            ends = np.cumsum(values)
            # Cut only batches that are much too long, each time after the row that fills a part.
            is_long = batch.num_rows > 0 and ends[-1] > 2 * most
            first = 0
            while first < batch.num_rows:
                start = ends[first - 1] if first else 0
                stop = int(np.searchsorted(ends, start + most, side="right")) if is_long else batch.num_rows
                stop = min(max(stop, first + 1), batch.num_rows)
                yield batch.slice(first, stop - first)
                first = stop

    def _rows_of_part(self, group: Any) -> int:
        """Return how many rows have ``block_bytes`` of values, with lists and texts of average length."""
        num_bytes = 0.0
        for number in range(group.num_columns):
            chunk = group.column(number)
            column = next((each for each in self._names if _is_of(chunk.path_in_schema, each)), None)
            if column is None:
                continue
            num_values = chunk.num_values if column in self._lists else group.num_rows
            # The footer has the bytes of the values as they are encoded, without compression.
            value_bytes = chunk.total_uncompressed_size / max(chunk.num_values, 1)
            num_bytes += num_values * (value_bytes if value_bytes > _SHORT_TEXT_BYTES else VALUE_BYTES)
        row_bytes = num_bytes / max(group.num_rows, 1)
        return max(1, int(self._block_bytes / max(row_bytes, VALUE_BYTES)))

    def _name(self, row: int) -> str:
        return f"file{self._number:04}-row{row:012}.arrow"

    def _finished_names(self, row: int, end: int, finished: Mapping[str, FileEntry]) -> list[str]:
        """Return the names of the parts of rows ``[row, end)`` if all are finished, else none."""
        names = []
        # Each part's number of rows, from the manifest, gives the start of the next part.
        while row < end:
            entry = finished.get(self._name(row))
            if entry is None:
                return []
            names.append(entry.path)
            num_rows = entry.read_facts(ColumnsFacts).num_lines
            if num_rows < 1:  # an edited record would never advance
                raise ManifestError(f"{entry.path} is said to have {num_rows} rows of {self._file.path}")
            row += num_rows
        return names


def _is_of(path: str, column: str) -> bool:
    """Return whether a chunk is of a column; that of a list has more names behind it."""
    return path == column or path.startswith(f"{column}.")


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some rows of a Parquet file, decoded but not parsed."""

    name: str
    parts: ParquetParts
    batch: Any
    raw_bytes: int
    """Bytes of the file that count as theirs."""

    def read(self) -> Part:
        return replace(self.parts.parse(self.batch), num_raw_bytes=self.raw_bytes)

    def checksum(self) -> None:
        """Return nothing: the file is hashed whole."""


@dataclass(frozen=True, slots=True)
class _FinishedPart:
    """Rows whose file is in the folder already."""

    name: str

    def read(self) -> None:
        """Read nothing."""

    def checksum(self) -> None:
        """Return nothing: the file is hashed whole."""
