"""Fields of separated text: where they are, and the numbers they hold. Exact, every bound checked.

A field is a span ``[start, stop)`` of a byte array, so a column of text from a Parquet file, whose offsets
are spans already, is read by the same kernels as one from a CSV file.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel
from .byte_words import HEX_VALUES

GOOD: Final = 0
MISSING: Final = 1
BAD: Final = 2
"""States of a field: it holds a value, is empty, or holds something it should not."""

_NEWLINE: Final = 10
_RETURN: Final = 13
_QUOTE: Final = 34
_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48


@kernel
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
    position = first_byte
    line = 0
    while position < num_bytes:
        field = 0
        is_good = True
        # One field a turn; a quote that is not closed properly ends the line's turns.
        while is_good:
            first = position
            if text[position] == _QUOTE:
                # A quoted field: its bytes are moved to the left over the first of each doubled quote, so
                # that ``last`` falls behind ``position`` by one for each of them.
                position += 1
                first = position
                last = position
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
                # Behind the closing quote only a separator or a line end may follow.
                if text[position] == _RETURN and text[position + 1] == _NEWLINE:
                    position += 1
                is_good = is_good and (text[position] == separator or text[position] == _NEWLINE)
            else:
                while text[position] != separator and text[position] != _NEWLINE:
                    position += 1
                # A plain field ends before a separator, a newline, or a carriage return and newline.
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

        # Pass by the rest of a bad line.
        while text[position] != _NEWLINE:
            position += 1
        num_fields[line] = field if is_good else -1
        position += 1
        line += 1
    return line


@kernel
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
    # Limits as quotient and remainder by ten: ``value * 10 + digit`` exceeds one if (value, digit) does.
    below = (most_below // np.uint64(10), most_below % np.uint64(10))
    above = (most_above // np.uint64(10), most_above % np.uint64(10))
    for i in range(starts.shape[0]):
        position = starts[i]
        stop = stops[i]
        values[i] = 0
        if position == stop:
            states[i] = MISSING
            continue
        states[i] = BAD
        is_negative = text[position] == _MINUS
        if is_negative:
            position += 1
        limit = below if is_negative else above

        # Digits, compared with the limit before each is added: a uint64 never overflows.
        value = np.uint64(0)
        num_digits = 0
        is_good = True
        while position < stop and _ZERO <= text[position] <= _ZERO + 9:
            digit = np.uint64(text[position] - _ZERO)
            if value > limit[0] or (value == limit[0] and digit > limit[1]):
                is_good = False
                break
            value = value * np.uint64(10) + digit
            num_digits += 1
            position += 1

        # "3." and "3.00" are the integer 3: some tools write integers as floats.
        if is_good and position < stop and text[position] == _POINT:
            position += 1
            while position < stop and text[position] == _ZERO:
                position += 1
        if is_good and num_digits > 0 and position == stop:
            values[i] = ~value + np.uint64(1) if is_negative else value
            states[i] = GOOD


@kernel
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
            # ``seen`` collects the bits of all digits: 16 is set where one of them is no hex digit.
            value = np.uint32(0)
            seen = np.uint32(0)
            for digit in range(8):
                nibble = HEX_VALUES[text[starts[i] + digit]]
                value = np.uint32(value << np.uint32(4)) | nibble
                seen |= nibble
            if seen < 16:
                values[i] = value
                states[i] = GOOD


@kernel
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
