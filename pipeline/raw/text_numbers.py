"""Decimal text to float64, correctly rounded, where two exact doubles give it; elements of lists in fields.

A field is a span ``[start, stop)`` of a byte array, as in `text_fields`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel
from .text_fields import BAD, GOOD, MISSING

HARD: Final = 3
"""State of a field whose decimal number takes more than two exact doubles to round correctly."""

_PLUS: Final = 43
_MINUS: Final = 45
_POINT: Final = 46
_ZERO: Final = 48
_SMALL_E: Final = 101
_LARGE_E: Final = 69
_MOST_EXACT: Final = np.uint64(2**53)
_POWERS: Final = np.array([10.0**power for power in range(23)])
"""Powers of ten that are float64 without rounding."""
_EXPONENT_LIMIT: Final = 100_000


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

        # The digits as one integer, with or without a point between them; each behind the point lowers the
        # exponent by one. More digits than a uint64 holds are left out, and the number is HARD.
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

        # An exponent: a sign perhaps, then digits. It stops growing at a limit, so that it cannot overflow.
        if position < stop and (text[position] == _SMALL_E or text[position] == _LARGE_E):
            position += 1
            is_down = position < stop and text[position] == _MINUS
            if is_down or (position < stop and text[position] == _PLUS):
                position += 1
            if position == stop:
                continue
            power = 0
            while position < stop and _ZERO <= text[position] <= _ZERO + 9:
                if power < _EXPONENT_LIMIT:
                    power = power * 10 + int(text[position] - _ZERO)
                position += 1
            exponent += -power if is_down else power
        if position != stop:
            continue

        # Well formed. Two exact doubles give the nearest one; the caller reads any other number in Python.
        states[i] = HARD
        if is_short and digits <= _MOST_EXACT and -23 < exponent < 23:
            number = np.float64(digits)
            number = number * _POWERS[exponent] if exponent >= 0 else number / _POWERS[-exponent]
            values[i] = -number if is_negative else number
            states[i] = GOOD


@kernel
def count_elements(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    separator: int,
    offsets: NDArray[np.int64],
) -> None:
    """Write the running sum of the elements of each field: one more than it has separators.

    Args:
        text: bytes of the fields.
        starts: (num_fields,).
        stops: (num_fields,).
        separator: byte between two elements.
        offsets: (num_fields + 1,) out.
    """
    offsets[0] = 0
    for i in range(starts.shape[0]):
        num_elements = 1
        for position in range(starts[i], stops[i]):
            num_elements += text[position] == separator
        offsets[i + 1] = offsets[i] + num_elements


@kernel
def split_elements(
    text: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    separator: int,
    element_starts: NDArray[np.int64],
    element_stops: NDArray[np.int64],
) -> None:
    """Find the elements of fields; arguments as in `count_elements`, the elements (offsets[-1],) out."""
    element = 0
    for i in range(starts.shape[0]):
        element_starts[element] = starts[i]
        for position in range(starts[i], stops[i]):
            if text[position] == separator:
                element_stops[element] = position
                element += 1
                element_starts[element] = position + 1
        element_stops[element] = stops[i]
        element += 1
