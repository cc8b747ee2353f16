"""A Parquet file or a table in memory as batches of rows.

Where parts end follows from the footer alone: neighbouring row groups make one part as long as they fit, and
a worker decodes it. A row group of several parts is streamed, so that memory holds one batch per worker.
"""

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
        self.schema = replace(schema.of_predicted, format="parquet", fields=())
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
_TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_SHORT_TEXT_BYTES = 64
"""Average length from which on the texts of a column count with all of their bytes."""
_MOST_NUMBERED_BYTES = 16 << 20
"""Texts of a row group that are numbered; most writers number 1 MB."""
_FEW_GROUPS = 16
"""Row groups up to which each stays a part, as it always was; more would cost more than their rows."""


def open_parquet(file: RawFile, dictionaries: Sequence[str] = (), footer: Any = None) -> Any:
    """Open a log as a `pyarrow.parquet.ParquetFile`.

    Args:
        file: the log.
        dictionaries: columns whose texts are numbered in memory, too.
        footer: its metadata, if they are read already.

    Raises:
        FormatError: it is no Parquet file.
    """
    settings = {"read_dictionary": list(dictionaries), "metadata": footer}
    try:
        return pq.ParquetFile(file.path, memory_map=True, page_checksum_verification=True, **settings)
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


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring row groups that are read together."""

    groups: range
    first_row: int
    num_rows: int
    rows_of_part: int
    """Rows that a part has; at least ``num_rows`` where the run is one part."""


class ParquetParts:
    """Rows of a Parquet file: several row groups in a part, or one in several."""

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
        # Arrow cannot join lists of numbered values.
        types = [fields.field(name).type for name in self._lists]
        self._can_join = not any(pa.types.is_dictionary(kind.value_type) for kind in types)

    def _fields(self) -> Any:
        with open_parquet(self._file) as parquet:
            return parquet.schema_arrow

    def _texts_by_number(self, fields: Any, footer: Any) -> list[str]:
        """Return the columns whose texts are stored once and numbered: they stay so in memory.

        A few long texts may take a thousand times the bytes of the file if each row gets its own.
        """
        if not footer.num_row_groups:
            return []
        first = footer.row_group(0)
        numbers = {first.column(number).path_in_schema: number for number in range(first.num_columns)}
        texts = [name for name in self._names if is_text(fields.field(name).type) and name in numbers]
        texts = [name for name in texts if not is_fixed_text(fields.field(name).type)]
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            texts = [name for name in texts if _is_numbered(group.column(numbers[name]))]
        return texts

    def _check_columns(self, fields: Any) -> None:
        partitions = self._file.partitions
        lacking = [name for name in self._names if name in partitions and name not in fields.names]
        self._constants = {name: partitions[name] for name in lacking}
        self._names = tuple(name for name in self._names if name not in self._constants)
        find_fields(self._names, fields.names, self._file)
        fields = [fields.field(name) for name in self._names]
        check_types(self._file, self._schema, fields, has_label=self._has_label)

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[UnreadPart]:
        """Yield each part; those that are finished are not read again."""
        with open_parquet(self._file) as parquet:
            footer = parquet.metadata
            opening = _Opening(self._texts_by_number(parquet.schema_arrow, footer), footer)
        for run in self._runs(footer):
            names = self._finished_names(run.first_row, run.first_row + run.num_rows, finished)
            if names:
                yield from (_FinishedPart(name) for name in names)
                continue
            row = run.first_row
            if run.num_rows <= run.rows_of_part and self._names:
                num_bytes = self._raw_bytes(row, run.num_rows, footer)
                yield self._checked(_GroupsPart(self._name(row), self, run, opening, num_bytes), finished)
                continue
            for batch in self._cut(self._batches(run, opening)):
                num_bytes = self._raw_bytes(row, batch.num_rows, footer)
                yield self._checked(BatchPart(self._name(row), self, batch, num_bytes), finished)
                row += batch.num_rows

    def _runs(self, footer: Any) -> list[_Run]:
        """Return the row groups by those that are read together."""
        fitting: list[list[_Run]] = []
        chunks = self._chunks(footer)
        row = 0
        filled = 0.0
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            run = _Run(range(number, number + 1), row, group.num_rows, self._rows_of_part(group, chunks))
            # As shares of a part: a group joins those before it while they fit in one with it.
            filled += run.num_rows / run.rows_of_part
            if not fitting or filled > 1 or not self._can_join:
                fitting.append([])
                filled = run.num_rows / run.rows_of_part
            fitting[-1].append(run)
            row += run.num_rows
        runs = []
        for alone in fitting:
            groups = range(alone[0].groups.start, alone[-1].groups.stop)
            num_rows = sum(run.num_rows for run in alone)
            joined = _Run(groups, alone[0].first_row, num_rows, num_rows)
            runs += [joined] if len(alone) > _FEW_GROUPS else alone
        return [run for run in runs if run.num_rows]

    def _checked(self, part: _RowsOfFile, finished: Mapping[str, FileEntry]) -> UnreadPart:
        """Return a part; raises ManifestError where another number of its rows is finished."""
        entry = finished.get(part.name)
        if entry is not None and entry.read_facts(ColumnsFacts).num_lines != part.num_rows:
            raise ManifestError(
                f"{part.name} has other rows of {self._file.path} than this version of hotset reads together",
                hint="--redo ingest reads the log from its start",
            )
        return part

    def _raw_bytes(self, row: int, num_rows: int, footer: Any) -> int:
        """Return the bytes of rows: those of the file are shared out by rows, so that they add up to them."""
        of_file = max(1, footer.num_rows)
        stop = self._file.num_bytes * (row + num_rows) // of_file
        return int(stop - self._file.num_bytes * row // of_file)

    def parse(self, batch: Any) -> Part:
        """Parse a batch, checked first: a damaged file may decode to offsets that point nowhere."""
        try:
            batch.validate(full=True)
            return parse_batch(batch, self._schema, has_label=self._has_label, constants=self._constants)
        except DAMAGE as error:
            raise damaged_parquet(self._file, error) from error

    def decode(self, run: _Run, opening: _Opening) -> Any:
        """Return the rows of a run that is one part."""
        batches = list(self._batches(run, opening))
        num_rows = sum(batch.num_rows for batch in batches)
        if num_rows != run.num_rows:
            raise damaged_parquet(self._file, OSError(f"{num_rows} rows, want {run.num_rows}"))
        # Row groups of numbered texts are decoded apart; offsets are checked before they are joined.
        try:
            for batch in batches if len(batches) > 1 else ():
                batch.validate(full=True)
            batch = pa.concat_batches(batches)
        except DAMAGE as error:
            raise damaged_parquet(self._file, error) from error
        return batch

    def _batches(self, run: _Run, opening: _Opening) -> Iterator[Any]:
        ways = {"row_groups": list(run.groups), "columns": list(self._names), "use_threads": False}
        with opening.open(self._file) as parquet:
            try:
                yield from parquet.iter_batches(run.rows_of_part, **ways)
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

    def _chunks(self, footer: Any) -> list[tuple[int, str]]:
        """Return the numbers of the chunks that are read of each row group, and their columns."""
        found = []
        for number in range(len(footer.schema)):
            path = footer.schema.column(number).path
            column = next((each for each in self._names if _is_of(path, each)), None)
            if column is not None:
                found.append((number, column))
        return found

    def _rows_of_part(self, group: Any, chunks: Sequence[tuple[int, str]]) -> int:
        """Return how many rows have ``block_bytes`` of values, with lists and texts of average length."""
        num_bytes = 0.0
        for number, column in chunks:
            chunk = group.column(number)
            num_values = chunk.num_values if column in self._lists else group.num_rows
            # The footer has the bytes of the values as they are encoded, without compression.
            value_bytes = chunk.total_uncompressed_size / max(chunk.num_values, 1)
            is_long = value_bytes > _SHORT_TEXT_BYTES and chunk.physical_type in _TEXTS
            num_bytes += num_values * (value_bytes if is_long else VALUE_BYTES)
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


def _is_numbered(chunk: Any) -> bool:
    """Return whether all texts of a row group are numbered.

    A writer stops numbering where they are too many. Their bytes then show in the footer, and numbers would
    hold all of them at once.
    """
    most = VALUE_BYTES * chunk.num_values + _MOST_NUMBERED_BYTES
    return bool(chunk.has_dictionary_page and chunk.total_uncompressed_size <= most)


def _is_of(path: str, column: str) -> bool:
    """Return whether a chunk is of a column; that of a list has more names behind it."""
    return path == column or path.startswith(f"{column}.")


class _Opening:
    """How a file is opened: with its metadata, which other processes read again."""

    def __init__(self, numbered: Sequence[str], metadata: Any = None) -> None:
        self._numbered = numbered
        self._metadata = metadata

    def open(self, file: RawFile) -> Any:
        return open_parquet(file, self._numbered, self._metadata)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Opening, (self._numbered,)


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some rows of a file, decoded but not parsed."""

    name: str
    parts: ParquetParts
    batch: Any
    raw_bytes: int
    """Bytes of the file that count as theirs."""

    @property
    def num_rows(self) -> int:
        """Rows of the part."""
        return int(self.batch.num_rows)

    def read(self) -> Part:
        return replace(self.parts.parse(self.batch), num_raw_bytes=self.raw_bytes)

    def checksum(self) -> None:
        """Return nothing: the file is hashed whole."""


@dataclass(frozen=True, slots=True)
class _GroupsPart:
    """Row groups that are not read yet."""

    name: str
    parts: ParquetParts
    run: _Run
    opening: _Opening
    raw_bytes: int

    @property
    def num_rows(self) -> int:
        return self.run.num_rows

    def read(self) -> Part:
        return BatchPart(
            self.name, self.parts, self.parts.decode(self.run, self.opening), self.raw_bytes
        ).read()

    def checksum(self) -> None:
        """Return nothing: the file is hashed whole."""


_RowsOfFile = BatchPart | _GroupsPart


@dataclass(frozen=True, slots=True)
class _FinishedPart:
    """Rows whose file is in the folder already."""

    name: str

    def read(self) -> None:
        """Read nothing."""

    def checksum(self) -> None:
        """Return nothing: the file is hashed whole."""
