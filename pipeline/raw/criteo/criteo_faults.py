"""Classify a line of Criteo's format that the parser refused: which fault, in which column.

`criteo_kernel` decides fast whether a line is good; this decides slowly, for the few bad ones, what to say.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....stats.kernel import kernel
from ..byte_words import HEX_VALUES

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
"""Names of the codes that `classify_line` returns, as the manifest lists them."""
_GOOD, _FIELD_COUNT, _BAD_LABEL, _BAD_INTEGER, _RANGE, _BAD_CATEGORY, _NUL, _LONG = range(8)

_TAB: Final = 9
_RETURN: Final = 13
_MINUS: Final = 45
_ZERO: Final = 48
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = 10


@kernel
def classify_line(
    line: NDArray[np.uint8], num_dense: int, num_sparse: int, has_label: bool
) -> tuple[int, int, int, int]:
    """Find the first fault from the left, after the faults of the whole line.

    Args:
        line: (num_bytes,), without its newline.

    Returns:
        Code (an index into REASONS), column (from 0; number of fields for ``field_count``), and the
        field's first and last-but-one byte within the line.
    """
    # A carriage return before the newline is no part of the last field.
    end = line.shape[0]
    if end > 0 and line[end - 1] == _RETURN:
        end -= 1
    num_fields = 1
    for i in range(end):
        num_fields += line[i] == _TAB

    # Faults of any file that is not text come first: fields far too long, and NUL bytes.
    start = 0
    column = 0
    for i in range(end + 1):
        if i == end or line[i] == _TAB:
            if i - start > MAX_FIELD_BYTES:
                return _LONG, column, start, i
            for j in range(start, i):
                if line[j] == 0:
                    return _NUL, column, start, i
            start = i + 1
            column += 1

    # With a wrong number of fields, no field could be given to its column.
    if num_fields != has_label + num_dense + num_sparse:
        return _FIELD_COUNT, num_fields, 0, end

    start = 0
    column = 0
    for i in range(end + 1):
        if i == end or line[i] == _TAB:
            code = _classify_field(line, start, i, column - has_label, num_dense)
            if code != _GOOD:
                return code, column, start, i
            start = i + 1
            column += 1
    return _GOOD, 0, 0, 0


@kernel
def _classify_field(line: NDArray[np.uint8], start: int, stop: int, column: int, num_dense: int) -> int:
    """Return the code of a field, ``line[start:stop]``; column 0 is the first integer, -1 the label."""
    length = stop - start
    if column < 0:
        return _GOOD if length == 1 and _ZERO <= line[start] <= _ZERO + 1 else _BAD_LABEL
    if length == 0:
        return _GOOD

    # A category: eight hex digits.
    if column >= num_dense:
        for i in range(start, stop):
            if HEX_VALUES[line[i]] > 15:
                return _BAD_CATEGORY
        return _GOOD if length == 8 else _BAD_CATEGORY

    # An integer: a sign perhaps, then digits, at most ten and within int32.
    is_negative = line[start] == _MINUS
    first = start + is_negative
    if first == stop:
        return _BAD_INTEGER
    number = np.int64(0)
    for i in range(first, stop):
        if line[i] < _ZERO or line[i] > _ZERO + 9:
            return _BAD_INTEGER
        number = min(number * 10 + line[i] - _ZERO, np.int64(1) << 40)  # never overflows
    return _RANGE if number > _INT32_MAX + is_negative or stop - first > _MAX_DIGITS else _GOOD
