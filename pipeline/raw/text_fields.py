"""Read the numbers of fields of text, and look at many bytes together.

Exact, every bound checked. A field is a span ``[start, stop)`` of a byte array, so the same kernels read text
columns of CSV and of Parquet files, whose offsets are spans already. Elements of lists in fields are spans,
too. Decimal text becomes float64, correctly rounded, where two exact doubles give the result.

Bytes are compared as machine words, eight or sixty-four at a time, by instructions that Numba does not
expose. Each such function is plain Python, which defines it, and one or a few machine instructions when
compiled.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from ...stats.kernel import inlined_kernel, kernel
from ...stats.simd import address_of, written_for

_TAB = 9
_NEWLINES_IN_WORD = 10
CHUNK_BYTES = 64
_WORD = ir.IntType(64)
_BYTE = ir.IntType(8)


def _hex_values() -> NDArray[np.uint32]:
    table = np.full(256, 16, np.uint32)
    for digit, character in enumerate("0123456789abcdef"):
        table[ord(character)] = digit
        table[ord(character.upper())] = digit
    return table


HEX_VALUES: Final = _hex_values()
"""(256,); the value of each byte as a hex digit, 16 where it is none."""


def load8(text: NDArray[np.uint8], position: np.uint64) -> np.uint64:
    """Return eight bytes from ``position`` on as one word, the first lowest."""
    return np.uint64(sum(int(text[int(position) + i]) << (8 * i) for i in range(8)))


def find_separators(text: NDArray[np.uint8], position: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return a bit for each of CHUNK_BYTES bytes from ``position`` on: tab or newline, and newline alone."""
    separators = 0
    newlines = 0
    for i in range(CHUNK_BYTES):
        byte = text[int(position) + i]
        separators |= int(byte == _TAB or byte == _NEWLINES_IN_WORD) << i
        newlines |= int(byte == _NEWLINES_IN_WORD) << i
    return np.uint64(separators), np.uint64(newlines)


def _load(context: Any, builder: Any, given: Any, arguments: Any, kind: Any) -> Any:
    """Emit an unaligned load, inline: a function that takes the array would count references to it."""
    address = address_of(context, builder, given.args[0], *arguments)
    loaded = builder.load(builder.bitcast(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


@written_for(load8, types.uint64, None, types.uint64)
def _load8(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    return _load(context, builder, given, arguments, _WORD)


@written_for(find_separators, types.UniTuple(types.uint64, 2), None, types.uint64)
def _find_separators(context: Any, builder: Any, given: Any, arguments: Any) -> Any:
    # Compare 64 bytes together; the 64 one-bit results are then read as one word.
    kind = ir.VectorType(_BYTE, CHUNK_BYTES)
    chunk = _load(context, builder, given, arguments, kind)
    tabs, newlines = (
        builder.bitcast(builder.icmp_unsigned("==", chunk, ir.Constant(kind, [byte] * CHUNK_BYTES)), _WORD)
        for byte in (_TAB, _NEWLINES_IN_WORD)
    )
    return context.make_tuple(builder, given.return_type, [builder.or_(tabs, newlines), newlines])


GOOD: Final = 0
MISSING: Final = 1
BAD: Final = 2
"""States of a field: it holds a value, is empty, or holds something it should not."""

_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48


@kernel
def parse_integers(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    most_below: np.uint64,
    most_above: np.uint64,
    are_codes: bool,
    rounds_down: bool,
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
        are_codes: digits after a leading 0 are bad, because 7 and 007 would be one value.
        rounds_down: a fraction may have any digits, and is left out: -0.5 is read as -1.
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
        is_code = are_codes and position + 1 < stop and text[position] == _ZERO
        if is_code and _ZERO <= text[position + 1] <= _ZERO + 9:
            continue

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
            is_more = False
            while position < stop and (
                text[position] == _ZERO or (rounds_down and _ZERO <= text[position] <= _ZERO + 9)
            ):
                is_more |= text[position] != _ZERO
                position += 1
            if is_more and is_negative:
                value += np.uint64(1)
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
            # ``seen`` collects the bits of all digits: 16 is set if one of them is no hex digit.
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
    """Concatenate spans.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        offsets: (num_fields + 1,), where each span begins in ``joined``.
        joined: (offsets[-1],) out.
    """
    for i in range(starts.shape[0]):
        for byte in range(offsets[i + 1] - offsets[i]):
            joined[offsets[i] + byte] = text[starts[i] + byte]


HARD: Final = 3
"""State of a field whose decimal number takes more than two exact doubles to round correctly."""

_PLUS: Final = 43


_SMALL_E: Final = 101
_LARGE_E: Final = 69
_MOST_EXACT: Final = np.uint64(2**53)
_POWERS: Final = np.array([10.0**power for power in range(23)])
"""Powers of ten that are float64 without rounding."""
_EXPONENT_LIMIT: Final = 100_000


@inlined_kernel
def _read_exponent(text: NDArray[np.uint8], position: int, stop: int) -> tuple[int, int]:
    """Read a sign perhaps, then digits; return the number and where it ends, -1 where nothing follows."""
    is_down = position < stop and text[position] == _MINUS
    if is_down or (position < stop and text[position] == _PLUS):
        position += 1
    power = 0
    end = position if position < stop else -1
    while position < stop and _ZERO <= text[position] <= _ZERO + 9:
        # It stops growing at a limit, so that it cannot overflow.
        if power < _EXPONENT_LIMIT:
            power = power * 10 + int(text[position] - _ZERO)
        position += 1
        end = position
    return (-power if is_down else power), end


@kernel
def parse_decimals(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    values: NDArray[np.float64],
    states: NDArray[np.uint8],
) -> None:
    """Read ``[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?`` to the nearest float64, ties to even.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        stops: (num_fields,).
        values: (num_fields,) out; 0 where the state is not GOOD.
        states: (num_fields,) out; GOOD, MISSING, BAD, or HARD: well formed, and left to the caller.

    Error:
        Exact: digits that fit in 53 bits and a power of ten up to 10**22 are doubles without rounding, so
        that one product or quotient of them is rounded once.

    Source:
        Clinger, How to read floating point numbers accurately, PLDI 1990, section 3.
    """
    for i in range(starts.shape[0]):
        position = starts[i]
        stop = stops[i]
        values[i] = 0.0
        if position == stop:
            states[i] = MISSING
            continue
        states[i] = BAD
        is_negative = text[position] == _MINUS
        if is_negative or text[position] == _PLUS:
            position += 1

        # The digits as one integer, without the point; each digit after the point lowers the exponent by
        # one. Digits that a uint64 cannot hold are left out, and the number is HARD.
        digits = np.uint64(0)
        num_digits = 0
        exponent = 0
        is_short = True
        is_fraction = False
        while position < stop:
            byte = text[position]
            if byte == _POINT and not is_fraction:
                is_fraction = True
            elif _ZERO <= byte <= _ZERO + 9:
                num_digits += 1
                exponent -= is_fraction
                if digits <= np.uint64(2**59):
                    digits = digits * np.uint64(10) + np.uint64(byte - _ZERO)
                else:
                    is_short = False
            else:
                break
            position += 1
        if num_digits == 0:
            continue

        if position < stop and (text[position] == _SMALL_E or text[position] == _LARGE_E):
            power, position = _read_exponent(text, position + 1, stop)
            exponent += power
        if position != stop:
            continue

        # Well formed. Two exact doubles give the nearest one; the caller reads any other number in Python.
        states[i] = HARD
        if is_short and digits <= _MOST_EXACT and -23 < exponent < 23:
            number = np.float64(digits)
            number = number * _POWERS[exponent] if exponent >= 0 else number / _POWERS[-exponent]
            values[i] = -number if is_negative else number
            states[i] = GOOD
