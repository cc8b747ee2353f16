"""Criteo's text format to columns: one Numba pass over bytes, every field checked.

A line is ``label, integers, categories`` between tabs: label 0 or 1, integers decimal within int32,
categories 8 hex digits (read as a uint32), a missing value an empty field, the end ``\\n`` or ``\\r\\n``.

Bounds: the buffer must end with a newline and PADDING_BYTES zeros beyond its last byte. No field accepts a
newline or a zero, so a line's scan stops at its own newline at the latest, and the look-ahead (eight
bytes at a time) stays inside the padding. The good path decides only "good or not"; a line that is
not is classified by a second, slower kernel, which finds the first fault from the left.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import create_struct_proxy
from numba.extending import intrinsic, overload
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
_MAX_DIGITS: Final = np.uint64(10)

_ZERO: Final = np.uint64(0)
_LONG_FIELD: Final = np.uint64(2**64 - 1)
_ONE: Final = np.uint64(1)
_LOW_32: Final = np.uint64(0xFFFFFFFF)
_EACH: Final = 0x0101010101010101
_BYTES = (0x01, 0x09, 0x0F, 0x19, 0x1F, 0x30)
_HIGHER_BYTES = (0x40, 0x46, 0x50, 0x76, 0x80)
_EACH_01, _EACH_09, _EACH_0F, _EACH_19, _EACH_1F, _EACH_30 = (np.uint64(_EACH * byte) for byte in _BYTES)
_EACH_40, _EACH_46, _EACH_50, _EACH_76, _EACH_80 = (np.uint64(_EACH * byte) for byte in _HIGHER_BYTES)
"""Words with the same byte eight times, for arithmetic on eight characters at a time."""


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


def _load8(text: NDArray[np.uint8], position: np.uint64) -> np.uint64:
    """Eight bytes from ``position`` on as one word, the first lowest."""
    return np.uint64(sum(int(text[int(position) + i]) << (8 * i) for i in range(8)))


@intrinsic
def _load8_compiled(_: Any, text: Any, position: Any) -> Any:
    """The same as one unaligned load: a helper that takes the array would count references to it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = create_struct_proxy(signature.args[0])(context, builder, value=arguments[0])
        pointer = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        word = builder.load(pointer)
        word.align = 1
        return word

    return types.uint64(text, types.uint64), generate


@overload(_load8, inline="always")
def _load8_overload(text: Any, position: Any) -> Any:
    def load(text: Any, position: Any) -> Any:
        return _load8_compiled(text, position)

    return load


@numba.njit(cache=True, nogil=True, inline="always")
def _category(word: np.uint64) -> tuple[np.uint32, bool]:
    """Eight hex digits, either case, eight at a time: the number, and whether they were hex digits."""
    letter = word & _EACH_40
    lower = word | (letter >> _ONE)
    is_digit = (lower + _EACH_50) & ~(lower + _EACH_46)
    is_letter = (lower + _EACH_1F) & ~(lower + _EACH_19)
    is_hex = ((is_digit | is_letter) & ~word & _EACH_80) == _EACH_80
    nibbles = (word & _EACH_0F) + (letter >> np.uint64(6)) * np.uint64(9)
    pairs = ((nibbles << np.uint64(4)) | (nibbles >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    fours = ((pairs << np.uint64(8)) | (pairs >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    return np.uint32(((fours << np.uint64(16)) | (fours >> np.uint64(32))) & _LOW_32), is_hex


@numba.njit(cache=True, nogil=True, inline="always")
def _integer(word: np.uint64) -> tuple[np.int32, np.uint64, np.uint64]:
    """The integer field that begins ``word``: its value, its digits, and the bytes it takes with its tab.

    All digits are converted at once. 0 bytes mean that it is no integer, 0 digits that it is missing,
    _LONG_FIELD bytes that its tab is not within the eight.

    Source: Lemire, "Quickly parsing eight digits" (2018).
    """
    at_tab = word ^ _EACH_09
    tabs = (at_tab - _EACH_01) & ~at_tab & _EACH_80
    if tabs == _ZERO:
        return np.int32(0), _ZERO, _LONG_FIELD
    after_field = (tabs & (~tabs + _ONE)) >> np.uint64(7)
    num_bytes = (after_field * np.uint64(0x0001020304050607)) >> np.uint64(56)
    sign = np.uint64((word & np.uint64(0xFF)) == np.uint64(_MINUS))
    num_digits = num_bytes - sign
    digits = ((word ^ _EACH_30) & (after_field - _ONE)) >> (sign << np.uint64(3))
    is_bad = (((digits + _EACH_76) | digits) & _EACH_80) | (sign & np.uint64(num_digits == _ZERO))
    if is_bad != _ZERO:
        return np.int32(0), _ZERO, _ZERO
    digits = (digits << (np.uint64(56) - (num_digits << np.uint64(3)))) << np.uint64(8)
    digits = (digits * np.uint64(10) + (digits >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    digits = (digits * np.uint64(100) + (digits >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    number = np.int64((digits * np.uint64(10000) + (digits >> np.uint64(32))) & _LOW_32)
    return np.int32((number ^ -np.int64(sign)) + np.int64(sign)), num_digits, num_bytes + _ONE


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
    num_dense, num_sparse = np.uint64(dense.shape[0]), np.uint64(categories.shape[0])
    has_label = label.shape[0] > 0
    position, num_samples, num_bad = _ZERO, _ZERO, 0
    while position < np.uint64(num_bytes):
        line_start = position
        byte, shift = num_samples >> np.uint64(3), np.uint8(num_samples & np.uint64(7))
        bit = np.uint8(np.uint8(1) << shift)
        is_good = True
        if has_label:
            value = text[position] - np.uint8(48)
            is_good = value <= 1 and text[position + _ONE] == _TAB
            label[num_samples] = value
            position += np.uint64(2)
        if is_good:
            for k in range(num_dense):
                number, num_digits, length = _integer(_load8(text, position))
                if length == _LONG_FIELD:
                    sign, number64 = np.uint64(text[position] == _MINUS), np.int64(0)
                    length = sign
                    digit = text[position + length] - np.uint8(48)
                    while digit < 10 and length < sign + _MAX_DIGITS:
                        number64 = number64 * 10 + np.int64(digit)
                        length += _ONE
                        digit = text[position + length] - np.uint8(48)
                    num_digits = length - sign
                    is_integer = text[position + length] == _TAB and number64 <= _INT32_MAX + np.int64(sign)
                    length = length + _ONE if is_integer else _ZERO
                    number = np.int32(-number64 if sign else number64)
                if length == _ZERO:
                    is_good = False
                    break
                dense[k, num_samples] = number
                is_valid[k, byte] |= np.uint8(np.uint8(num_digits != _ZERO) << shift)
                position += length
        if is_good:
            for f in range(num_sparse):
                is_last = f == num_sparse - _ONE
                character = text[position]
                if character == _TAB or (is_last and (character == _NEWLINE or character == _RETURN)):
                    categories[f, num_samples] = 0
                else:
                    category, is_hex = _category(_load8(text, position))
                    if not is_hex:
                        is_good = False
                        break
                    categories[f, num_samples] = category
                    is_valid[num_dense + f, byte] |= bit
                    position += np.uint64(8)
                if is_last and text[position] == _RETURN:
                    position += _ONE
                if text[position] != (_NEWLINE if is_last else _TAB):
                    is_good = False
                    break
                position += _ONE
        if is_good:
            num_samples += _ONE
            continue
        mask = np.uint8(~bit)
        for row in range(num_dense + num_sparse):
            is_valid[row, byte] &= mask
        position = line_start
        while text[position] != _NEWLINE:
            position += _ONE
        if num_bad < bad_lines.shape[0]:
            bad_lines[num_bad, 0] = line_start
            bad_lines[num_bad, 1] = position
        num_bad += 1
        position += _ONE
    return int(num_samples), num_bad


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
    return _RANGE if number > _INT32_MAX + is_negative or stop - first > np.int64(_MAX_DIGITS) else _GOOD
