"""A raw file of any format as parts that can be read and parsed alone: blocks of lines, batches of rows.

Text is cut at fixed bytes moved to a line end, Parquet at fixed numbers of rows within a row group, so
memory holds a part a worker however large the file or its row groups are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import InputError
from ..folders.manifest import FileEntry
from ..schema.schema import Schema
from ..schema.schema_file import schema_of
from .criteo_blocks import count_reasons, describe_fault, parse_block
from .parquet_parts import ParquetParts
from .raw_blocks import Block, RawFile, iterate_blocks
from .tabular import Part, fields_of_header, find_fields, parse_csv

if TYPE_CHECKING:
    from ..stages.ingest import IngestConfig

_MIN_CRITEO_LINE_BYTES = 39


class RawParts(Protocol):
    """The parts of one raw file."""

    unit: str
    """What rows are called in messages."""
    num_header_lines: int
    min_line_bytes: int
    """No line is shorter; 0 where that is not known."""

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[tuple[str, Callable[[], Part | None]]]:
        """Each part's name and how to read it, in order; None is a part without a line."""
        ...

    def finish(self, digest: Any) -> None:
        """Add to the file's digest what its parts did not."""
        ...


def open_parts(file: RawFile, number: int, config: IngestConfig) -> RawParts:
    """The parts of ``file``, the log's file ``number``, of the format its schema says.

    Raises:
        InputError: the file cannot be read, is of another format, or lacks a column of the schema.
    """
    schema = schema_of(config.schema)
    if schema.format == "parquet":
        return ParquetParts(file, number, config, schema)
    if schema.format == "csv":
        return _CsvParts(file, number, config, schema)
    return _CriteoParts(file, number, config, schema)


class _CriteoParts:
    """Blocks of Criteo's text."""

    unit = "line"
    num_header_lines = 0
    min_line_bytes = _MIN_CRITEO_LINE_BYTES

    def __init__(self, file: RawFile, number: int, config: IngestConfig, schema: Schema) -> None:
        self._file, self._number, self._config, self._schema = file, number, config, schema
        self._has_label = config.label and schema.label is not None

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[tuple[str, Callable[[], Part | None]]]:
        """Each block of lines."""
        for number, read in enumerate(iterate_blocks(self._file, self._config.block_bytes, in_scratch=True)):
            name = f"file{self._number:04}-block{number:07}.arrow"
            yield name, partial(self._read, read, number)

    def _read(self, read: Callable[[], Block], number: int) -> Part | None:
        block = read()
        if block.num_bytes == 0:
            return None
        checksum = xxhash.xxh3_128_hexdigest(block.lines.data)  # first: parsing may change the text
        return self._parse(block, number, {"raw_bytes": block.num_bytes, "raw_xxh3_128": checksum})

    def _parse(self, block: Block, number: int, facts: dict[str, Any]) -> Part:
        parsed = parse_block(block, self._schema, has_label=self._has_label)
        bad, fault = Counter[str](), None
        if parsed.bad_lines.shape[0] and self._config.on_bad_line == "error":
            fault = describe_fault(block, parsed.bad_lines[0], self._schema, has_label=self._has_label)
        elif parsed.bad_lines.shape[0]:
            bad.update(count_reasons(block, parsed.bad_lines, self._schema, has_label=self._has_label))
        return Part(parsed.columns, parsed.num_samples, bad, fault, facts)

    def finish(self, digest: Any) -> None:
        """Blocks bring their own checksums."""


class _CsvParts(_CriteoParts):
    """Blocks of CSV lines, the first with a header perhaps."""

    def __init__(self, file: RawFile, number: int, config: IngestConfig, schema: Schema) -> None:
        super().__init__(file, number, config, schema)
        with open(file.path, "rb") as opened:
            if opened.read(4) == b"PAR1":
                raise InputError(f"{file.path} is a Parquet file", hint='its schema needs format = "parquet"')
        self.num_header_lines = 0 if schema.fields else 1
        self._places = self._find_fields()
        self.min_line_bytes = max(1, self._places.shape[0])

    def _find_fields(self) -> NDArray[np.int64]:
        """Per field of a line its place among the columns that are read, or -1."""
        wanted = self._schema.columns(has_label=self._has_label)
        fields = [name for name in self._schema.fields if self._config.label or name != self._schema.label]
        if not fields:
            fields = _header_of(self._file, self._schema)
        places = np.full(len(fields), -1, np.int64)
        if fields:
            places[find_fields(wanted, fields, self._file)] = np.arange(len(wanted))
        return places

    def _parse(self, block: Block, number: int, facts: dict[str, Any]) -> Part:
        is_first = number == 0
        part = parse_csv(block, self._schema, self._places, has_label=self._has_label, is_first=is_first)
        return replace(part, facts=facts)


def _header_of(file: RawFile, schema: Schema) -> list[str]:
    """The fields of the first line; none in an empty file."""
    for read in iterate_blocks(file, 1):
        return fields_of_header(read(), schema.separator)
    return []
