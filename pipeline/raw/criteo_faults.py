"""What is wrong with a line of Criteo's format that the parser did not take."""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

MAX_FIELD_BYTES: Final = 64
"""A field longer than this is refused as such, whatever it holds."""

REASONS: Final = (
    "good",
    "field_count",
    "bad_label",
    "bad_integer",
    "integer_range",
    "bad_category",
    "nul_byte",
    "long_field",
)
"""Names of the codes `classify_line` returns, as they stand in the manifest."""
_GOOD, _FIELD_COUNT, _BAD_LABEL, _BAD_INTEGER, _RANGE, _BAD_CATEGORY, _NUL, _LONG = range(8)

_TAB, _RETURN, _MINUS = 9, 13, 45
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = 10


def _hex_values() -> NDArray[np.uint32]:
    table = np.full(256, 0xFFFF, np.uint32)
    for digit, character in enumerate("0123456789abcdef"):
        table[ord(character)] = table[ord(character.upper())] = digit
    return table


_HEX: Final = _hex_values()


@numba.njit(cache=True, nogil=True)
def classify_line(
    line: NDArray[np.uint8], num_dense: int, num_sparse: int, has_label: bool
) -> tuple[int, int, int, int]:
    """What is wrong with a line: the first fault from the left, after the faults of the whole line.

    Args:
        line: (num_bytes,), without its newline.

    Returns:
        Code (an index into REASONS), column (from 0; number of fields for ``field_count``), and the
        field's first and last-but-one byte within the line.
    """
    end = line.shape[0]
    if end > 0 and line[end - 1] == _RETURN:
        end -= 1
    num_fields = 1
    for i in range(end):
        num_fields += line[i] == _TAB
    start, column = 0, 0
    for i in range(end + 1):
        if i == end or line[i] == _TAB:
            if i - start > MAX_FIELD_BYTES:
                return _LONG, column, start, i
            for j in range(start, i):
                if line[j] == 0:
                    return _NUL, column, start, i
            start, column = i + 1, column + 1
    if num_fields != has_label + num_dense + num_sparse:
        return _FIELD_COUNT, num_fields, 0, end
    start, column = 0, 0
    for i in range(end + 1):
        if i == end or line[i] == _TAB:
            code = _classify_field(line, start, i, column - has_label, num_dense)
            if code != _GOOD:
                return code, column, start, i
            start, column = i + 1, column + 1
    return _GOOD, 0, 0, 0


@numba.njit(cache=True, nogil=True)
def _classify_field(line: NDArray[np.uint8], start: int, stop: int, column: int, num_dense: int) -> int:
    """Code of the field ``line[start:stop]``; ``column`` counts from the first integer, -1 is the label."""
    length = stop - start
    if column < 0:
        return _GOOD if length == 1 and 48 <= line[start] <= 49 else _BAD_LABEL
    if length == 0:
        return _GOOD
    if column >= num_dense:
        for i in range(start, stop):
            if _HEX[line[i]] > 15:
                return _BAD_CATEGORY
        return _GOOD if length == 8 else _BAD_CATEGORY
    is_negative = line[start] == _MINUS
    first = start + is_negative
    if first == stop:
        return _BAD_INTEGER
    number = np.int64(0)
    for i in range(first, stop):
        if line[i] < 48 or line[i] > 57:
            return _BAD_INTEGER
        number = min(number * 10 + line[i] - 48, np.int64(1) << 40)
    return _RANGE if number > _INT32_MAX + is_negative or stop - first > _MAX_DIGITS else _GOOD
