"""A log of separated text as parts of whole records.

A record is a line, or several where a quoted field holds line breaks. Empty lines and comments are none. Our
own kernel finds them, for `pyarrow.csv` gives up what a log needs: it takes a carriage return inside a line
for its end, joins what follows a closing quote to the field, and copies all values twice.

A block of lines becomes one part: the records that begin in it, the last one to its end, which may be some
lines into the next block. So a record is read once, wherever blocks end. Where a text is read in order,
`RecordCuts` finds which lines go on with a record that began above them, so that any block of lines can be
split alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel
from ..errors import FormatError, InputError, format_byte_size
from ..folders.manifest import FileEntry
from ..runtime.tasks import thread_buffer
from ..schema.schema import Schema
from .criteo_kernel import count_newlines
from .log_files import block_name
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
from .tabular import constants_of, find_fields, repeated
from .text_fields import arrays_of
from .text_parts import TextPart, TextParts

MAX_RECORD_BYTES: Final = 1 << 20
"""A longer record is refused: its quote is not closed, or it does not come from a click log."""
_NONE: Final = -1
_TAB: Final = 9
_NEWLINE: Final = 10
_RETURN: Final = 13
_BLANK: Final = 32

WHOLE: Final = 0
FULL: Final = 1
UNCLOSED: Final = 2
TRAILING: Final = 3
"""How splitting ends: all records are found, or as many as wanted; a quote is not closed in MAX_RECORD_BYTES,
or closes before its field ends."""


class Dialect(NamedTuple):
    """Marks of a text, as kernels take them."""

    separator: NDArray[np.uint8]
    """Bytes between two fields."""
    quote: int
    """Byte around a field; -1 where there is none."""
    escape: int
    """Byte before a mark that stands for itself; -1 where there is none."""
    comment: NDArray[np.uint8]
    """Beginning of a line that is no record; empty where there is none."""
    is_trimmed: bool
    """Blanks and tabs around a field are left out."""


def dialect_of(schema: Schema) -> Dialect:
    """Return the marks of a log of text."""
    if schema.format != "csv":
        return Dialect(_bytes_of("\t"), _NONE, _NONE, _bytes_of(""), False)
    return Dialect(
        _bytes_of(schema.separator),
        ord(schema.quote) if schema.quote else _NONE,
        ord(schema.escape) if schema.escape else _NONE,
        _bytes_of(schema.comment or ""),
        schema.trim,
    )


def _bytes_of(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(text.encode(), np.uint8).copy()


@kernel
def _is_at(text: NDArray[np.uint8], position: int, mark: NDArray[np.uint8]) -> bool:
    """Return whether the text has ``mark`` there; a newline, which is in no mark, ends every line."""
    for i in range(mark.shape[0]):
        if text[position + i] != mark[i]:
            return False
    return True


@kernel
def _after_blanks(text: NDArray[np.uint8], position: int, dialect: Dialect) -> int:
    while (text[position] == _BLANK or text[position] == _TAB) and not _is_at(
        text, position, dialect.separator
    ):
        position += 1
    return position


@kernel
def _after_line(text: NDArray[np.uint8], position: int, comment: NDArray[np.uint8]) -> int:
    """Return the position after a line if it is empty or a comment, else -1."""
    end = position
    while text[end] == _RETURN:
        end += 1
    if text[end] != _NEWLINE:
        if not comment.shape[0] or not _is_at(text, position, comment):
            return -1
        while text[end] != _NEWLINE:
            end += 1
    return end + 1


@kernel
def _escaped(text: NDArray[np.uint8], position: int, dialect: Dialect, in_quotes: bool) -> int:
    """Return the bytes of the mark after an escape; 0 where none follows: it is a character of the field."""
    after = text[position + 1]
    if after == _NEWLINE or after == _RETURN:
        return 1 if in_quotes else 0
    if after == dialect.escape or after == dialect.quote:
        return 1
    return dialect.separator.shape[0] if _is_at(text, position + 1, dialect.separator) else 0


@kernel
def split_records(
    text: NDArray[np.uint8],
    first_byte: int,
    num_bytes: int,
    dialect: Dialect,
    columns: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    num_fields: NDArray[np.int64],
    lines: NDArray[np.int64],
) -> tuple[int, int, int, int, int]:
    """Find the fields of records; marks that stand for themselves are undone in place in wanted fields.

    Args:
        text: holds lines in ``[first_byte, num_bytes)``, the last byte being a newline.
        columns: per field of a record the row of ``starts`` it goes to, -1 where it is not wanted.
        starts: (num_columns, most records) out; 0 where a record is too short.
        stops: as ``starts``; one past a field's last byte.
        num_fields: (most records,) out; fields of the record.
        lines: (most records,) out; lines above the record, from ``first_byte`` on.

    Returns:
        Records found; WHOLE, FULL, UNCLOSED or TRAILING; where it ends: after the last record, at one that
        is not closed, or at what follows a closing quote; lines above that, or above the quote that is
        wrong; the field of that quote.
    """
    separator = dialect.separator[0]
    is_long = dialect.separator.shape[0] > 1
    quote = dialect.quote
    escape = dialect.escape
    comment = int(dialect.comment[0]) if dialect.comment.shape[0] else _NEWLINE
    is_trimmed = dialect.is_trimmed
    position = first_byte
    line = 0
    row = 0
    while position < num_bytes:
        begin = position
        if text[begin] == _NEWLINE or text[begin] == _RETURN or text[begin] == comment:
            position = _after_line(text, begin, dialect.comment)
            if position >= 0:
                line += 1
                continue
            position = begin
        if row == num_fields.shape[0]:
            return row, FULL, begin, line, 0
        lines[row] = line
        field = 0
        while True:
            column = columns[field] if field < columns.shape[0] else -1
            if is_trimmed:
                position = _after_blanks(text, position, dialect)
            # Bytes of a field that are left out so far: the later ones move left over them.
            num_undone = 0
            first = position
            if text[position] == quote:
                position += 1
                first = position
                opened = line
                while True:
                    if position >= num_bytes or position - begin > MAX_RECORD_BYTES:
                        return row, UNCLOSED, begin, opened, field
                    byte = text[position]
                    num_taken = 1
                    if byte == quote and text[position + 1] != quote:
                        break
                    if byte == quote or (byte == escape and _escaped(text, position, dialect, True)):
                        num_taken = 1 if byte == quote else _escaped(text, position, dialect, True)
                        position += 1
                        num_undone += 1
                    for _ in range(num_taken):
                        line += text[position] == _NEWLINE
                        if num_undone and column >= 0:
                            text[position - num_undone] = text[position]
                        position += 1
                last = position - num_undone
                position += 1
                # Only a separator or the end of the line may follow.
                if is_trimmed:
                    position = _after_blanks(text, position, dialect)
                end = position
                while text[end] == _RETURN:
                    end += 1
                if text[end] == _NEWLINE:
                    position = end
                elif text[position] != separator or (
                    is_long and not _is_at(text, position, dialect.separator)
                ):
                    return row, TRAILING, position, opened, field
            else:
                while True:
                    byte = text[position]
                    while num_undone == 0 and byte != separator and byte != _NEWLINE and byte != escape:
                        position += 1
                        byte = text[position]
                    if byte == _NEWLINE:
                        break
                    if byte == separator and (not is_long or _is_at(text, position, dialect.separator)):
                        break
                    num_taken = 1
                    if byte == escape and _escaped(text, position, dialect, False):
                        num_taken = _escaped(text, position, dialect, False)
                        position += 1
                        num_undone += 1
                    for _ in range(num_taken):
                        if num_undone and column >= 0:
                            text[position - num_undone] = text[position]
                        position += 1
                last = position - num_undone
                if byte == _NEWLINE:
                    while last > first and text[last - 1] == _RETURN:
                        last -= 1
                while is_trimmed and last > first and (text[last - 1] == _BLANK or text[last - 1] == _TAB):
                    last -= 1
            if column >= 0:
                starts[column, row] = first
                stops[column, row] = last
            field += 1
            if text[position] == _NEWLINE:
                break
            position += dialect.separator.shape[0]
        for lacking in range(field, columns.shape[0]):
            if columns[lacking] >= 0:
                starts[columns[lacking], row] = 0
                stops[columns[lacking], row] = 0
        num_fields[row] = field
        position += 1
        line += 1
        row += 1
    return row, WHOLE, position, line, 0


@dataclass(frozen=True, slots=True)
class Records:
    """The records of some lines, up to the first whose quotes are wrong."""

    starts: NDArray[np.int64]
    """(num_columns, num_records); first byte of each field."""
    stops: NDArray[np.int64]
    """(num_columns, num_records); the one past its last byte."""
    num_fields: NDArray[np.int64]
    """(num_records,)."""
    lines: NDArray[np.int64]
    """(num_records,); lines above each."""
    status: int
    """WHOLE, FULL, UNCLOSED or TRAILING."""
    end: int
    """Where splitting ends, as `split_records` returns it."""
    line: int
    """Lines above that, or above the quote that is wrong."""
    field: int
    """Number of the field of that quote, from 0."""


def find_records(
    text: NDArray[np.uint8],
    first: int,
    num_bytes: int,
    dialect: Dialect,
    columns: NDArray[np.int64],
    most: int | None = None,
) -> Records:
    """Split ``text[first:num_bytes]``, at most ``most`` records of it; arguments as in `split_records`.

    Spans are valid until the thread splits other text.
    """
    most = int(count_newlines(text[first:num_bytes])) if most is None else most
    shape = (int(columns.max(initial=-1)) + 1, most)
    starts, stops = (thread_buffer(name, shape, np.int64) for name in ("starts", "stops"))
    num_fields = np.empty(most, np.int64)
    lines = np.empty(most, np.int64)
    found, *end = split_records(text, first, num_bytes, dialect, columns, starts, stops, num_fields, lines)
    return Records(starts[:, :found], stops[:, :found], num_fields[:found], lines[:found], *end)


NO_COLUMNS = np.empty(0, np.int64)
"""Where no field is wanted, the text is left as it is."""


class RecordCuts:
    """Which lines go on with a record above them, in a text that is read in order."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._open = np.empty(0, np.uint8)
        """The record that is not finished, so far."""
        self.is_lost = False
        """A quote is wrong, so that what follows cannot be told to be in quotes or not."""

    @property
    def is_open(self) -> bool:
        """Whether the lines so far end inside quotes."""
        return self._open.shape[0] > 0

    def pass_by(self, lines: NDArray[np.uint8]) -> int:
        """Return how many bytes of the next lines belong to the record that is open, perhaps all."""
        num_open: int = self._open.shape[0]
        if not lines.shape[0] or (not num_open and bytes([self._dialect.quote]) not in lines.tobytes()):
            return 0
        text = np.concatenate([self._open, lines])
        num_bytes: int = num_open + lines.shape[0]
        begin: int = num_open
        if num_open:
            record = find_records(text, 0, num_bytes, self._dialect, NO_COLUMNS, most=1)
            if record.status in (UNCLOSED, TRAILING):
                self._open = text[:num_bytes]
                self.is_lost = record.status == TRAILING or num_bytes > MAX_RECORD_BYTES
                return num_bytes - num_open
            begin = record.end
        rest = find_records(text, begin, num_bytes, self._dialect, NO_COLUMNS)
        self._open = text[rest.end : num_bytes] if rest.status == UNCLOSED else self._open[:0]
        self.is_lost = rest.status == TRAILING or self._open.shape[0] > MAX_RECORD_BYTES
        return begin - num_open


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
        self._wanted = [name for name in wanted if name not in self._constants]
        self._columns = np.arange(len(self._wanted))  # of a text without a header, which has no rows
        if self.fields:
            self._columns = np.full(len(self.fields), -1, np.int64)
            self._columns[find_fields(self._wanted, self.fields, file)] = np.arange(len(self._wanted))

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
        """Return the records of a block before their values are read."""
        found = self.split(block, context or 0)
        columns = arrays_of(block.text, found.starts, found.stops)
        cells = dict(zip(self._wanted, columns, strict=True))
        cells |= repeated(self._constants, found.num_fields.shape[0])

        def why_bad(row: int) -> str:
            num_found = found.num_fields[row]
            between = "tabs" if self.schema.separator == "\t" else repr(self.schema.separator)
            fields = f"{num_found} field{'s' if num_found != 1 else ''}"
            return f": found {fields}, want {len(self.fields)} between {between}"

        wrong = None
        if found.status != WHOLE:
            wrong = quote_fault(block.text, block.num_bytes, found, self.fields, self.schema)
        # A record with another number of fields is bad whatever its values are.
        is_bad = found.num_fields != len(self.fields)
        return Rows(cells, is_bad, block.num_bytes, found.lines, why_bad, wrong)

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
