"""Files of typed columns (Parquet, Arrow, ORC), or a table in memory, as batches of rows.

Where parts of Parquet end follows from the footer alone: neighbouring row groups make one part as long as
they fit, and a worker decodes it. A row group of several parts is streamed, so that memory holds one batch
per worker. Batches of Arrow (also its streams) and ORC may be of any size, so that few rows are decoded at a
time and joined until they fill a part; Arrow's compressed batches are decoded whole, however large they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ..errors import ConfigError, FormatError, InputError, ManifestError, raise_system_fault
from ..folders.manifest import FileEntry
from ..folders.totals import ColumnsFacts
from ..schema.schema import Schema, find_columns
from .column_values import checked, is_fixed_text, is_list, is_text
from .part import FilePart, Part, RawParts, Rows
from .raw_file import RawFile
from .tabular import check_types, constants_of, find_fields, misfit, parse_rows, rows_of_batch

DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)
"""Errors that pyarrow raises for a file that is damaged or not Parquet."""


VALUE_BYTES = 8
"""Bytes that a value counts in a block."""
_TEXTS = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_SHORT_TEXT_BYTES = 64
"""Average length from which on the texts of a column count with all of their bytes."""
_MOST_NUMBERED_BYTES = 16 << 20
"""Texts of a row group that are numbered; most writers number 1 MB."""
_MOST_DECODED = 3
"""Bytes of a part's values for each one that they count in a block, above which texts are numbered."""
_SMALL_FILE_BYTES = 1 << 20
"""Size of a file up to which another thread to read it costs more than it saves."""
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
    settings = {"read_dictionary": list(dictionaries), "metadata": footer, "page_checksum_verification": True}
    is_read_ahead = file.num_bytes > _SMALL_FILE_BYTES  # by another thread
    try:
        return pq.ParquetFile(file.path, memory_map=True, pre_buffer=is_read_ahead, **settings)
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
class RowRun:
    """Neighbouring row groups that are read together."""

    groups: range
    first_row: int
    num_rows: int
    rows_of_part: int
    """Rows that a part has; at least ``num_rows`` where the run is one part."""
    most_text_bytes: int = 0
    """Bytes that texts take at most, if each row has its own."""
    pieces: tuple[range, ...] = ()
    """Those of many row groups whose texts fit in a block, if each row has its own."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the metadata of a file say of its parts."""

    num_rows: int
    runs: Sequence[RowRun]
    numbered: Sequence[str]
    """Columns whose texts are stored once and numbered."""


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Some rows of a file or table."""

    name: str
    parts: Any
    """The parts of the file or table."""
    batch: Any
    """A batch that is decoded but not parsed, a RowRun, or None where the rows are finished."""
    raw_bytes: int = 0
    """Bytes of the file that count as theirs."""

    def read(self) -> Part | None:
        """Decode and parse the rows; None where they are finished."""
        if self.batch is None:
            return None
        part: Part = self.parts.parse_rows(self.parts.rows_of(self._decoded()))
        return replace(part, num_raw_bytes=self.raw_bytes)

    def rows(self) -> tuple[Rows, Part]:
        """Decode the rows; next to them is the part without columns, if all are good."""
        rows = self.parts.rows_of(self._decoded())
        return rows, Part({}, rows.is_bad.shape[0], Counter(), None, num_raw_bytes=self.raw_bytes)

    def _decoded(self) -> Any:
        return self.parts.decode(self.batch) if isinstance(self.batch, RowRun) else self.batch

    def changed(self, facts: ColumnsFacts) -> None:
        """Return nothing: a file is hashed whole, and a table is in memory."""


@dataclass(frozen=True, slots=True)
class _PartsOfRun:
    """The parts of a row group that has several."""

    parts: ParquetParts
    run: RowRun

    def unread(self, finished: Mapping[str, FileEntry]) -> Iterator[RowsPart]:
        """Yield each part; the row group is read in any case."""
        return self.parts.parts_of(self.run, finished)


class TableParts(RawParts):
    """Runs of rows of an Arrow table.

    Args:
        table: columns named as in the log, and perhaps others; list-valued features are lists.
        schema: schema of the log, in any format.
        rows_of_part: rows that are parsed together.

    Raises:
        InputError: the table lacks a column, or one is of another type than the schema has.
    """

    unit = "row"
    has_label = False

    def __init__(self, table: Any, schema: Schema, *, rows_of_part: int) -> None:
        self.schema = replace(schema.of_predicted, format="parquet", fields=())
        names = self.schema.columns(has_label=False)
        try:
            find_columns(names, table.schema.names, "the table")
        except ConfigError as error:
            raise InputError(str(error), hint=error.hint) from None
        self._table = table.select(list(names))
        fault = misfit(self.schema, self._table.schema, has_label=False)
        if fault:
            raise InputError(f"the table: {fault}")
        self._rows_of_part = rows_of_part

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[RowsPart]:
        """Yield the parts in order."""
        for number, batch in enumerate(self._table.to_batches(max_chunksize=self._rows_of_part)):
            yield RowsPart(f"rows{number:07}", self, batch)

    def rows_of(self, batch: Any) -> Rows:
        """Return the rows of a batch."""
        return rows_of_batch(batch)

    def parse_rows(self, rows: Rows) -> Part:
        """Read the values of rows, perhaps of several files."""
        return parse_rows(rows, self.schema, has_label=self.has_label)


class ParquetParts(RawParts):
    """Rows of a Parquet file: several row groups in a part, or one in several."""

    unit = "row"
    is_hashed_whole = True

    def __init__(
        self, file: RawFile, number: int, schema: Schema, *, block_bytes: int, has_label: bool
    ) -> None:
        self._file = file
        self._number = number
        self.schema = schema
        self._block_bytes = block_bytes
        self.has_label = has_label
        self._footer: Any = None
        self._layout: _Layout | None = None
        self._names = schema.columns(has_label=has_label)
        fields, footer = self._look()
        self._check_columns(fields)
        self._lists = {name for name in self._names if is_list(fields.field(name).type)}
        # Arrow cannot join lists of numbered values.
        types = [fields.field(name).type for name in self._lists]
        self._can_join = not any(pa.types.is_dictionary(kind.value_type) for kind in types)
        # Of many small files each is opened once more, to be decoded. Memory does not grow with row groups.
        if footer is not None and footer.num_row_groups <= _FEW_GROUPS:
            self._layout = self._laid_out(fields, footer)

    def _look(self) -> tuple[Any, Any]:
        """Return the Arrow schema and the metadata of the file."""
        with open_parquet(self._file) as parquet:
            return parquet.schema_arrow, parquet.metadata

    def _laid_out(self, fields: Any, footer: Any) -> _Layout:
        return _Layout(footer.num_rows, self._runs(footer), self._texts_by_number(fields, footer))

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
        self._constants = constants_of(self._file, self._names, fields.names)
        self._names = tuple(name for name in self._names if name not in self._constants)
        find_fields(self._names, fields.names, self._file)
        fields = tuple(fields.field(name) for name in self._names)
        check_types(self._file, self.schema, fields, has_label=self.has_label)

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[FilePart]:
        """Yield each part; those that are finished are not read again."""
        for part in self.describe(finished):
            yield from part.unread(finished) if isinstance(part, _PartsOfRun) else (part,)

    def describe(self, finished: Mapping[str, FileEntry]) -> Iterator[Any]:
        """Yield each part, or a row group of several; those that are finished are not read again."""
        opened = self._opened()  # whose metadata is kept as long as its parts are
        assert opened._layout is not None
        for run in opened._layout.runs:
            names = opened._finished_names(run.first_row, run.first_row + run.num_rows, finished)
            if names:
                yield from (RowsPart(name, opened, None) for name in names)
            elif run.num_rows <= run.rows_of_part and opened._names:
                yield opened._part(run, run.first_row, run.num_rows, finished)
            else:
                yield _PartsOfRun(opened, run)

    def parts_of(self, rows: RowRun, finished: Mapping[str, FileEntry]) -> Iterator[RowsPart]:
        """Yield the parts of a row group."""
        assert self._layout is not None
        row = rows.first_row
        for batch in self._cut(self._batches(rows.groups, rows.rows_of_part, self._layout.numbered)):
            yield self._part(batch, row, batch.num_rows, finished)
            row += batch.num_rows

    def _opened(self) -> ParquetParts:
        """Return the parts with the layout of the file, and the metadata of one with many row groups."""
        if self._layout is not None:
            return self
        opened = copy(self)
        fields, opened._footer = self._look()
        opened._layout = self._laid_out(fields, opened._footer)
        return opened

    def __getstate__(self) -> dict[str, Any]:
        """Return what other processes need: of many row groups those that they are told to read."""
        layout = self._layout if self._footer is None else self._layout and replace(self._layout, runs=())
        return self.__dict__ | {"_footer": None, "_layout": layout}

    def _runs(self, footer: Any) -> list[RowRun]:
        """Return the row groups by those that are read together."""
        fitting: list[list[RowRun]] = []
        chunks = self._chunks(footer)
        row = 0
        filled = 0.0
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            sizes = self._rows_of_part(group, *chunks)
            run = RowRun(range(number, number + 1), row, group.num_rows, *sizes)
            # As shares of a part: a group joins those before it while they fit in one with it.
            filled += run.num_rows / run.rows_of_part
            if not fitting or filled > 1 or not self._can_join:
                fitting.append([])
                filled = run.num_rows / run.rows_of_part
            fitting[-1].append(run)
            row += run.num_rows
        runs = []
        for alone in fitting:
            runs += [self._as_part(alone)] if len(alone) > _FEW_GROUPS else alone
        return [run for run in runs if run.num_rows]

    def _as_part(self, alone: Sequence[RowRun]) -> RowRun:
        """Return neighbouring row groups as one part."""
        firsts = [alone[0].groups.start]
        num_bytes = 0
        for run in alone:
            num_bytes += run.most_text_bytes
            if num_bytes > self._block_bytes and run.groups.start > firsts[-1]:
                firsts.append(run.groups.start)
                num_bytes = run.most_text_bytes
        pieces = tuple(range(*ends) for ends in pairwise([*firsts, alone[-1].groups.stop]))
        num_rows = sum(run.num_rows for run in alone)
        groups = range(firsts[0], alone[-1].groups.stop)
        return RowRun(groups, alone[0].first_row, num_rows, num_rows, pieces=pieces)

    def _part(self, rows: Any, row: int, num_rows: int, finished: Mapping[str, FileEntry]) -> RowsPart:
        """Return a part; raises ManifestError where another number of its rows is finished."""
        name = self._name(row)
        if name in finished and finished[name].read_facts(ColumnsFacts).num_lines != num_rows:
            raise ManifestError(
                f"{name} has other rows of {self._file.path} than this version of hotset reads together",
                hint="--redo ingest reads the log from its start",
            )
        # The bytes of the file are shared out by rows, so that they add up to them.
        of_file = max(1, self._layout.num_rows if self._layout else 0)
        start, stop = (self._file.num_bytes * each // of_file for each in (row, row + num_rows))
        return RowsPart(name, self, rows, stop - start)

    def rows_of(self, batch: Any) -> Rows:
        """Return the rows of a batch, checked: a damaged file may decode to offsets that point nowhere."""
        try:
            return rows_of_batch(checked([batch])[0], self._constants)
        except DAMAGE as error:
            raise damaged_parquet(self._file, error) from error

    def parse_rows(self, rows: Rows) -> Part:
        """Read the values of rows, perhaps of several files."""
        try:
            return parse_rows(rows, self.schema, has_label=self.has_label)
        except DAMAGE as error:
            raise damaged_parquet(self._file, error) from error

    def decode(self, run: RowRun) -> Any:
        """Return the rows of a run that is one part."""
        assert self._layout is not None
        # Numbers of texts cost more than texts where a row group has few rows: only many bytes are numbered.
        batches: list[Any] = []
        for groups in run.pieces:
            batches += self._batches(groups, run.num_rows, ())
            num_rows = sum(batch.num_rows for batch in batches)
            num_bytes = sum(batch.nbytes for batch in batches)
            if num_bytes * run.num_rows > _MOST_DECODED * self._block_bytes * num_rows:
                batches = []
                break
        batches = batches or list(self._batches(run.groups, run.rows_of_part, self._layout.numbered))
        num_rows = sum(batch.num_rows for batch in batches)
        if num_rows != run.num_rows:
            raise damaged_parquet(self._file, OSError(f"{num_rows} rows, want {run.num_rows}"))
        # Row groups of numbered texts are decoded apart; offsets are checked before they are joined.
        try:
            return pa.concat_batches(checked(batches) if len(batches) > 1 else batches)
        except DAMAGE as error:
            raise damaged_parquet(self._file, error) from error

    def _batches(self, groups: range, num_rows: int, numbered: Sequence[str]) -> Iterator[Any]:
        ways = {"row_groups": list(groups), "columns": list(self._names), "use_threads": False}
        with open_parquet(self._file, numbered, self._footer) as parquet:
            try:
                yield from parquet.iter_batches(num_rows, **ways)
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

    def _chunks(self, footer: Any) -> tuple[int, list[tuple[int, bool, bool]]]:
        """Return how many chunks of a row group have one short value a row, and of those of lists and texts,
        the only ones that are looked at, the number and whether they are of lists and of texts."""
        num_plain = 0
        others = []
        names = dict.fromkeys(self._names)
        for number in range(len(footer.schema)):
            chunk = footer.schema.column(number)
            path = chunk.path
            column = path if path in names else next((each for each in names if _is_of(path, each)), None)
            is_listed, has_texts = column in self._lists, chunk.physical_type in _TEXTS
            if is_listed or (has_texts and column is not None):
                others.append((number, is_listed, has_texts))
            else:
                num_plain += column is not None
        return num_plain, others

    def _rows_of_part(
        self, group: Any, num_plain: int, others: Sequence[tuple[int, bool, bool]]
    ) -> tuple[int, int]:
        """Return how many rows have ``block_bytes`` of values, with lists and texts of average length, and
        the bytes that texts of the row group take at most."""
        num_bytes = float(group.num_rows * num_plain * VALUE_BYTES)
        most_text_bytes = 0
        for number, is_listed, has_texts in others:
            chunk = group.column(number)
            num_values = chunk.num_values
            # The footer has the bytes of the values as they are encoded, without compression.
            value_bytes = chunk.total_uncompressed_size / max(num_values, 1)
            most_text_bytes += num_values * chunk.total_uncompressed_size if has_texts else 0
            is_long = has_texts and value_bytes > _SHORT_TEXT_BYTES
            num_bytes += (num_values if is_listed else group.num_rows) * (
                value_bytes if is_long else VALUE_BYTES
            )
        row_bytes = num_bytes / max(group.num_rows, 1)
        return max(1, int(self._block_bytes / max(row_bytes, VALUE_BYTES))), most_text_bytes

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


_ROWS_OF_BATCH = 4096
"""Rows that are decoded at a time where the format allows it."""


class ArrowParts(ParquetParts):
    """Batches of the rows of a file of Arrow or ORC."""

    def __init__(self, file: RawFile, *settings: Any, form: str, **more: Any) -> None:
        self._format = form
        super().__init__(file, *settings, **more)

    def _look(self) -> tuple[Any, Any]:
        with open_rows(self._file, self._format) as rows:
            return rows.fields, None

    @property
    def is_in_order(self) -> bool:
        """Whether parts are found by reading, as they always are: a part joins batches of any size."""
        return True

    describe = RawParts.describe

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[FilePart]:
        """Yield each batch of rows; those that are finished are decoded, too."""
        with open_rows(self._file, self._format) as rows:
            row = 0
            num_rows = rows.num_rows()
            for batch in self._joined(rows.batches(self._names)):
                first_byte = self._file.num_bytes * row // num_rows
                last_byte = self._file.num_bytes * (row + batch.num_rows) // num_rows
                yield RowsPart(self._name(row), self, batch, last_byte - first_byte)
                row += batch.num_rows

    def _joined(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield batches of about ``block_bytes`` each, cut and joined at places that follow from the file."""
        waiting: list[Any] = []
        num_bytes = 0
        for batch in (piece for each in batches for piece in self._pieces(each)):
            size = self._bytes_of(batch)
            if waiting and num_bytes + size > self._block_bytes:
                yield _join(waiting)
                waiting, num_bytes = [], 0
            waiting.append(batch)
            num_bytes += size
        if waiting:
            yield _join(waiting)

    def _pieces(self, batch: Any) -> Iterator[Any]:
        """Yield a batch in pieces that fit in a part, one row at least."""
        if batch.num_rows == 0:
            return
        if batch.num_rows == 1 or self._bytes_of(batch) <= self._block_bytes:
            yield batch
            return
        half = batch.num_rows // 2
        yield from self._pieces(batch.slice(0, half))
        yield from self._pieces(batch.slice(half))

    def _bytes_of(self, batch: Any) -> int:
        num_bytes: int = max(batch.nbytes, batch.num_rows * batch.num_columns * VALUE_BYTES)
        return num_bytes


def _join(batches: Sequence[Any]) -> Any:
    """Return one batch, with arrays of its own: a slice would hold all that it was cut from."""
    columns = pa.Table.from_batches(batches).combine_chunks()
    return columns.to_batches()[0] if columns.num_columns else batches[0]


class _Rows:
    """The rows of an open file."""

    def __init__(self, file: RawFile, form: str) -> None:
        self._file = file
        self._form = form
        self._dataset: Any = None
        if form == "stream":
            self.fields = self._stream().schema
        elif form != "parquet":
            import pyarrow.dataset
            import pyarrow.fs

            kind = {"arrow": "ipc"}.get(form, form)
            system = pyarrow.fs.LocalFileSystem(use_mmap=True)
            self._dataset = pyarrow.dataset.dataset(str(file.path), format=kind, filesystem=system)
            self.fields = self._dataset.schema
        else:
            self.fields = open_parquet(file).schema_arrow

    def _stream(self) -> Any:
        return pa.ipc.open_stream(pa.memory_map(str(self._file.path)))

    def num_rows(self) -> int:
        """Return the number of rows; those of a stream are counted."""
        if self._form == "orc":
            import pyarrow.orc

            return int(pyarrow.orc.ORCFile(str(self._file.path)).nrows)
        if self._form == "stream":
            return sum(batch.num_rows for batch in self._stream())
        return int(self._dataset.count_rows())

    def batches(self, names: Sequence[str]) -> Iterator[Any]:
        """Yield batches of some columns, of any number of rows."""
        if self._form == "parquet":
            with open_parquet(self._file) as parquet:
                yield from parquet.iter_batches(_ROWS_OF_BATCH, columns=list(names), use_threads=False)
        elif self._form == "stream":
            for batch in self._stream():
                chosen = batch.select(list(names))
                for first in range(0, batch.num_rows, _ROWS_OF_BATCH):
                    yield chosen.slice(first, _ROWS_OF_BATCH)
        else:
            ways = {"use_threads": False, "batch_readahead": 0, "fragment_readahead": 0}
            yield from self._dataset.to_batches(columns=list(names), batch_size=_ROWS_OF_BATCH, **ways)


@contextmanager
def open_rows(file: RawFile, form: str) -> Iterator[_Rows]:
    """Open a file of typed columns: parquet, arrow, stream or orc.

    Raises:
        FormatError: it is not what its first bytes say.
        InputError: it cannot be read to its end.
    """
    try:
        rows = _Rows(file, form)
        rows.fields.names  # noqa: B018 - names that are not UTF-8 are damage
    except DAMAGE as error:
        raise_system_fault(file.path, error)
        name = "ORC" if form == "orc" else "Arrow"
        raise FormatError(f"{file.path} is not a file of {name}: {str(error).splitlines()[0]}") from error
    try:
        yield rows
    except DAMAGE as error:
        raise damaged_parquet(file, error) from error
