"""Which format a file of a log has, its parts in that format, and columns of it as they are.

Each part is parsed alone. Text is cut at fixed bytes moved to a line end, Parquet at fixed numbers of rows,
which are whole row groups or within one. So memory holds one part per worker, however large the file or its
row groups are.

A part costs as much in all stages together as the rows of a file of 1 MB. So the rows of a group of small
files, see `log_files`, are joined before their values are read. Where one is bad, each file is read alone,
which tells whose it is.

Columns that a file of scores keeps are read from the log a second time, so that what is not kept costs
nothing. Text keeps its bytes, which must be UTF-8; columns of Parquet keep their types.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from ..errors import ConfigError, FormatError, HotsetError, InputError
from ..folders.manifest import FileEntry
from ..folders.totals import ColumnsFacts
from ..schema.schema import SAMPLE_TIME, Schema, refuse_twice, zone_named
from ..schema.schema_file import KNOWN_LOGS, KnownLog, schema_named
from .log_files import BLOCK_OVER_GROUP, mark_of
from .part import UTF_16_MARKS, Part, RawParts, Rows, UnreadPart, iterate_blocks
from .raw_file import RawFile
from .text_parts import CriteoParts, TextParts

if TYPE_CHECKING:  # what reads Criteo's lines imports no other reader
    from .csv_parts import CsvParts

_START_BYTES = 4096
"""Bytes of a file that are read to detect its format."""


def open_parts(
    file: RawFile, number: int, schema: Schema, *, block_bytes: int, has_label: bool, strict: bool
) -> RawParts:
    """Return the parts of ``file``, in the format that ``schema`` names.

    Args:
        number: number of ``file`` in the log; part of the parts' names.
        block_bytes: raw text, or Parquet values at 8 bytes each, in one part (bytes).
        has_label: lines have a label, if the schema names one.
        strict: bad lines of Criteo's format are not counted by reason: the first one is enough.

    Raises:
        InputError: the file cannot be read, is of another format, or lacks a column of the schema.
        ConfigError: this machine has no such time zone.
    """
    has_label = has_label and schema.label is not None
    if schema.zone:
        zone_named(schema.zone)
    settings: dict[str, Any] = {"block_bytes": block_bytes, "has_label": has_label}
    form, schema = as_read(file, schema)
    if form == "criteo":
        return CriteoParts(file, number, schema, **settings, strict=strict)
    if form == "csv":
        from .csv_parts import CsvParts

        return CsvParts(file, number, schema, **settings)
    # pyarrow's readers and compute functions take a fifth of the start of a command.
    if form == "json":
        from .json_parts import JsonParts

        return JsonParts(file, number, schema, **settings, strict=strict)
    if form == "parquet":
        from .columnar_parts import ParquetParts

        return ParquetParts(file, number, schema, **settings)
    from .columnar_parts import ArrowParts

    return ArrowParts(file, number, schema, **settings, form=form)


def check_columns(log: Iterable[RawParts]) -> None:
    """Raise InputError where no file of a log has some column; of most formats, each must have all."""
    texts = [parts for parts in log if isinstance(parts, TextParts)]
    files = [(parts.file, parts.lacking) for parts in texts if parts.lacking is not None]
    if files:
        from .json_parts import refuse_lacking

        refuse_lacking(files)


COLUMNAR = ("parquet", "arrow", "stream", "orc")
"""Formats with typed columns, as `RawFile.read_format` names them."""


def as_read(file: RawFile, schema: Schema) -> tuple[str, Schema]:
    """Return the format that a file has, and the schema to read it with.

    The bytes of the file decide, so that a run on CSV predicts Parquet with the same columns, and vice versa.
    Only Criteo's lines have no names of columns, by which another format could be read.

    Raises:
        InputError: the file cannot be read, or no format fits the schema.
    """
    form = file.read_format()
    if schema.format == "criteo":
        _refuse_other_format(file, form)
        return "criteo", schema
    if form != "text":
        return form, replace(schema, format="json" if form == "json" else "parquet", fields=())
    is_csv = schema.format == "csv"
    if is_csv and schema.fields:
        return "csv", schema
    from .csv_parts import SEPARATORS, read_header

    # The names in the first line show what is between them.
    wanted = set(schema.columns(has_label=False)) - file.partitions.keys()
    lists = tuple((name, separator or "|") for name, separator in schema.lists)
    for separator in (schema.separator, *SEPARATORS) if is_csv else SEPARATORS:
        text = replace(schema, format="csv", separator=separator, lists=lists)
        with suppress(InputError):  # a quote is wrong
            found = read_header(file, text).fields
            if not found or wanted <= set(found):  # a text may have no row, nor a header
                return "csv", text
    if is_csv:  # its reader names the column that is lacking
        return "csv", schema
    raise FormatError(
        f"{file.path} is neither {schema.format} nor text with the columns of the schema in its first line",
        hint=f'the schema has format = "{schema.format}"; a log of text without names needs one of its own',
    )


_NAMES = {"parquet": "Parquet", "arrow": "Arrow", "stream": "Arrow", "orc": "ORC", "json": "JSON Lines"}


def _refuse_other_format(file: RawFile, form: str) -> None:
    """Raise InputError where a file that should hold Criteo's lines is clearly of another format.

    Criteo's format is the default, so this is what a user meets who forgets to name a schema.
    """
    if form in _NAMES:
        raise _needs_schema(file, _NAMES[form])
    if file.read_start(2) in UTF_16_MARKS:
        raise _needs_schema(file, "text in UTF-16")
    for block in iterate_blocks(file, _START_BYTES):
        lines = block.read().lines.tobytes().splitlines()[:3]
        # One such line could be damage in a log of Criteo's.
        if len(lines) > 1 and all(b"," in line and b"\t" not in line for line in lines):
            raise _needs_schema(file, "CSV")
        if len(lines) > 1 and (b"\t" not in lines[0] or b"\tI2\t" in lines[0].upper()):
            known = recognise(file)
            if known is not None:
                raise _needs_schema(file, f"the log {known.name}")
        return


def _needs_schema(file: RawFile, found: str) -> FormatError:

    path = shlex.quote(str(file.path))
    hint = f"`hotset schema {path} > schema.toml` proposes a schema: look at it, then give it to --schema"
    known = recognise(file)
    if known is not None and known.is_exact:
        hint = f"it has the columns of {known.name}: give --schema {known.name}"
        hint += "" if known.has_label else " --no-label"
    return FormatError(
        f"{file.path} looks like {found}, want the tab-separated lines of Criteo's format", hint=hint
    )


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is read of a file that is one part."""

    parts: RawParts
    number: int
    rows: Rows
    part: Part
    """The part without columns, if all rows are good."""
    types: dict[str, Any]
    """Types of the columns, which rows that become one array have in common."""

    def is_like(self, other: _Piece) -> bool:
        """Return whether the rows of both files can be one array of each column."""
        return self.types == other.types and self.parts.schema == other.parts.schema

    def alone(self) -> Part:
        """Return the part, read again."""
        part = next((each.read() for each in self.parts.iterate({})), None)
        return part or Part({}, 0, Counter(), None)  # it has changed, which ends the run


def _types(rows: Rows) -> dict[str, Any]:
    types: dict[str, Any] = {name: each.type for name, each in rows.cells.items()}
    # Arrow cannot join lists of numbered values: no two files with them are equal.
    lists = [kind for kind in types.values() if kind.num_fields]
    is_numbered = any(pa.types.is_dictionary(kind.field(0).type) for kind in lists)
    return types | ({"": object()} if is_numbered else {})


@dataclass(frozen=True, slots=True)
class JoinedPart:
    """The rows of neighbouring files."""

    name: str
    pieces: tuple[_Piece, ...]

    def read(self) -> Part:
        """Read the values of all rows."""
        rows = _joined([piece.rows for piece in self.pieces])
        part = self.pieces[0].parts.parse_rows(rows)
        if rows.wrong is None and part.fault is None and part.disorder is None:
            files = dict(self._files(part))
        else:
            files = {piece.number: piece.alone() for piece in self.pieces}
        wrong: dict[str, Any] = {}
        for kind in ("fault", "disorder"):
            found = {number: getattr(each, kind) for number, each in files.items()}
            wrong[kind] = next((replace(each, file=number) for number, each in found.items() if each), None)
        checksums = "".join(each.raw_xxh3_128 for each in files.values())
        return replace(
            part,
            bad=sum((each.bad for each in files.values()), Counter()),
            **wrong,
            num_raw_bytes=sum(each.num_raw_bytes for each in files.values()),
            num_other_lines=sum(each.num_other_lines for each in files.values()),
            raw_xxh3_128=xxhash.xxh3_128_hexdigest(bytes.fromhex(checksums)) if checksums else "",
            files=files,
        )

    def _files(self, part: Part) -> Iterator[tuple[int, Part]]:
        """Yield what each file has of a part without bad rows."""
        first = 0
        for piece in self.pieces:
            of_file = piece.part
            if SAMPLE_TIME in part.columns:
                times = part.columns[SAMPLE_TIME].slice(first, of_file.num_samples)
                of_file = replace(of_file, columns={SAMPLE_TIME: times})
            yield piece.number, of_file
            first += of_file.num_samples

    def changed(self, facts: ColumnsFacts) -> int | None:
        """Return the number of the first file whose lines are not those of these facts."""
        known = {each.file: each.raw_xxh3_128 for each in facts.by_file}
        found = {piece.number: piece.part.raw_xxh3_128 for piece in self.pieces}
        changed = (number for number in found if found[number] != known.get(number))
        return next(changed, None if len(found) == len(known) else max(found))


def _joined(found: Sequence[Rows]) -> Rows:
    """Return the rows of several files as those of one."""
    if len(found) == 1:
        return found[0]
    cells = {name: pa.concat_arrays([each.cells[name] for each in found]) for name in found[0].cells}
    is_bad = np.concatenate([each.is_bad for each in found])
    return Rows(cells, is_bad, wrong=next((each.wrong for each in found if each.wrong), None))


@dataclass(frozen=True, slots=True)
class JoinedFiles:
    """The files of a group, which one worker reads."""

    group: range
    parts: Mapping[int, RawParts]
    """The parts of each, by its number."""
    block_bytes: int

    def unread(self, finished: Mapping[str, FileEntry]) -> Iterator[UnreadPart]:
        """Yield the parts: as many files in each as have columns of the same types and fit."""
        waiting: list[_Piece] = []
        num_bytes = 0
        for number, parts in self.parts.items():
            try:
                pieces = parts.iterate({})
                first, second = next(pieces, None), next(pieces, None)
                read = first.rows() if first is not None and second is None else None
            except HotsetError:
                yield from self._as_part(waiting)  # whose faults come first
                raise
            if first is not None and second is not None:  # more than one part when it is decoded
                yield from self._as_part(waiting)
                waiting, num_bytes = [], 0
                yield from (self._renamed(number, each) for each in chain((first, second), pieces))
            if read is None:
                continue
            piece = _Piece(parts, number, *read, _types(read[0]))
            num_bytes += piece.rows.num_bytes
            fits = num_bytes * BLOCK_OVER_GROUP <= self.block_bytes
            if waiting and not (fits and piece.is_like(waiting[-1])):
                yield from self._as_part(waiting)
                waiting, num_bytes = [], piece.rows.num_bytes
            waiting.append(piece)
        yield from self._as_part(waiting)

    def _as_part(self, pieces: Sequence[_Piece]) -> Iterator[JoinedPart]:
        if pieces:
            yield JoinedPart(f"file{pieces[0].number:04}-{mark_of(self.group)}.arrow", tuple(pieces))

    def _renamed(self, number: int, part: Any) -> UnreadPart:
        name = f"file{number:04}-{mark_of(self.group)}-{part.name.partition('-')[2]}"
        renamed: UnreadPart = replace(part, name=name)
        return renamed


_KNOWN_BYTES = 1 << 16
"""Bytes of a CSV log that must match a built-in schema for a message to name it."""
_KNOWN_LINES = 100


@dataclass(frozen=True, slots=True)
class Recognised:
    """A known log, as a file has it."""

    name: str
    schema: Schema
    """Its schema, with the separator and the names of columns that the file has."""
    has_label: bool

    @property
    def is_exact(self) -> bool:
        """Whether the file has the form in which the log was published."""
        return self.schema == schema_named(self.name)


def recognise(file: RawFile) -> Recognised | None:
    """Return the known log that a file of text is of; Criteo's own lines are `tells_label`'s.

    Names of columns alone say little: splits of one log share them and differ in their values, and any log
    may have users and items. So a log is known where the header has just its columns, and where its schema
    reads the first 64 KiB without a fault; or by the form of its lines.

    Raises:
        InputError: the file cannot be read.
    """
    if file.read_format() != "text":
        return None
    from .csv_parts import SEPARATORS, read_header

    block = next((block.read() for block in iterate_blocks(file, _KNOWN_BYTES)), None)
    if block is None or not block.num_bytes:
        return None
    lines = [line.decode("utf-8", "replace") for line in block.lines.tobytes().splitlines()[:_KNOWN_LINES]]
    plain = Schema((), (), format="csv")
    headers: dict[str, Sequence[str]] = {}
    for mark in SEPARATORS:
        with suppress(InputError):  # a quote is wrong
            headers[mark] = read_header(file, replace(plain, separator=mark)).fields
    for name in KNOWN_LOGS:
        known, schema = KnownLog.read(name), schema_named(name)
        if known.line and all(map(known.is_line, lines)):
            return Recognised(name, schema, True)
        for (separator, fields), has_label in product(headers.items(), (True, False)):
            names = known.names_of(fields, schema.columns(has_label=has_label))
            if names is None:
                continue
            found = _as_in_file(schema, names, separator)
            if _reads(file, found, has_label=has_label):
                return Recognised(name, found, has_label)
    return None


def _as_in_file(schema: Schema, names: Mapping[str, str], separator: str) -> Schema:
    """Return a schema with the names of columns that a file has."""
    columns = {feature: names[column] for feature, column in schema.column_of.items()}
    renamed = tuple((feature, column) for feature, column in columns.items() if feature != column)
    label = names.get(schema.label or "", schema.label)
    return replace(schema, separator=separator, label=label, renamed=renamed)


def _reads(file: RawFile, schema: Schema, *, has_label: bool) -> bool:
    """Return whether a schema reads every line at the beginning of a file."""
    from .csv_parts import CsvParts

    parts = CsvParts(file, 0, schema, block_bytes=_KNOWN_BYTES, has_label=has_label)
    part = next(parts.iterate({})).read()
    if part is None or part.fault is not None or not part.num_samples:
        return False
    # One element in each row is how any log of users and items looks: only longer ones are histories.
    lists = [part.columns[name] for name, _ in schema.lists]
    return all(len(one.values) > len(one) for one in lists)


def kept_columns(
    files: Iterable[RawFile], schema: Schema, names: Sequence[str], *, block_bytes: int, has_label: bool
) -> Iterator[Any]:
    """Return record batches of some columns of a log; names are checked at once.

    Args:
        files: the files of the log.
        names: as the log, its folders or, for text without names, the schema have them.
        block_bytes: of text that is read at a time.
        has_label: whether the lines of text without names have labels.

    Raises:
        InputError: the log has no such column, or its text is not UTF-8.
        ConfigError: a name occurs twice.
    """
    from .tabular import constants_of, find_fields

    refuse_twice(names, "--keep")
    kept = []
    lacking: list[tuple[RawFile, Sequence[str]]] = []
    for file in files:
        form, as_it_is = as_read(file, schema)
        if form not in (*COLUMNAR, "json") and as_it_is.format != "csv" and not as_it_is.fields:
            as_it_is = replace(as_it_is, fields=schema.columns(has_label=True))
        fields, batches = _open(file, form, as_it_is, block_bytes=block_bytes, has_label=has_label)
        constants = constants_of(file, names, fields)
        own = [name for name in names if name not in constants] or fields[:1]
        if form == "json":
            lacking.append((file, [name for name in own if name not in fields]))
        elif fields:  # a text may have no row, nor a header
            find_fields(own, fields, file)
        kept.append(_named(batches(own), names, constants))
    if lacking:
        from .json_parts import refuse_lacking

        refuse_lacking(lacking)
    return chain.from_iterable(kept)


def _open(
    file: RawFile, form: str, schema: Schema, **ways: Any
) -> tuple[Sequence[str], Callable[[Sequence[str]], Iterator[Any]]]:
    """Return the columns of a file, and what reads some of them."""
    if form == "json":
        from .json_parts import batches_of, first_rows

        return first_rows(file)[0].schema.names, partial(batches_of, file)
    if form in COLUMNAR:
        from .columnar_parts import open_rows

        with open_rows(file, form) as rows:
            return rows.fields.names, partial(_batches, file, form)
    from .csv_parts import CsvParts

    parts = partial(CsvParts, file, 0, schema, **ways)
    return parts(names=()).fields, lambda names: _texts(parts(names=names), names)


def _named(batches: Iterable[Any], names: Sequence[str], constants: Mapping[str, str]) -> Iterator[Any]:
    """Yield batches with all columns; those of the folders have one text in all rows, or none."""
    for batch in batches:
        texts = {name: pa.scalar(text or None, pa.string()) for name, text in constants.items()}
        arrays = [
            pa.repeat(texts[name], batch.num_rows) if name in texts else batch.column(name) for name in names
        ]
        yield pa.record_batch(arrays, names=list(names))


def _batches(file: RawFile, form: str, names: Sequence[str]) -> Iterator[Any]:
    from .columnar_parts import open_rows

    with open_rows(file, form) as rows:
        yield from rows.batches(names)


def _texts(parts: CsvParts, names: Sequence[str]) -> Iterator[Any]:
    for unread, head in parts.blocks():
        rows = parts.rows_of(unread.read(), head)
        arrays = []
        for name in names:
            try:
                arrays.append(rows.cells[name].cast(pa.binary()).cast(pa.string()))
            except pa.ArrowInvalid as error:
                raise InputError(
                    f"{parts.file.path}: column {name!r} is not UTF-8, so --keep cannot copy it"
                ) from error
        yield pa.record_batch(arrays, names=list(names))


def beside(probabilities: Iterable[Any], kept: Iterator[Any], logs: Sequence[RawFile]) -> Iterator[Any]:
    """Yield batches of probabilities with the columns of the same rows.

    Raises:
        InputError: the log is another one now.
    """
    rest: Any = None
    first: Any = None
    for found in probabilities:
        parts = []
        missing = len(found)
        while missing:
            rest = rest if rest is not None and len(rest) else next(kept, None)
            if rest is None:
                raise logs[0].changed()
            first = rest.schema if first is None else first
            rest = _as_first(rest, first)
            parts.append(rest.slice(0, missing))
            rest = rest.slice(len(parts[-1]))
            missing -= len(parts[-1])
        if parts:
            columns = pa.Table.from_batches(parts).combine_chunks()
            yield found.from_arrays(
                [*found.columns, *(column.chunk(0) for column in columns.columns)],
                schema=pa.schema([*found.schema, *columns.schema]),
            )
    for log in logs:
        if not log.is_unchanged():
            raise log.changed()


def _as_first(batch: Any, schema: Any) -> Any:
    """Return a batch with the types of the log's first one: files of a log may differ in them."""
    try:
        return batch if batch.schema.equals(schema) else batch.cast(schema)
    except pa.ArrowException as error:
        raise InputError(
            f"--keep: a column has other types in later files: {str(error).splitlines()[0]}",
            hint="leave the column out of --keep, or predict the files one by one",
        ) from error


def refuse_name(names: Sequence[str], taken: Sequence[str]) -> None:
    """Raise ConfigError where a column that is kept has the name of one of the scores."""
    for name in names:
        if name in taken:
            raise ConfigError(
                f"--keep names {name!r}, the column of the scores", hint="leave the column out of --keep"
            )
