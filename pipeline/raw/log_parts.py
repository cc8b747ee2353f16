"""Split a raw file into blocks of lines or batches of rows.

Each part is parsed alone. Text is cut at fixed bytes moved to a line end, Parquet at fixed numbers of rows,
which are whole row groups or within one. So memory holds one part per worker, however large the file or its
row groups are.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import FormatError
from ..folders.manifest import FileEntry
from ..schema.known_logs import KNOWN_LOGS, KnownLog
from ..schema.schema import Schema, zone_named
from ..schema.schema_file import schema_named
from .criteo import count_reasons, describe_fault, parse_block
from .json_parts import first_rows, read_lines, types_of
from .part import Block, Part, PlainBlock, RawParts, iterate_blocks
from .raw_file import RawFile
from .same_log import block_name, checksum_of_block
from .tabular import after_bom, check_types, fields_of_header, find_fields, parse_batch, parse_csv

_MIN_CRITEO_LINE_BYTES = 39
_START_BYTES = 4096
"""Bytes of a file that are read to detect its format."""
_KNOWN_BYTES = 1 << 16
"""Bytes of a CSV log that must match a built-in schema for a message to name it."""
_KNOWN_LINES = 100


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
        return _CriteoParts(file, number, schema, **settings, strict=strict)
    if form == "csv":
        return _CsvParts(file, number, schema, **settings, strict=strict)
    # pyarrow's readers and compute functions take a fifth of the start of a command.
    if form == "json":
        return _JsonParts(file, number, schema, **settings, strict=strict)
    if form == "parquet":
        from .parquet_parts import ParquetParts

        return ParquetParts(file, number, schema, **settings)
    from .arrow_parts import ArrowParts

    return ArrowParts(file, number, schema, **settings, form=form)


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
    if schema.format == "csv":
        return "csv", schema
    if not file.num_bytes:  # a part without rows
        return "csv", replace(schema, format="csv", fields=schema.columns(has_label=True))
    # The names in the first line show what is between them.
    wanted = set(schema.columns(has_label=False)) - file.partitions.keys()
    lists = tuple((name, separator or "|") for name, separator in schema.lists)
    for separator in _SEPARATORS:
        text = replace(schema, format="csv", separator=separator, lists=lists)
        if wanted <= set(header_of(file, text)):
            return "csv", text
    raise FormatError(
        f"{file.path} is neither {schema.format} nor text with the columns of the schema in its first line",
        hint=f'the schema has format = "{schema.format}"; a log of text without names needs one of its own',
    )


_SEPARATORS = (",", "\t", ";", "|")
_NAMES = {"parquet": "Parquet", "arrow": "Arrow", "stream": "Arrow", "orc": "ORC", "json": "JSON Lines"}


def _refuse_other_format(file: RawFile, form: str) -> None:
    """Raise InputError where a file that should hold Criteo's lines is clearly of another format.

    Criteo's format is the default, so this is what a user meets who forgets to name a schema.
    """
    if form in _NAMES:
        raise _needs_schema(file, _NAMES[form])
    for block in iterate_blocks(file, _START_BYTES):
        lines = block.read().lines.tobytes().splitlines()[:3]
        # One such line could be damage in a log of Criteo's.
        if len(lines) > 1 and all(b"," in line and b"\t" not in line for line in lines):
            raise _needs_schema(file, "CSV")
        return


def _needs_schema(file: RawFile, found: str) -> FormatError:
    path = shlex.quote(str(file.path))
    hint = f"`hotset schema {path} > schema.toml` proposes a schema: look at it, then give it to --schema"
    known = recognise(file) if found == "CSV" else None
    if known is not None and known.is_exact:
        hint = f"it has the columns of {known.name}: give --schema {known.name}"
        hint += "" if known.has_label else " --no-label"
    return FormatError(
        f"{file.path} looks like {found}, want the tab-separated lines of Criteo's format", hint=hint
    )


@dataclass
class _CriteoParts:
    """Blocks of Criteo's text."""

    file: RawFile
    number: int
    schema: Schema
    _: KW_ONLY
    block_bytes: int
    has_label: bool
    strict: bool
    unit: str = "line"
    num_header_lines: int = 0
    min_line_bytes: int = _MIN_CRITEO_LINE_BYTES
    is_hashed_whole: bool = False

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[_TextPart]:
        """Yield a part for each block of lines; a finished one, too, is cheap as long as it is not read."""
        blocks = iterate_blocks(self.file, self.block_bytes, in_thread_buffer=True)
        for number, block in enumerate(blocks):
            yield _TextPart(block_name(self.number, number), self, block, is_first=number == 0)

    def parse(self, block: Block, *, is_first: bool) -> Part:
        """Parse the lines of a block."""
        block = without_mark(block) if is_first else block
        # Find the reasons of bad lines only where they are counted.
        parsed = parse_block(block, self.schema, has_label=self.has_label)
        bad: Counter[str] = Counter()
        fault = None
        if parsed.bad_lines.shape[0] and self.strict:
            fault = describe_fault(block, parsed.bad_lines[0], self.schema, has_label=self.has_label)
        elif parsed.bad_lines.shape[0]:
            bad.update(count_reasons(block, parsed.bad_lines, self.schema, has_label=self.has_label))
        return Part(parsed.columns, parsed.num_samples, bad, fault)


def without_mark(block: Block) -> Block:
    """Return a block that begins a file without its byte order mark."""
    num_bytes = after_bom(block)
    return replace(block, text=block.text[num_bytes:], num_bytes=block.num_bytes - num_bytes)


@dataclass(frozen=True, slots=True)
class _TextPart:
    """One block of a text file, and the format that parses it."""

    name: str
    parts: _CriteoParts
    block: PlainBlock | Block
    is_first: bool
    """The block begins its file."""

    def read(self) -> Part | None:
        block = self.block.read()
        if block.num_bytes == 0:
            return None
        block = block.tallied()  # first: parsing may change the text
        assert block.tally is not None
        part = self.parts.parse(block, is_first=self.is_first)
        return replace(part, num_raw_bytes=block.num_bytes, raw_xxh3_128=block.tally.xxh3_128)

    def checksum(self) -> str | None:
        return checksum_of_block(self.block)


@dataclass
class _CsvParts(_CriteoParts):
    """Blocks of CSV lines, the first with a header perhaps."""

    def __post_init__(self) -> None:
        plain = Schema((), (), format="csv")
        for key in ("quote", "escape", "skip", "comment", "trim", "missing", "encoding"):
            if getattr(self.schema, key) != getattr(plain, key):
                raise FormatError(f"{self.file.path}: {key} is not read yet")
        if len(self.schema.separator.encode()) > 1:
            raise FormatError(f"{self.file.path}: separators of several bytes are not read yet")
        self.num_header_lines = 0 if self.schema.fields else 1
        self._positions = self._find_fields()
        self.min_line_bytes = max(1, self._positions.shape[0])

    def _find_fields(self) -> NDArray[np.int64]:
        """Return for each field of a line its position among the columns that are read, or -1."""
        # A log without labels lacks their fields, though the schema lists them, and so are partitions.
        partitions = self.file.partitions
        labels = () if self.has_label else self.schema.label_columns
        fields = [name for name in self.schema.fields if name not in (*labels, *partitions)]
        if not fields:
            fields = header_of(self.file, self.schema)
        wanted = self.schema.columns(has_label=self.has_label)
        self._constants = {
            name: partitions[name] for name in wanted if name in partitions and name not in fields
        }
        wanted = tuple(name for name in wanted if name not in self._constants)
        positions = np.full(len(fields), -1, np.int64)
        if fields:
            positions[find_fields(wanted, fields, self.file)] = np.arange(len(wanted))
        return positions

    def parse(self, block: Block, *, is_first: bool) -> Part:
        """Parse the lines of a block; the file's first block may begin with a header line."""
        return parse_csv(
            block,
            self.schema,
            self._positions,
            has_label=self.has_label,
            is_first=is_first,
            constants=self._constants,
        )


@dataclass
class _JsonParts(_CriteoParts):
    """Blocks of JSON Lines."""

    unit: str = "row"
    min_line_bytes: int = 2

    def __post_init__(self) -> None:
        partitions = self.file.partitions
        wanted = self.schema.columns(has_label=self.has_label)
        found = first_rows(self.file).schema
        self._constants = {
            name: partitions[name] for name in wanted if name in partitions and name not in found.names
        }
        names = [name for name in wanted if name not in self._constants]
        if not found.names:  # an empty file
            found = pa.schema([(name, pa.null()) for name in names])
        find_fields(names, found.names, self.file)
        self._fields = types_of(found, self.schema, names, has_label=self.has_label)
        check_types(self.file, self.schema, self._fields, has_label=self.has_label)

    def parse(self, block: Block, *, is_first: bool) -> Part:
        """Parse the lines of a block."""
        batch, is_damaged = read_lines(block.lines, self._fields)
        settings: dict[str, Any] = {"has_label": self.has_label, "constants": self._constants}
        part = parse_batch(batch, self.schema, is_damaged=is_damaged, **settings)
        if part.fault is not None and is_damaged[part.fault.line_in_block]:
            return replace(part, fault=replace(part.fault, text=": want one JSON object on the line"))
        return part


def header_of(file: RawFile, schema: Schema) -> list[str]:
    """Return the fields of the first line; none in an empty file."""
    for block in iterate_blocks(file, 1):
        return fields_of_header(block.read(), schema.separator)
    return []


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
    block = next((block.read() for block in iterate_blocks(file, _KNOWN_BYTES)), None)
    if block is None or not block.num_bytes:
        return None
    lines = [line.decode("utf-8", "replace") for line in block.lines.tobytes().splitlines()[:_KNOWN_LINES]]
    plain = Schema((), (), format="csv")
    headers = {mark: header_of(file, replace(plain, separator=mark)) for mark in _SEPARATORS}
    for name in KNOWN_LOGS:
        known, schema = KnownLog.read(name), schema_named(name)
        if known.line and all(map(known.is_line, lines)):
            return Recognised(name, schema, True)
        for (separator, fields), has_label in product(headers.items(), (True, False)):
            names = known.names_of(fields, schema.columns(has_label=has_label))
            if names is None:
                continue
            found = _as_in_file(schema, names, separator)
            if _reads(block, found, fields, has_label=has_label):
                return Recognised(name, found, has_label)
    return None


def _as_in_file(schema: Schema, names: Mapping[str, str], separator: str) -> Schema:
    """Return a schema with the names of columns that a file has."""
    columns = {feature: names[column] for feature, column in schema.column_of.items()}
    renamed = tuple((feature, column) for feature, column in columns.items() if feature != column)
    label = names.get(schema.label or "", schema.label)
    return replace(schema, separator=separator, label=label, renamed=renamed)


def _reads(block: Block, schema: Schema, fields: Sequence[str], *, has_label: bool) -> bool:
    """Return whether a schema reads every line of a block that begins with a header of ``fields``."""
    wanted = schema.columns(has_label=has_label)
    positions = np.array([wanted.index(name) if name in wanted else -1 for name in fields], np.int64)
    # Splitting a line changes it where a field holds a doubled quote.
    block = replace(block, text=block.text.copy())
    part = parse_csv(block, schema, positions, has_label=has_label, is_first=True)
    # One element in each row is how any log of users and items looks: only longer ones are histories.
    lists = [part.columns[name] for name, _ in schema.lists]
    return part.fault is None and part.num_samples > 0 and all(len(one.values) > len(one) for one in lists)
