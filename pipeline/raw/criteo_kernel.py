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

from ...stats.cpu_prefetch import LINE_BYTES, prefetch
from .byte_words import CHUNK_BYTES, count_bits, find_separators, load8, lowest_bit

PADDING_BYTES: Final = CHUNK_BYTES

_NEWLINE, _RETURN, _MINUS = 10, 13, np.uint64(45)
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = np.uint64(10)

_GROUP: Final = np.uint64(64)
"""Lines decoded together; the bits of a word."""
_UNROLLED: Final = np.uint64(8)
"""Separators noted at a time; what is beyond the last of a chunk is written over."""
_LINE_VALUES: Final = np.uint64(LINE_BYTES // 4)
_TEXT_AHEAD: Final = np.uint64(4096)
_WRITTEN_AHEAD: Final = np.uint64(2 * 64)
"""How far ahead the cache is asked for text (bytes) and for what will be written (values). A block and
its columns are larger than the cache: 130 ns a line without, 68 with both."""
_MAX_SPAN: Final = np.uint64(2**31)
"""Bytes of a group, so that places within it fit in 32 bits."""

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


@numba.njit(cache=True, nogil=True)
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
        prefetch(text, position + _TEXT_AHEAD)
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
def _category(word: np.uint64, length: np.uint64) -> tuple[np.uint64, np.uint64]:
    """A field of eight hex digits, either case, or nothing: its number, and not zero where it is neither."""
    letter = word & _EACH_40
    lower = word | (letter >> _ONE)
    is_digit = (lower + _EACH_50) & ~(lower + _EACH_46)
    is_letter = (lower + _EACH_1F) & ~(lower + _EACH_19)
    not_hex = ((is_digit | is_letter) & ~word & _EACH_80) ^ _EACH_80
    nibbles = (word & _EACH_0F) + (letter >> np.uint64(6)) * np.uint64(9)
    pairs = ((nibbles << np.uint64(4)) | (nibbles >> _EIGHT)) & _PAIRS
    fours = ((pairs << _EIGHT) | (pairs >> np.uint64(16))) & _FOURS
    number = ((fours << np.uint64(16)) | (fours >> np.uint64(32))) & _LOW_32
    is_there = _ZERO - np.uint64(length != _ZERO)  # all bits
    return number & is_there, (not_hex | (length ^ _EIGHT)) & is_there


@numba.njit(cache=True, nogil=True, inline="always")
def _integer(word: np.uint64, length: np.uint64) -> tuple[np.int64, np.uint64]:
    """A field of at most eight bytes: an integer or nothing, and not zero where it is neither.

    All digits are converted at once.

    Source:
        Lemire, "Quickly parsing eight digits" (2018).
    """
    sign = np.uint64((word & _LOW_8) == _MINUS)
    num_digits = length - sign
    is_empty = _ZERO - np.uint64(num_digits == _ZERO)  # all bits
    digits = (word ^ _EACH_30) >> (sign << np.uint64(3))
    digits = (digits << ((_GROUP - (num_digits << np.uint64(3))) & _LOW_6)) & ~is_empty
    fault = (((digits + _EACH_76) | digits) & _EACH_80) | (sign & is_empty)
    digits = (digits * np.uint64(10) + (digits >> _EIGHT)) & _PAIRS
    digits = (digits * np.uint64(100) + (digits >> np.uint64(16))) & _FOURS
    number = np.int64((digits * np.uint64(10000) + (digits >> np.uint64(32))) & _LOW_32)
    return (number ^ -np.int64(sign)) + np.int64(sign), fault


@numba.njit(cache=True, nogil=True)
def _long_integer(text: NDArray[np.uint8], start: np.uint64, length: np.uint64) -> tuple[np.int32, bool]:
    """A field too long for `_integer`: its value, and whether it is ten digits at most, within int32."""
    sign = np.uint64(text[start] == _MINUS)
    num_bytes, number = sign, np.int64(0)
    while num_bytes < min(length, sign + _MAX_DIGITS) and 48 <= text[start + num_bytes] < 58:
        number = number * 10 + np.int64(text[start + num_bytes]) - 48
        num_bytes += _ONE
    if num_bytes != length or number > _INT32_MAX + np.int64(sign):
        return np.int32(0), False
    return np.int32(-number if sign else number), True


@numba.njit(cache=True, nogil=True)
def _write_bits(
    bits: NDArray[np.uint64], count: np.uint64, first: np.uint64, is_valid: NDArray[np.uint8]
) -> None:
    """Write the lowest ``count`` of each of ``bits`` to a row of bitmaps, zero yet from bit ``first`` on."""
    shift, byte = first & np.uint64(7), first >> np.uint64(3)
    num_bytes = (shift + count + np.uint64(7)) >> np.uint64(3)
    in_range = ~_ZERO if count == _GROUP else (_ONE << count) - _ONE
    for row in range(np.uint64(bits.shape[0])):
        kept = bits[row] & in_range
        for i in range(num_bytes):
            moved = (kept << shift) >> (np.uint64(i) << np.uint64(3)) if i < 8 else kept >> (_GROUP - shift)
            is_valid[row, byte + np.uint64(i)] |= np.uint8(moved & _LOW_8)


@numba.njit(cache=True, nogil=True)
def _keep_bits(bits: NDArray[np.uint64], count: np.uint64, are_good: np.uint64) -> None:
    """Move the good ones of ``count`` bits of each row together."""
    for row in range(np.uint64(bits.shape[0])):
        kept, moved = _ZERO, _ZERO
        for i in range(count):
            if (are_good >> np.uint64(i)) & _ONE:
                moved |= ((bits[row] >> np.uint64(i)) & _ONE) << kept
                kept += _ONE
        bits[row] = moved


@numba.njit(cache=True, nogil=True)
def _keep_values(values: NDArray[np.int32], first: np.uint64, count: np.uint64, are_good: np.uint64) -> None:
    """Move the good ones of ``count`` values from ``first`` on together, in each row."""
    for row in range(np.uint64(values.shape[0])):
        kept = first
        for i in range(count):
            if (are_good >> np.uint64(i)) & _ONE:
                values[row, kept] = values[row, first + np.uint64(i)]
                kept += _ONE


@numba.njit(cache=True, nogil=True)
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
    newlines, first_fields, lines = np.empty(64, np.uint64), np.empty(64, np.uint64), np.empty(64, np.uint64)
    words, lengths, faults = np.empty(64, np.uint64), np.empty(64, np.uint64), np.empty(64, np.uint64)
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
            first_fields[num_taken], lines[num_taken], faults[num_taken] = field, line, _ZERO
            num_taken += np.uint64(newlines[line] - field == num_fields)
            field = newlines[line]
        for column in range(num_fields):  # no helpers with arrays here: each call would count references
            for i in range(num_taken):
                field = first_fields[i] + np.uint64(column)
                first = np.uint64(after[field])
                words[i] = load8(text, start + first)
                lengths[i] = np.uint64(after[field + _ONE]) - first - _ONE
            if column == num_fields - _ONE:  # may end in a return
                for i in range(num_taken):
                    last = start + np.uint64(after[first_fields[i] + num_fields]) - np.uint64(2)
                    if lengths[i] != _ZERO and text[last] == _RETURN:
                        lengths[i] -= _ONE
            if column < first_column:
                for i in range(num_taken):
                    value = (words[i] ^ _EACH_30) & _LOW_8
                    label[num_samples + np.uint64(i)] = np.uint8(value)
                    faults[i] |= (value >> _ONE) | (lengths[i] ^ _ONE)
                continue
            row = np.uint64(column) - first_column
            if row < num_dense:
                ahead = row * np.uint64(dense.shape[1]) + num_samples + _WRITTEN_AHEAD
                are_long = _ZERO
                for i in range(num_taken):
                    number, fault = _integer(words[i], lengths[i])
                    is_long = _ZERO - np.uint64(lengths[i] > _EIGHT)
                    dense[row, num_samples + np.uint64(i)] = np.int32(number)
                    faults[i] |= fault & ~is_long
                    are_long |= is_long
                for line in range(_GROUP // _LINE_VALUES):
                    prefetch(dense, ahead + np.uint64(line) * _LINE_VALUES)
                for i in range(num_taken if are_long else _ZERO):
                    if lengths[i] > _EIGHT:
                        first = start + np.uint64(after[first_fields[i] + np.uint64(column)])
                        long_number, is_good = _long_integer(text, first, lengths[i])
                        dense[row, num_samples + np.uint64(i)] = long_number
                        faults[i] |= np.uint64(not is_good)
            else:
                feature = row - num_dense
                ahead = feature * np.uint64(categories.shape[1]) + num_samples + _WRITTEN_AHEAD
                for i in range(num_taken):
                    category, fault = _category(words[i], lengths[i])
                    categories[feature, num_samples + np.uint64(i)] = np.uint32(category)
                    faults[i] |= fault
                for line in range(_GROUP // _LINE_VALUES):
                    prefetch(categories, ahead + np.uint64(line) * _LINE_VALUES)
            are_there = _ZERO
            for i in range(num_taken):
                are_there |= np.uint64(lengths[i] != _ZERO) << np.uint64(i)
            bits[row] = are_there
        are_good, good_lines = _ZERO, _ZERO
        for i in range(num_taken):
            is_clean = np.uint64(faults[i] == _ZERO)
            are_good |= is_clean << np.uint64(i)
            good_lines |= is_clean << lines[i]
        num_good = count_bits(are_good)
        if num_good < num_lines:
            for line in range(num_lines):
                if not (good_lines >> np.uint64(line)) & _ONE:
                    first = start + np.uint64(after[newlines[line - 1]] if line > 0 else 0)
                    newline = start + np.uint64(after[newlines[line]]) - _ONE
                    num_bad = _list_bad(bad_lines, num_bad, first, newline)
            if first_column:
                kept = num_samples
                for i in range(num_taken):
                    label[kept] = label[num_samples + np.uint64(i)]
                    kept += (are_good >> np.uint64(i)) & _ONE
            _keep_values(dense, num_samples, num_taken, are_good)
            _keep_values(categories, num_samples, num_taken, are_good)
            _keep_bits(bits, num_taken, are_good)
        _write_bits(bits, num_good, num_samples, is_valid)
        num_samples += num_good
        start += np.uint64(after[newlines[num_lines - _ONE]])
    return int(num_samples), num_bad
