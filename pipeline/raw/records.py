"""Records of separated text: where they begin, and their fields.

A record is a line, or several where a quoted field holds line breaks. Empty lines and comments are none. Our
own kernel finds them, for `pyarrow.csv` gives up what a log needs: it takes a carriage return inside a line
for its end, joins what follows a closing quote to the field, and copies all values twice.

Where a text is read in order, `RecordCuts` finds which lines go on with a record that began above them, so
that any block of lines can be split alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel
from ..runtime.tasks import thread_buffer
from ..schema.schema import Schema
from .criteo_kernel import count_newlines

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
