"""Split a raw file into blocks of lines or batches of rows.

Each part is parsed alone. Text is cut at fixed bytes moved to a line end, Parquet at fixed numbers of rows,
which are whole row groups or within one. So memory holds one part per worker, however large the file or its
row groups are.

A part costs as much in all stages together as the rows of a file of 1 MB. So the rows of a group of small
files, see `log_files`, are joined before their values are read. Where one is bad, each file is read alone,
which tells whose it is.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from ..errors import FormatError, HotsetError, InputError
from ..folders.manifest import FileEntry
from ..folders.totals import ColumnsFacts
from ..schema.schema import SAMPLE_TIME, Schema, zone_named
from .log_files import BLOCK_OVER_GROUP, mark_of
from .part import UTF_16_MARKS, Part, RawParts, Rows, UnreadPart, iterate_blocks
from .raw_file import RawFile
from .text_fields import Spans
from .text_parts import CriteoParts, TextParts

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
            from .recognise import recognise

            known = recognise(file)
            if known is not None:
                raise _needs_schema(file, f"the log {known.name}")
        return


def _needs_schema(file: RawFile, found: str) -> FormatError:
    from .recognise import recognise

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

    def alone(self) -> Part:
        """Return the part, read again."""
        part = next((each.read() for each in self.parts.iterate({})), None)
        return part or Part({}, 0, Counter(), None)  # it has changed, which ends the run


def _types(rows: Rows) -> dict[str, Any]:
    types = {name: None if isinstance(each, Spans) else each.type for name, each in rows.cells.items()}
    # Arrow cannot join lists of numbered values: no two files with them are equal.
    lists = [kind for kind in types.values() if kind is not None and kind.num_fields]
    is_numbered = any(pa.types.is_dictionary(kind.field(0).type) for kind in lists)
    return types | ({"": object()} if is_numbered else {})


def _are_alike(one: _Piece, other: _Piece) -> bool:
    """Return whether the rows of two files can be one array of each column."""
    return one.types == other.types and one.parts.schema == other.parts.schema


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
        return replace(
            part,
            bad=sum((each.bad for each in files.values()), Counter()),
            **wrong,
            num_raw_bytes=sum(each.num_raw_bytes for each in files.values()),
            num_other_lines=sum(each.num_other_lines for each in files.values()),
            raw_xxh3_128=_checksum_of(files.values()),
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


def _checksum_of(files: Iterable[Part]) -> str:
    found = "".join(each.raw_xxh3_128 for each in files)
    return xxhash.xxh3_128_hexdigest(bytes.fromhex(found)) if found else ""


def _joined(found: Sequence[Rows]) -> Rows:
    """Return the rows of several files as those of one."""
    texts: dict[tuple[int, ...], Any] = {}  # columns of text are spans of the same bytes

    def joined(cells: Sequence[Any]) -> Any:
        if not isinstance(cells[0], Spans):
            return pa.concat_arrays(cells)
        key = tuple(id(each.text) for each in cells)
        if key not in texts:
            texts[key] = np.concatenate([each.text for each in cells])
        firsts = np.cumsum([0, *(each.text.shape[0] for each in cells[:-1])])
        pairs = list(zip(cells, firsts, strict=True))
        starts = np.concatenate([each.starts + first for each, first in pairs])
        return Spans(texts[key], starts, np.concatenate([each.stops + first for each, first in pairs]))

    if len(found) == 1:
        return found[0]
    cells = {name: joined([each.cells[name] for each in found]) for name in found[0].cells}
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
            if waiting and not (fits and _are_alike(piece, waiting[-1])):
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
