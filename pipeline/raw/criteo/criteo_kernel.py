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

import numpy as np
from numpy.typing import NDArray

from ....stats.kernel import inlined_kernel, kernel
from ....stats.simd import prefetch_of_cpu_prefetch
from ..byte_words import CHUNK_BYTES, count_bits, find_separators, lowest_bit
from .criteo_columns import (
    GROUP,
    ask_for_next_group,
    decode_categories,
    decode_dense,
    decode_labels,
    leave_out_returns,
    load_column,
    long_integer,
    present_of,
)

PADDING_BYTES: Final = CHUNK_BYTES

_NEWLINE: Final = 10
_UNROLLED: Final = np.uint64(8)
"""Separators noted at a time; entries beyond a chunk's last one are overwritten by the next chunk."""
_COUNTED_TOGETHER: Final = np.uint64(128)
"""Bytes whose newlines are counted in a byte: three times as fast as in 64 bits each."""
_TEXT_AHEAD: Final = np.uint64(4096)
"""How far ahead the cache is asked for text (bytes). A block and its columns are larger than the cache:
130 ns per line without asking for them, 68 with both."""
_MAX_SPAN: Final = np.uint64(2**31)
"""Bytes of a group, so that positions within it fit in 32 bits."""

# Every number below is a uint64: Numba turns a uint64 and a Python integer into a float64.
_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_EIGHT: Final = np.uint64(8)
_LOW_8: Final = np.uint64(0xFF)


@kernel
def count_newlines(text: NDArray[np.uint8]) -> int:
    """Count the newlines in ``text``; exact."""
    count = 0
    num_bytes = np.uint64(text.shape[0])
    # Sums of a byte each, which the compiler makes of whole vectors, as long as they cannot overflow.
    for first in range(_ZERO, num_bytes, _COUNTED_TOGETHER):
        stop = min(num_bytes, np.uint64(first) + _COUNTED_TOGETHER)
        found = np.uint8(0)
        for i in range(np.uint64(first), stop):
            found = np.uint8(found + np.uint8(text[np.uint64(i)] == _NEWLINE))
        count += int(found)
    return count


@kernel
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
        newlines: (GROUP,) out; for each line the entry of ``after`` that its newline made.

    Returns:
        Lines noted, 0 where not even one fits.
    """
    last_entry = np.uint64(after.shape[0]) - GROUP - _UNROLLED
    position = start
    num_noted = _ONE
    num_lines = _ZERO
    after[0] = 0  # the first field begins where the lines do
    while num_lines < GROUP and position < num_bytes:
        if num_noted > last_entry or position - start > _MAX_SPAN:
            break

        # One bit per byte of the chunk: is it a separator, and is it a newline?
        separators, ends = find_separators(text, position)
        prefetch_of_cpu_prefetch(text, position + _TEXT_AHEAD)

        # A newline's entry is the number of separators before it. ``ends - 1`` sets the bits below the lowest
        # newline, ``~ends`` takes out the newlines above it; the last line clears the lowest newline.
        while ends != _ZERO and num_lines < GROUP:
            newlines[num_lines] = num_noted + count_bits(separators & (ends - _ONE) & ~ends)
            num_lines += _ONE
            ends &= ends - _ONE

        # Note every separator, lowest first. Always whole runs of _UNROLLED, so that the inner loop has no
        # branch to mispredict: entries beyond the last separator hold anything and are overwritten.
        num_found = count_bits(separators)
        first = position - start + _ONE
        for noted in range(_ZERO, num_found, _UNROLLED):
            for i in range(_UNROLLED):
                after[num_noted + np.uint64(noted) + np.uint64(i)] = first + lowest_bit(separators)
                separators &= separators - _ONE
        num_noted += num_found
        position += np.uint64(CHUNK_BYTES)
    return num_lines


@kernel
def _write_bits(
    bits: NDArray[np.uint64], count: np.uint64, first: np.uint64, is_valid: NDArray[np.uint8]
) -> None:
    """Write the lowest ``count`` of each of ``bits`` to a row of bitmaps, zero from bit ``first`` on."""
    # The bits begin in the middle of a byte, whose lower bits belong to the group before.
    shift = first & np.uint64(7)
    byte = first >> np.uint64(3)
    num_bytes = (shift + count + np.uint64(7)) >> np.uint64(3)
    in_range = ~_ZERO if count == GROUP else (_ONE << count) - _ONE
    for row in range(np.uint64(bits.shape[0])):
        kept = bits[row] & in_range
        for i in range(num_bytes):
            # Shifted by up to 7, 64 bits reach into a ninth byte: those that the shift pushed out.
            moved = (kept << shift) >> (np.uint64(i) << np.uint64(3)) if i < 8 else kept >> (GROUP - shift)
            is_valid[row, byte + np.uint64(i)] |= np.uint8(moved & _LOW_8)


@kernel
def _keep_bits(bits: NDArray[np.uint64], count: np.uint64, are_good: np.uint64) -> None:
    """Close the gaps that bad lines leave in ``count`` bits of each row."""
    for row in range(np.uint64(bits.shape[0])):
        kept = _ZERO
        moved = _ZERO
        for i in range(count):
            if (are_good >> np.uint64(i)) & _ONE:
                moved |= ((bits[row] >> np.uint64(i)) & _ONE) << kept
                kept += _ONE
        bits[row] = moved


@kernel
def _keep_values(values: NDArray[np.int32], first: np.uint64, count: np.uint64, are_good: np.uint64) -> None:
    """Close the gaps that bad lines leave in ``count`` values from ``first`` on, in each row."""
    for row in range(np.uint64(values.shape[0])):
        kept = first
        for i in range(count):
            if (are_good >> np.uint64(i)) & _ONE:
                values[row, kept] = values[row, first + np.uint64(i)]
                kept += _ONE


@kernel
def _keep_labels(label: NDArray[np.uint8], first: np.uint64, count: np.uint64, are_good: np.uint64) -> None:
    """Close the gaps that bad lines leave in ``count`` labels from ``first`` on."""
    kept = first
    for i in range(count):
        label[kept] = label[first + np.uint64(i)]
        kept += (are_good >> np.uint64(i)) & _ONE


@kernel
def _list_bad(bad_lines: NDArray[np.int64], num_bad: int, start: np.uint64, newline: np.uint64) -> int:
    """Note a bad line if there is room; returns how many there are now."""
    if num_bad < bad_lines.shape[0]:
        bad_lines[num_bad, 0] = start
        bad_lines[num_bad, 1] = newline
    return num_bad + 1


@kernel
def _list_bad_lines(
    start: np.uint64,
    after: NDArray[np.uint32],
    newlines: NDArray[np.uint64],
    num_lines: np.uint64,
    good_lines: np.uint64,
    bad_lines: NDArray[np.int64],
    num_bad: int,
) -> int:
    """Note the bad lines of a group; returns how many there are now."""
    for line in range(num_lines):
        if not (good_lines >> np.uint64(line)) & _ONE:
            first = start + np.uint64(after[newlines[line - 1]] if line > 0 else 0)
            newline = start + np.uint64(after[newlines[line]]) - _ONE
            num_bad = _list_bad(bad_lines, num_bad, first, newline)
    return num_bad


@inlined_kernel
def _take_lines(
    newlines: NDArray[np.uint64],
    num_lines: np.uint64,
    num_fields: np.uint64,
    lines: NDArray[np.uint64],
    first_fields: NDArray[np.uint64],
) -> np.uint64:
    """Note the lines with the right number of fields, and where the first field of each is; count them."""
    # Every line is written to the next free entry, which only a right one keeps: no branch to mispredict.
    num_taken = _ZERO
    field = _ZERO
    for line in range(num_lines):
        first_fields[num_taken] = field
        lines[num_taken] = line
        num_taken += np.uint64(newlines[line] - field == num_fields)
        field = newlines[line]
    return num_taken


@inlined_kernel
def _faultless(
    faults: NDArray[np.uint64], lines: NDArray[np.uint64], num_taken: np.uint64
) -> tuple[np.uint64, np.uint64]:
    """Return which of the lines taken, and so which lines of the group, have no fault."""
    are_good = _ZERO
    good_lines = _ZERO
    for i in range(num_taken):
        is_clean = np.uint64(faults[i] == _ZERO)
        are_good |= is_clean << np.uint64(i)
        good_lines |= is_clean << lines[i]
    return are_good, good_lines


@kernel
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

    A group of lines at a time: find its fields, set aside lines with another number of them, decode column
    by column while each line collects its faults, close the gaps of bad lines, write the validity bits.

    Args:
        text: (num_bytes + PADDING_BYTES,); ``text[num_bytes - 1]`` is a newline, the padding zeros.
        num_bytes: bytes of the lines.
        label: (num_lines,) out, 0 or 1; length 0 for a log without labels.
        dense: (num_dense, num_lines) out; 0 where missing.
        categories: (num_sparse, num_lines) out; 0 where missing.
        is_valid: (num_dense + num_sparse, ceil(num_lines / 8)) out, zeroed by the caller; bit i % 8 of
            byte i // 8 is 1 where sample i has the value (Arrow's validity bitmap).
        bad_lines: (capacity, 2) out; first byte and newline of each bad line, as many as fit.

    Returns:
        Samples written and bad lines found (which may exceed ``capacity``).
    """
    num_dense = np.uint64(dense.shape[0])
    num_features = np.uint64(dense.shape[0] + categories.shape[0])
    first_column = np.uint64(label.shape[0] > 0)
    num_fields = first_column + num_features
    after = np.empty(np.int64(GROUP * (num_fields + np.uint64(3))), np.uint32)
    newlines = np.empty(64, np.uint64)

    # Of each line taken, as `criteo_columns` says; ``lines`` is its number in the group.
    first_fields = np.empty(64, np.uint64)
    lines = np.empty(64, np.uint64)
    words = np.empty(64, np.uint64)
    lengths = np.empty(64, np.uint64)
    faults = np.empty(64, np.uint64)
    bits = np.empty(np.int64(num_features), np.uint64)  # of each feature: bit i is set where line i has it

    start = _ZERO
    num_samples = _ZERO
    num_bad = 0
    while start < np.uint64(num_bytes):
        num_lines = _find_fields(text, np.uint64(num_bytes), start, after, newlines)

        # Not one line fits: it has far too many fields, so it is bad, and is passed by.
        if num_lines == _ZERO:
            newline = start
            while text[newline] != _NEWLINE:
                newline += _ONE
            num_bad = _list_bad(bad_lines, num_bad, start, newline)
            start = newline + _ONE
            continue

        num_taken = _take_lines(newlines, num_lines, num_fields, lines, first_fields)
        faults[:] = _ZERO
        for column in range(num_fields):
            load_column(text, start, after, first_fields, num_taken, np.uint64(column), words, lengths)
            if column == num_fields - _ONE:
                leave_out_returns(text, start, after, first_fields, num_taken, num_fields, lengths)
            if column < first_column:
                decode_labels(words, lengths, num_taken, label, num_samples, faults)
                continue

            row = np.uint64(column) - first_column
            if row < num_dense:
                has_long = decode_dense(words, lengths, num_taken, dense, row, num_samples, faults)
                ask_for_next_group(dense, row, num_samples)
                # Read the long fields again, byte by byte.
                for i in range(num_taken if has_long else _ZERO):
                    if lengths[i] > _EIGHT:
                        first = start + np.uint64(after[first_fields[i] + np.uint64(column)])
                        long_number, is_good = long_integer(text, first, lengths[i])
                        dense[row, num_samples + np.uint64(i)] = long_number
                        faults[i] |= np.uint64(not is_good)
            else:
                feature = row - num_dense
                decode_categories(words, lengths, num_taken, categories, feature, num_samples, faults)
                ask_for_next_group(categories, feature, num_samples)
            bits[row] = present_of(lengths, num_taken)

        are_good, good_lines = _faultless(faults, lines, num_taken)
        num_good = count_bits(are_good)

        # List the bad lines, then close their gaps in every column and in the validity bits.
        if num_good < num_lines:
            num_bad = _list_bad_lines(start, after, newlines, num_lines, good_lines, bad_lines, num_bad)
            if first_column:
                _keep_labels(label, num_samples, num_taken, are_good)
            _keep_values(dense, num_samples, num_taken, are_good)
            _keep_values(categories, num_samples, num_taken, are_good)
            _keep_bits(bits, num_taken, are_good)

        _write_bits(bits, num_good, num_samples, is_valid)
        num_samples += num_good  # the next group overwrites what decoding left beyond these
        start += np.uint64(after[newlines[num_lines - _ONE]])
    return int(num_samples), num_bad
