"""A log of separated text as parts of whole records.

A block of lines becomes one part: the records that begin in it, the last one to its end, which may be some
lines into the next block. So a record is read once, wherever blocks end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, InputError, format_byte_size
from ..folders.manifest import FileEntry
from ..schema.schema import Schema
from .criteo_kernel import count_newlines
from .part import (
    QUOTE,
    UTF_8,
    UTF_16_MARKS,
    Block,
    Fault,
    Part,
    PlainBlock,
    Rows,
    bytes_of_mark,
    iterate_blocks,
    iterate_pieces,
    shown_bytes,
)
from .raw_file import RawFile
from .records import (
    MAX_RECORD_BYTES,
    NO_COLUMNS,
    UNCLOSED,
    WHOLE,
    RecordCuts,
    Records,
    dialect_of,
    find_records,
)
from .same_log import block_name
from .tabular import constants_of, find_fields, rows_of_records
from .text_parts import TextPart, TextParts

SEPARATORS = (",", "\t", ";", "|")
"""Usual separators of fields."""
_HEADER_BYTES = 1 << 16
"""Bytes that are read first to find the header."""


def quote_fault(
    text: NDArray[np.uint8], num_bytes: int, records: Records, fields: Sequence[str], schema: Schema
) -> Fault:
    """Describe the quote at which splitting ended."""
    where = f", column {fields[records.field]!r}" if records.field < len(fields) else ""
    if records.status == UNCLOSED:
        is_long = num_bytes - records.end > MAX_RECORD_BYTES
        until = f"within {format_byte_size(MAX_RECORD_BYTES)}" if is_long else "before the log ends"
        text_of_fault = f"{where}: a quote opens here and does not close {until}"
    else:
        rest = bytes(text[records.end : records.end + MAX_RECORD_BYTES])
        ends = (rest.find(mark) for mark in (b"\n", schema.separator.encode()))
        rest = rest[: min((end for end in ends if end >= 0), default=None)]
        separator = "a tab" if schema.separator == "\t" else repr(schema.separator)
        text_of_fault = (
            f"{where}: found {shown_bytes(rest)} behind its closing quote, want {separator} or a line end"
        )
    escape = "" if schema.escape else ' where quotes inside it are written \\", or'
    remedy = f"set escape = '\\'{escape} " if not schema.escape else "set "
    return Fault(
        QUOTE, records.line, text_of_fault, remedy=f'{remedy}quote = "none" where quotes mean nothing'
    )


@dataclass(frozen=True, slots=True)
class Header:
    """What is above the first row of a text."""

    fields: tuple[str, ...]
    """Names of the columns; empty in an empty file."""
    num_bytes: int = 0
    num_lines: int = 0


def refuse_returns(file: RawFile, block: Block) -> None:
    """Raise InputError where a text ends its lines with carriage returns alone, so that it is one line."""
    lines = block.lines.tobytes()
    is_one_line = block.num_bytes > file.num_bytes and lines.find(b"\n") == len(lines) - 1  # which is added
    if is_one_line and lines.count(b"\r") > 1:
        raise InputError(
            f"{file.path} ends its lines with a carriage return alone",
            hint=f"`tr '\\r' '\\n' < {file.path.name} > log.csv` writes lines that are read",
        )


def read_header(file: RawFile, schema: Schema) -> Header:
    """Read the lines above the first row: those to skip, and the header where the schema has no names.

    Raises:
        InputError: the file cannot be read, or a quote in the header is not closed.
    """
    return _read_header(file, file.seen_ns, schema)


@lru_cache(maxsize=8)  # a file is looked at to estimate memory, to tell its format, and to read it
def _read_header(file: RawFile, seen_ns: int, schema: Schema) -> Header:
    dialect = dialect_of(schema)
    header = Header(schema.fields)
    wrong: InputError | None = None
    # The second look is at as much as a header with the longest record may have.
    for num_bytes in (_HEADER_BYTES, 4 * MAX_RECORD_BYTES):
        blocks = iterate_blocks(file, num_bytes, encoding=schema.encoding)
        block = next((block.read() for block in blocks), None)
        if block is None:
            break
        if schema.format == "csv":
            refuse_returns(file, block)
        text, first, end = block.text, bytes_of_mark(block), block.num_bytes
        for _ in range(schema.skip):
            first += text[first:end].tobytes().find(b"\n") + 1
        above = int(count_newlines(text[:first]))
        header = Header(schema.fields, first, above)
        if schema.format != "csv" or schema.fields:
            if above < schema.skip:
                continue
            break
        columns = np.arange(int(np.count_nonzero(text[first:end] == dialect.separator[0])) + 1)
        found = find_records(text, first, end, dialect, columns, most=1)
        if found.num_fields.shape[0]:
            ends = np.stack([found.starts, found.stops])[:, : found.num_fields[0], 0]
            # Names that are no UTF-8 stay different from each other.
            names = (bytes(text[start:stop]).decode("utf-8", "backslashreplace") for start, stop in ends.T)
            return Header(tuple(names), found.end, above + found.line)
        header = Header((), found.end, above + found.line)
        if found.status != WHOLE:
            quote = quote_fault(text, end, found, (), schema)
            wrong = InputError(f"{file.path}, line {header.num_lines + 1}{quote.text}", hint=quote.remedy)
    if wrong is not None:
        raise wrong
    return header


class CsvParts(TextParts):
    """Blocks of the records of a text.

    Args:
        file: the text.
        number: its position in the log.
        schema: its marks, and the columns that are read.
        block_bytes: of lines that a block has.
        has_label: lines have a label, if the schema names one.
        names: other columns to read.

    Raises:
        InputError: the file cannot be read, lacks a column, or a quote in its header is not closed.
    """

    def __init__(
        self,
        file: RawFile,
        number: int,
        schema: Schema,
        *,
        block_bytes: int,
        has_label: bool,
        names: Sequence[str] | None = None,
    ) -> None:
        if file.read_start(2) in UTF_16_MARKS and schema.encoding == UTF_8:
            raise FormatError(f"{file.path} is text in UTF-16", hint='its schema needs encoding = "utf-16"')
        super().__init__(file, number, schema, block_bytes=block_bytes, has_label=has_label)
        self._dialect = dialect_of(schema)
        self._header = read_header(file, schema)
        self.num_header_lines = self._header.num_lines
        # The bytes of a text that is decoded say little of those of its file, nor do blocks of the one.
        self.is_hashed_whole = schema.encoding != UTF_8
        # A log without labels lacks their fields, though the schema lists them, and so are partitions.
        partitions = file.partitions
        absent = (*(() if has_label else schema.label_columns), *partitions) if schema.fields else ()
        self.fields = tuple(name for name in self._header.fields if name not in absent)
        self.min_line_bytes = 0 if self.is_hashed_whole else max(1, len(self.fields))
        wanted = schema.columns(has_label=has_label) if names is None else names
        self._constants = constants_of(file, wanted, self.fields) if names is None else {}
        wanted = [name for name in wanted if name not in self._constants]
        self._columns = np.arange(len(wanted))  # of a text without a header, which has no rows
        if self.fields:
            self._columns = np.full(len(self.fields), -1, np.int64)
            self._columns[find_fields(wanted, self.fields, file)] = np.arange(len(wanted))

    def blocks(self) -> Iterator[tuple[PlainBlock | Block, int]]:
        """Yield each block, with the lines after it that its last record goes on in.

        Next to it are the bytes at its beginning, after the header, that go on with an earlier record. Where
        a quote is wrong the blocks end with that of its record: what follows could be in quotes or not.
        """
        blocks = self._unread_blocks()
        if self._dialect.quote < 0:
            yield from ((block, 0) for block in blocks)
            return
        cuts = RecordCuts(self._dialect)
        waiting: deque[tuple[PlainBlock | Block, int]] = deque()  # the first has a record that is open
        more: list[NDArray[np.uint8]] = []  # lines of this record in blocks after it
        for block, pieces in self._with_pieces(blocks):
            head = 0
            goes_on = cuts.is_open
            for piece in pieces:
                lines = piece.lines[self.header_bytes(piece) :]
                num_bytes = cuts.pass_by(lines)
                if goes_on:
                    head += num_bytes
                    more.append(lines[:num_bytes])
                    goes_on = cuts.is_open and num_bytes == lines.shape[0]
                if cuts.is_lost:
                    break
            if not goes_on:
                yield from _completed(waiting, more)
            waiting.append((block, head))
            if cuts.is_lost:
                break
            if not cuts.is_open:
                yield waiting.popleft()
        yield from _completed(waiting, more)

    def _with_pieces(
        self, blocks: Iterable[PlainBlock | Block]
    ) -> Iterator[tuple[PlainBlock | Block, Iterable[Block]]]:
        """Yield each block with its lines in pieces: a plain file's are read apart, as its blocks are not."""
        pieces = None
        for block in blocks:
            if isinstance(block, Block):
                yield block, (block,)
                continue
            pieces = iterate_pieces(self.file, self.block_bytes) if pieces is None else pieces
            yield block, next(pieces)

    def _unread_blocks(self) -> Iterator[PlainBlock | Block]:
        return iterate_blocks(
            self.file, self.block_bytes, in_thread_buffer=True, encoding=self.schema.encoding
        )

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[TextPart]:
        """Yield a part for each block of lines; one that is finished is read where it may end in quotes."""
        for number, (block, head) in enumerate(self.blocks()):
            yield TextPart(block_name(self.number, number), self, block, head)

    def sample(self, step: int) -> Iterator[TextPart]:
        """Yield every ``step``-th part; a plain file is not read between them."""
        if step == 1:
            yield from self.iterate({})
            return
        for number, block in enumerate(self._unread_blocks()):
            if number % step == 0:
                yield TextPart(block_name(self.number, number), self, block, None)

    def share_of(self, columns: Container[str]) -> float:
        """Return the share of the bytes of the first block that some columns have."""
        block, head = next(((unread.read(), head) for unread, head in self.blocks()), (None, 0))
        if block is None or not block.num_bytes:
            return 0.0
        is_one = np.array([name in columns for name in self.fields], np.bool_)
        found = self.split(block, head, np.where(is_one, np.cumsum(is_one) - 1, -1))
        return int((found.stops - found.starts).sum()) / block.num_bytes

    def split(self, block: Block, head: int, columns: NDArray[np.int64] | None = None) -> Records:
        """Split the records of a block, whose text is changed; those columns that are read, or others."""
        begin = self.header_bytes(block)
        columns = self._columns if columns is None else columns
        found = find_records(block.text, begin + head, block.num_bytes, self._dialect, columns)
        above = int(count_newlines(block.text[begin : begin + head]))
        return found if not above else replace(found, lines=found.lines + above, line=found.line + above)

    def parse(self, block: Block, context: int | None) -> Part:
        """Parse the records of a block; without its ``head``, it stands alone."""
        block, head = self._whole_records(block) if context is None else (block, context)
        return self.parse_rows(self.rows_of(block, head))

    def rows_of(self, block: Block, context: int | None) -> Rows:
        """Return the records of a block before their values are read, in the memory of the thread."""
        found = self.split(block, context or 0)
        names: dict[str, Any] = {"has_label": self.has_label, "constants": self._constants}
        rows = rows_of_records(block, found, self.schema, self.fields, **names)
        if found.status == WHOLE:
            return rows
        return replace(rows, wrong=quote_fault(block.text, block.num_bytes, found, self.fields, self.schema))

    def header_bytes(self, block: Block) -> int:
        """Return how many bytes of a block are above the first row."""
        return min(max(self._header.num_bytes - block.start, 0), block.num_bytes)

    def _whole_records(self, block: Block) -> tuple[Block, int]:
        """Return a block that begins and ends anywhere up to its last whole record, and the bytes before its
        first one: where it begins in quotes is guessed, by the number of fields that its records have."""
        begin = self.header_bytes(block)
        quoted = np.concatenate([[np.uint8(self._dialect.quote & 0xFF)], block.text[begin:]])
        num_quoted = block.num_bytes - begin + 1
        found = find_records(block.text, begin, block.num_bytes, self._dialect, NO_COLUMNS)
        inside = find_records(quoted, 0, num_quoted, self._dialect, NO_COLUMNS)
        head, end = 0, found.end
        if self._num_whole(inside) > self._num_whole(found) and not begin:
            head = find_records(quoted, 0, num_quoted, self._dialect, NO_COLUMNS, most=1).end - 1
            found, end = inside, inside.end - 1
        return (block if found.status != UNCLOSED else replace(block, num_bytes=end)), head

    def _num_whole(self, found: Records) -> int:
        return int(np.count_nonzero(found.num_fields == len(self.fields)))


def _completed(
    waiting: deque[tuple[PlainBlock | Block, int]], more: list[NDArray[np.uint8]]
) -> Iterator[tuple[PlainBlock | Block, int]]:
    """Yield the blocks that wait, the first with the rest of its record."""
    while waiting:
        block, head = waiting.popleft()
        yield block.extended(np.concatenate([np.empty(0, np.uint8), *more])), head
        more.clear()
