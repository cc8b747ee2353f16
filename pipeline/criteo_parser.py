"""Criteo's text format to columns: one Numba pass over bytes, every field checked.

A line is ``label, integers, categories`` between tabs: label 0 or 1, integers decimal within int32,
categories 8 hex digits (read as a uint32), a missing value an empty field, the end ``\\n`` or ``\\r\\n``.

Bounds: the buffer must end with a newline and PADDING_BYTES zeros beyond its last byte. No field accepts a
newline or a zero, so a line's scan stops at its own newline at the latest, and the one look-ahead (the
9 bytes of a category) stays inside the padding. The good path decides only "good or not"; a line that is
not is classified by a second, slower kernel, which finds the first fault from the left.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

PADDING_BYTES: Final = 16
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

_TAB, _NEWLINE, _RETURN, _MINUS = 9, 10, 13, 45
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = 10


def _hex_values() -> NDArray[np.uint32]:
    table = np.full(256, 0xFFFF, np.uint32)
    for digit, character in enumerate("0123456789abcdef"):
        table[ord(character)] = table[ord(character.upper())] = digit
    return table


_HEX: Final = _hex_values()


@numba.njit(cache=True, nogil=True)
def count_newlines(text: NDArray[np.uint8]) -> int:
    """Newlines in ``text``; exact."""
    count = 0
    for i in range(text.shape[0]):
        count += text[i] == 10
    return count


@numba.njit(cache=True, nogil=True)
def parse_lines(
    text: NDArray[np.uint8],
    num_bytes: int,
    label: NDArray[np.uint8],
    dense: NDArray[np.int32],
    categories: NDArray[np.uint32],
    is_valid: NDArray[np.uint8],
    bad_lines: NDArray[np.int64],
) -> tuple[int, int]:
    """Parse whole lines into columns; lines that are not good are listed and leave no sample.

    Args:
        text: (num_bytes + PADDING_BYTES,); ``text[num_bytes - 1]`` is a newline, the padding zeros.
        num_bytes: bytes of the lines.
        label: (num_lines,) out, 0 or 1; length 0 for a log without labels.
        dense: (num_dense, num_lines) out; 0 where missing.
        categories: (num_sparse, num_lines) out; 0 where missing.
        is_valid: (num_dense + num_sparse, ceil(num_lines / 8)) out, zeroed by the caller; bit i % 8 of
            byte i // 8 says that sample i has the value (Arrow's validity bitmap).
        bad_lines: (capacity, 2) out; first byte and newline of each bad line, as many as fit.

    Returns:
        Samples written and bad lines found (which may exceed ``capacity``).
    """
    num_dense, num_sparse = dense.shape[0], categories.shape[0]
    has_label = label.shape[0] > 0
    position, num_samples, num_bad = 0, 0, 0
    while position < num_bytes:
        line_start = position
        byte, bit = num_samples >> 3, np.uint8(1 << (num_samples & 7))
        is_good = True
        if has_label:
            value = text[position] - np.uint8(48)
            is_good = value <= 1 and text[position + 1] == _TAB
            label[num_samples] = value
            position += 2
        if is_good:
            for k in range(num_dense):
                if text[position] == _TAB:
                    dense[k, num_samples] = 0
                    position += 1
                    continue
                is_negative = text[position] == _MINUS
                position += is_negative
                first, number = position, np.int64(0)
                digit = text[position] - np.uint8(48)
                while digit < 10 and position - first < _MAX_DIGITS:
                    number = number * 10 + digit
                    position += 1
                    digit = text[position] - np.uint8(48)
                if position == first or text[position] != _TAB or number > _INT32_MAX + is_negative:
                    is_good = False
                    break
                dense[k, num_samples] = -number if is_negative else number
                is_valid[k, byte] |= bit
                position += 1
        if is_good:
            for f in range(num_sparse):
                is_last = f == num_sparse - 1
                character = text[position]
                if character == _TAB or (is_last and (character == _NEWLINE or character == _RETURN)):
                    categories[f, num_samples] = 0
                else:
                    number32, seen = np.uint32(0), np.uint32(0)
                    for i in range(8):
                        digit32 = _HEX[text[position + i]]
                        number32 = (number32 << np.uint32(4)) | digit32
                        seen |= digit32
                    if seen > 15:
                        is_good = False
                        break
                    categories[f, num_samples] = number32
                    is_valid[num_dense + f, byte] |= bit
                    position += 8
                if is_last and text[position] == _RETURN:
                    position += 1
                if text[position] != (_NEWLINE if is_last else _TAB):
                    is_good = False
                    break
                position += 1
        if is_good:
            num_samples += 1
            continue
        mask = np.uint8(~bit)
        for row in range(num_dense + num_sparse):
            is_valid[row, byte] &= mask
        position = line_start
        while text[position] != _NEWLINE:
            position += 1
        if num_bad < bad_lines.shape[0]:
            bad_lines[num_bad, 0] = line_start
            bad_lines[num_bad, 1] = position
        num_bad += 1
        position += 1
    return num_samples, num_bad


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
