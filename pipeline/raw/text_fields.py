"""Fields of separated text: where they stand, and the numbers they hold. Exact, every bound checked.

A field is a span ``[start, stop)`` of a byte array, so a column of text from a Parquet file, whose offsets
are spans already, is read by the same kernels as one from a CSV file.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

GOOD: Final = 0
MISSING: Final = 1
BAD: Final = 2
"""States of a field: holds a value, is empty, holds what it should not."""

_NEWLINE: Final = 10
_RETURN: Final = 13
_QUOTE: Final = 34
_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48


def _hex_values() -> NDArray[np.uint32]:
    """What each byte is worth as a hex digit, 16 where it is none."""
    table = np.full(256, 16, np.uint32)
    for digit, character in enumerate("0123456789abcdef"):
        table[ord(character)] = table[ord(character.upper())] = digit
    return table


_HEX: Final = _hex_values()


@numba.njit(cache=True, nogil=True)
def split_fields(
    text: NDArray[np.uint8],
    first_byte: int,
    num_bytes: int,
    separator: int,
    columns: NDArray[np.int64],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    num_fields: NDArray[np.int64],
) -> int:
    """Find the fields of lines; a doubled quote inside a quoted field is undone in place.

    Args:
        text: holds lines in ``[first_byte, num_bytes)``, the last byte being a newline.
        separator: byte between two fields.
        columns: per field of a line the row of ``starts`` it goes to, -1 where it is not wanted.
        starts: (num_columns, num_lines) out; zero on entry, and left so where a line is too short.
        stops: as ``starts``; one past a field's last byte.
        num_fields: (num_lines,) out; fields of the line, -1 where a quote is not closed at the field's end.

    Returns:
        Lines found. A newline always ends a line, a carriage return before it is dropped.
    """
    position, line = first_byte, 0
    while position < num_bytes:
        field, is_good = 0, True
        while is_good:
            first = position
            if text[position] == _QUOTE:
                position += 1
                first = last = position
                is_good = False
                while text[position] != _NEWLINE:
                    byte = text[position]
                    position += 1
                    if byte == _QUOTE:
                        if text[position] != _QUOTE:
                            is_good = True
                            break
                        position += 1
                    text[last] = byte
                    last += 1
                if text[position] == _RETURN and text[position + 1] == _NEWLINE:
                    position += 1
                is_good = is_good and (text[position] == separator or text[position] == _NEWLINE)
            else:
                while text[position] != separator and text[position] != _NEWLINE:
                    position += 1
                last = position
                if text[position] == _NEWLINE and last > first and text[last - 1] == _RETURN:
                    last -= 1
            if field < columns.shape[0] and columns[field] >= 0:
                starts[columns[field], line] = first
                stops[columns[field], line] = last
            field += 1
            if text[position] == _NEWLINE:
                break
            position += 1
        while text[position] != _NEWLINE:
            position += 1
        num_fields[line] = field if is_good else -1
        position += 1
        line += 1
    return line


@numba.njit(cache=True, nogil=True)
def parse_integers(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    most_below: np.uint64,
    most_above: np.uint64,
    values: NDArray[np.uint64],
    states: NDArray[np.uint8],
) -> None:
    """Read decimal integers, ``-?[0-9]+(\\.0*)?``, in ``[-most_below, most_above]``.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        stops: (num_fields,).
        most_below: how far below 0 a value may be.
        most_above: the largest value.
        values: (num_fields,) out; negative ones as two's complement, 0 where there is none.
        states: (num_fields,) out; GOOD, MISSING or BAD.
    """
    below = (most_below // np.uint64(10), most_below % np.uint64(10))
    above = (most_above // np.uint64(10), most_above % np.uint64(10))
    for i in range(starts.shape[0]):
        position, stop = starts[i], stops[i]
        values[i] = 0
        if position == stop:
            states[i] = MISSING
            continue
        states[i] = BAD
        is_negative = text[position] == _MINUS
        if is_negative:
            position += 1
        limit = below if is_negative else above
        value, num_digits, is_good = np.uint64(0), 0, True
        while position < stop and _ZERO <= text[position] <= _ZERO + 9:
            digit = np.uint64(text[position] - _ZERO)
            if value > limit[0] or (value == limit[0] and digit > limit[1]):
                is_good = False
                break
            value = value * np.uint64(10) + digit
            num_digits += 1
            position += 1
        if is_good and position < stop and text[position] == _POINT:
            position += 1
            while position < stop and text[position] == _ZERO:
                position += 1
        if is_good and num_digits > 0 and position == stop:
            values[i] = ~value + np.uint64(1) if is_negative else value
            states[i] = GOOD


@numba.njit(cache=True, nogil=True)
def parse_hex8(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    values: NDArray[np.uint64],
    states: NDArray[np.uint8],
) -> None:
    """Read fields of eight hex digits, either case, as numbers; arguments as in `parse_integers`."""
    for i in range(starts.shape[0]):
        values[i] = 0
        if starts[i] == stops[i]:
            states[i] = MISSING
            continue
        states[i] = BAD
        if stops[i] - starts[i] == 8:
            value, seen = np.uint32(0), np.uint32(0)
            for digit in range(8):
                nibble = _HEX[text[starts[i] + digit]]
                value = np.uint32(value << np.uint32(4)) | nibble
                seen |= nibble
            if seen < 16:
                values[i] = value
                states[i] = GOOD


@numba.njit(cache=True, nogil=True)
def join_spans(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    joined: NDArray[np.uint8],
) -> None:
    """Copy spans one behind the other.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        offsets: (num_fields + 1,), where each span begins in ``joined``.
        joined: (offsets[-1],) out.
    """
    for i in range(starts.shape[0]):
        for byte in range(offsets[i + 1] - offsets[i]):
            joined[offsets[i] + byte] = text[starts[i] + byte]
