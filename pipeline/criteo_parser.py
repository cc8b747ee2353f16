"""Criteo's text format to columns: Numba passes over bytes that stay in the cache, every field checked.

A line is ``label, integers, categories`` between tabs: label 0 or 1, integers decimal within int32,
categories 8 hex digits (read as a uint32), a missing value an empty field, the end ``\\n`` or ``\\r\\n``.

Lines are taken in groups of 64. One pass finds all tabs and newlines, 64 bytes at a time, so that no field
waits for the one before it; then each column's 64 fields are decoded by loops that the compiler turns into
vector instructions, and their validity is one word.

Bounds: the buffer must end with a newline and PADDING_BYTES zeros beyond its last byte. Fields begin behind
separators, so the look-ahead, 64 bytes at a separator and eight at a field, stays inside the padding. Here
a line is good or not; `criteo_faults` says what is wrong with it.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from .byte_words import CHUNK_BYTES, count_bits, find_separators, load8, lowest_bit

PADDING_BYTES: Final = CHUNK_BYTES

_NEWLINE, _RETURN, _MINUS = 10, 13, np.uint64(45)
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = np.uint64(10)

_GROUP: Final = np.uint64(64)
"""Lines decoded together; the bits of a word."""
_UNROLLED: Final = np.uint64(8)
"""Separators noted at a time; what is beyond the last of a chunk is written over."""
_MAX_SPAN: Final = np.uint64(2**31)
"""Bytes of a group, so that places within it fit in 32 bits."""
_WORD, _LENGTH, _FAULT = range(3)
"""Rows of a ``group``, (3, _GROUP): of one field of each line its first eight bytes and its length; and what
is not zero where any field of the line was not good."""

_ZERO, _ONE, _EIGHT, _LOW_6 = np.uint64(0), np.uint64(1), np.uint64(8), np.uint64(63)
_LOW_8, _LOW_32 = np.uint64(0xFF), np.uint64(0xFFFFFFFF)
_EACH: Final = 0x0101010101010101
_EACH_0F, _EACH_19, _EACH_1F, _EACH_30 = (np.uint64(_EACH * byte) for byte in (0x0F, 0x19, 0x1F, 0x30))
_EACH_40, _EACH_46, _EACH_50, _EACH_76 = (np.uint64(_EACH * byte) for byte in (0x40, 0x46, 0x50, 0x76))
_EACH_80 = np.uint64(_EACH * 0x80)
"""Words with the same byte eight times, for arithmetic on eight characters at a time."""
_PAIRS, _FOURS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)


@numba.njit(cache=True, nogil=True)
def count_newlines(text: NDArray[np.uint8]) -> int:
    """Newlines in ``text``; exact."""
    count = 0
    for i in range(text.shape[0]):
        count += text[i] == 10
    return count


@numba.njit(cache=True, nogil=True, inline="always")
def _find_fields(
    text: NDArray[np.uint8],
    num_bytes: np.uint64,
    start: np.uint64,
    after: NDArray[np.uint32],
    newlines: NDArray[np.uint64],
) -> np.uint64:
    """Note where fields begin, for as many whole lines from ``start`` on as a group and the arrays hold.

    Args:
        after: (capacity,) out; the byte after each separator, counted from ``start``, the first entry 0.
        newlines: (_GROUP,) out; for each line the entry of ``after`` that its newline made.

    Returns:
        Lines noted, 0 where not even one fits.
    """
    last_entry = np.uint64(after.shape[0]) - _GROUP - _UNROLLED
    position, num_noted, num_lines = start, _ONE, _ZERO
    after[0] = 0
    while num_lines < _GROUP and position < num_bytes:
        if num_noted > last_entry or position - start > _MAX_SPAN:
            break
        separators, ends = find_separators(text, position)
        while ends != _ZERO and num_lines < _GROUP:
            newlines[num_lines] = num_noted + count_bits(separators & (ends - _ONE) & ~ends)
            num_lines += _ONE
            ends &= ends - _ONE
        num_found, first = count_bits(separators), position - start + _ONE
        for noted in range(_ZERO, num_found, _UNROLLED):
            for i in range(_UNROLLED):
                after[num_noted + np.uint64(noted) + np.uint64(i)] = first + lowest_bit(separators)
                separators &= separators - _ONE
        num_noted += num_found
        position += np.uint64(CHUNK_BYTES)
    return num_lines


@numba.njit(cache=True, nogil=True, inline="always")
def _fetch(
    text: NDArray[np.uint8],
    start: np.uint64,
    after: NDArray[np.uint32],
    first_fields: NDArray[np.uint64],
    column: np.uint64,
    num_lines: np.uint64,
    group: NDArray[np.uint64],
) -> None:
    """Fill a group with one field of each line; ``first_fields`` are entries of ``after``."""
    for i in range(num_lines):
        field = first_fields[i] + column
        first = np.uint64(after[field])
        group[_WORD, i] = load8(text, start + first)
        group[_LENGTH, i] = np.uint64(after[field + _ONE]) - first - _ONE


@numba.njit(cache=True, nogil=True, inline="always")
def _leave_out_return(
    text: NDArray[np.uint8],
    start: np.uint64,
    after: NDArray[np.uint32],
    ends: NDArray[np.uint64],
    num_lines: np.uint64,
    group: NDArray[np.uint64],
) -> None:
    """Shorten the last fields of lines that end in ``\\r\\n``; ``ends`` are entries of ``after``."""
    for i in range(num_lines):
        last_byte = start + np.uint64(after[ends[i]]) - np.uint64(2)
        if group[_LENGTH, i] != _ZERO and text[last_byte] == _RETURN:
            group[_LENGTH, i] -= _ONE


@numba.njit(cache=True, nogil=True, inline="always")
def _decode_labels(
    group: NDArray[np.uint64], num_lines: np.uint64, label: NDArray[np.uint8], first_sample: np.uint64
) -> None:
    """Fields that are 0 or 1."""
    for i in range(num_lines):
        value = (group[_WORD, i] ^ _EACH_30) & _LOW_8
        label[first_sample + np.uint64(i)] = np.uint8(value)
        group[_FAULT, i] |= (value >> _ONE) | (group[_LENGTH, i] ^ _ONE)


@numba.njit(cache=True, nogil=True, inline="always")
def _decode_categories(
    group: NDArray[np.uint64],
    num_lines: np.uint64,
    categories: NDArray[np.uint32],
    row: np.uint64,
    first_sample: np.uint64,
) -> None:
    """Fields of eight hex digits, either case, or nothing."""
    for i in range(num_lines):
        word, length = group[_WORD, i], group[_LENGTH, i]
        letter = word & _EACH_40
        lower = word | (letter >> _ONE)
        is_digit = (lower + _EACH_50) & ~(lower + _EACH_46)
        is_letter = (lower + _EACH_1F) & ~(lower + _EACH_19)
        not_hex = ((is_digit | is_letter) & ~word & _EACH_80) ^ _EACH_80
        nibbles = (word & _EACH_0F) + (letter >> np.uint64(6)) * np.uint64(9)
        pairs = ((nibbles << np.uint64(4)) | (nibbles >> _EIGHT)) & _PAIRS
        fours = ((pairs << _EIGHT) | (pairs >> np.uint64(16))) & _FOURS
        category = ((fours << np.uint64(16)) | (fours >> np.uint64(32))) & _LOW_32
        is_there = _ZERO - np.uint64(length != _ZERO)  # all bits
        categories[row, first_sample + np.uint64(i)] = np.uint32(category & is_there)
        group[_FAULT, i] |= (not_hex | (length ^ _EIGHT)) & is_there


@numba.njit(cache=True, nogil=True, inline="always")
def _decode_integers(
    group: NDArray[np.uint64],
    num_lines: np.uint64,
    dense: NDArray[np.int32],
    row: np.uint64,
    first_sample: np.uint64,
) -> np.uint64:
    """Fields of a decimal integer or nothing; all digits of a field are converted at once.

    Returns:
        Not zero where a field is longer than eight bytes: those are neither decoded nor judged.

    Source:
        Lemire, "Quickly parsing eight digits" (2018).
    """
    are_long = _ZERO
    for i in range(num_lines):
        word, length = group[_WORD, i], group[_LENGTH, i]
        is_long = _ZERO - np.uint64(length > _EIGHT)  # all bits
        sign = np.uint64((word & _LOW_8) == _MINUS)
        num_digits = length - sign
        is_empty = _ZERO - np.uint64(num_digits == _ZERO)
        digits = (word ^ _EACH_30) >> (sign << np.uint64(3))
        digits = (digits << ((_GROUP - (num_digits << np.uint64(3))) & _LOW_6)) & ~is_empty
        fault = (((digits + _EACH_76) | digits) & _EACH_80) | (sign & is_empty)
        digits = (digits * np.uint64(10) + (digits >> _EIGHT)) & _PAIRS
        digits = (digits * np.uint64(100) + (digits >> np.uint64(16))) & _FOURS
        number = np.int64((digits * np.uint64(10000) + (digits >> np.uint64(32))) & _LOW_32)
        dense[row, first_sample + np.uint64(i)] = np.int32((number ^ -np.int64(sign)) + np.int64(sign))
        group[_FAULT, i] |= fault & ~is_long
        are_long |= is_long
    return are_long


@numba.njit(cache=True, nogil=True)
def _long_integer(text: NDArray[np.uint8], start: np.uint64, length: np.uint64) -> tuple[np.int32, bool]:
    """A field `_decode_integers` leaves: its value, and whether it is ten digits at most, within int32."""
    sign = np.uint64(text[start] == _MINUS)
    num_bytes, number = sign, np.int64(0)
    while num_bytes < min(length, sign + _MAX_DIGITS) and 48 <= text[start + num_bytes] < 58:
        number = number * 10 + np.int64(text[start + num_bytes]) - 48
        num_bytes += _ONE
    if num_bytes != length or number > _INT32_MAX + np.int64(sign):
        return np.int32(0), False
    return np.int32(-number if sign else number), True


@numba.njit(cache=True, nogil=True, inline="always")
def _are_there(group: NDArray[np.uint64], num_lines: np.uint64) -> np.uint64:
    """Bit i says that the i-th field is not empty."""
    bits = _ZERO
    for i in range(num_lines):
        bits |= np.uint64(group[_LENGTH, i] != _ZERO) << np.uint64(i)
    return bits


@numba.njit(cache=True, nogil=True, inline="always")
def _write_bits(
    bits: np.uint64, count: np.uint64, first: np.uint64, is_valid: NDArray[np.uint8], row: np.uint64
) -> None:
    """Write the lowest ``count`` of ``bits`` to a bitmap that is zero from bit ``first`` on."""
    shift, byte = first & np.uint64(7), first >> np.uint64(3)
    num_bytes = (shift + count + np.uint64(7)) >> np.uint64(3)
    for i in range(num_bytes):
        moved = (bits << shift) >> (np.uint64(i) << np.uint64(3)) if i < 8 else bits >> (_GROUP - shift)
        is_valid[row, byte + np.uint64(i)] |= np.uint8(moved & _LOW_8)


@numba.njit(cache=True, nogil=True, inline="always")
def _close_ranks(values: NDArray[np.int32], first: np.uint64, count: np.uint64, are_good: np.uint64) -> None:
    """Move the good ones of ``count`` values from ``first`` on together, in each row."""
    for row in range(np.uint64(values.shape[0])):
        kept = first
        for i in range(count):
            if (are_good >> np.uint64(i)) & _ONE:
                values[row, kept] = values[row, first + np.uint64(i)]
                kept += _ONE


@numba.njit(cache=True, nogil=True, inline="always")
def _list_bad(bad_lines: NDArray[np.int64], num_bad: int, start: np.uint64, newline: np.uint64) -> int:
    if num_bad < bad_lines.shape[0]:
        bad_lines[num_bad, 0], bad_lines[num_bad, 1] = start, newline
    return num_bad + 1


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
    num_dense, num_features = np.uint64(dense.shape[0]), np.uint64(dense.shape[0] + categories.shape[0])
    first_column = np.uint64(label.shape[0] > 0)
    num_fields = first_column + num_features
    after = np.empty(np.int64(_GROUP * (num_fields + np.uint64(3))), np.uint32)
    newlines, first_fields = np.empty(64, np.uint64), np.empty(64, np.uint64)
    lines, group = np.empty(64, np.uint64), np.empty((3, 64), np.uint64)
    bits = np.empty(np.int64(num_features), np.uint64)
    start, num_samples, num_bad = _ZERO, _ZERO, 0
    while start < np.uint64(num_bytes):
        num_lines = _find_fields(text, np.uint64(num_bytes), start, after, newlines)
        if num_lines == _ZERO:  # far too many fields
            newline = start
            while text[newline] != _NEWLINE:
                newline += _ONE
            num_bad = _list_bad(bad_lines, num_bad, start, newline)
            start = newline + _ONE
            continue
        num_taken, field = _ZERO, _ZERO
        for line in range(num_lines):  # those with the right number of fields
            first_fields[num_taken], lines[num_taken] = field, line
            group[_FAULT, num_taken] = _ZERO
            num_taken += np.uint64(newlines[line] - field == num_fields)
            field = newlines[line]
        if first_column:
            _fetch(text, start, after, first_fields, _ZERO, num_taken, group)
            _decode_labels(group, num_taken, label, num_samples)
        for row in range(num_features):
            column = first_column + np.uint64(row)
            _fetch(text, start, after, first_fields, column, num_taken, group)
            if row == num_features - _ONE:
                _leave_out_return(text, start, after, first_fields + num_fields, num_taken, group)
            if row >= num_dense:
                _decode_categories(group, num_taken, categories, np.uint64(row) - num_dense, num_samples)
            elif _decode_integers(group, num_taken, dense, np.uint64(row), num_samples):
                for i in range(num_taken):
                    if group[_LENGTH, i] > _EIGHT:
                        first = start + np.uint64(after[first_fields[i] + column])
                        number, is_good = _long_integer(text, first, group[_LENGTH, i])
                        dense[row, num_samples + np.uint64(i)] = number
                        group[_FAULT, i] |= np.uint64(not is_good)
            bits[row] = _are_there(group, num_taken)
        are_good, good_lines = _ZERO, _ZERO
        for i in range(num_taken):
            is_good = np.uint64(group[_FAULT, i] == _ZERO)
            are_good |= is_good << np.uint64(i)
            good_lines |= is_good << lines[i]
        num_good = count_bits(are_good)
        if num_good < num_lines:
            for line in range(num_lines):
                if not (good_lines >> np.uint64(line)) & _ONE:
                    first = start + np.uint64(after[newlines[line - 1]] if line > 0 else 0)
                    newline = start + np.uint64(after[newlines[line]]) - _ONE
                    num_bad = _list_bad(bad_lines, num_bad, first, newline)
            _close_ranks(dense, num_samples, num_taken, are_good)
            _close_ranks(categories, num_samples, num_taken, are_good)
            kept = _ZERO
            for i in range(num_taken):
                if (are_good >> np.uint64(i)) & _ONE:
                    if first_column:
                        label[num_samples + kept] = label[num_samples + np.uint64(i)]
                    for row in range(num_features):
                        bit = (bits[row] >> np.uint64(i)) & _ONE
                        bits[row] = (bits[row] & ~(_ONE << kept)) | (bit << kept)
                    kept += _ONE
        for row in range(num_features):
            in_range = (_ONE << num_good) - _ONE if num_good < _GROUP else ~_ZERO
            _write_bits(bits[row] & in_range, num_good, num_samples, is_valid, np.uint64(row))
        num_samples += num_good
        start += np.uint64(after[newlines[num_lines - _ONE]])
    return int(num_samples), num_bad
