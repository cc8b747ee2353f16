"""Kernels that parse Criteo's text format to columns, every field checked.

A line is ``label, integers, categories`` between tabs: label 0 or 1, integers decimal within int32,
categories 8 hex digits (read as a uint32), a missing value an empty field, the end LF or CRLF.

Lines are parsed in groups of 64. One pass finds all tabs and newlines, 64 bytes at a time, so that no field
waits for the one before it. Then each column's 64 fields are decoded, eight characters at a time, by loops
that the compiler turns into vector instructions; their validity is one word. Bytes are compared as machine
words, by instructions that Numba does not expose: each such function is plain Python, which defines it, and
one or a few machine instructions when compiled.

Bounds: the buffer must end with a newline and PADDING_BYTES zeros after its last byte. Fields begin after
separators, so the look-ahead, 64 bytes at a separator and eight at a field, stays inside the padding. This
module only finds whether a line is valid; `text_parts` says what is wrong with it.

Functions of arrays are inlined, because each call would count references to its arrays. Arrays by line have
an entry for each parsed line of the group: ``first_fields`` has the entry of ``after`` of its first field,
``words`` the first eight bytes of its field of the current column, ``lengths`` the bytes of that field, and
``faults`` is nonzero if one of its fields is invalid.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from ...stats.kernel import inlined_kernel, kernel
from ...stats.simd import LINE_BYTES, address_of, count_bits, lowest_bit, prefetch, written_for

_TAB: Final = 9
_NEWLINE: Final = 10
CHUNK_BYTES: Final = 64
_WORD = ir.IntType(64)
_BYTE = ir.IntType(8)


def load8(text: NDArray[np.uint8], position: np.uint64) -> np.uint64:
    """Return eight bytes from ``position`` on as one word, the first lowest."""
    return np.uint64(sum(int(text[int(position) + i]) << (8 * i) for i in range(8)))


def find_separators(text: NDArray[np.uint8], position: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return a bit for each of CHUNK_BYTES bytes from ``position`` on: tab or newline, and newline alone."""
    separators = 0
    newlines = 0
    for i in range(CHUNK_BYTES):
        byte = text[int(position) + i]
        separators |= int(byte == _TAB or byte == _NEWLINE) << i
        newlines |= int(byte == _NEWLINE) << i
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
        for byte in (_TAB, _NEWLINE)
    )
    return context.make_tuple(builder, given.return_type, [builder.or_(tabs, newlines), newlines])


GROUP: Final = np.uint64(64)
"""Lines decoded together; the bits of a word."""

_RETURN: Final = 13
_MINUS: Final = np.uint64(45)
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = np.uint64(10)
_LINE_VALUES: Final = np.uint64(LINE_BYTES // 4)
"""Values of 4 bytes in a cache line."""
_WRITTEN_AHEAD: Final = np.uint64(2 * 64)
"""Prefetch distance for output (values): columns are larger than the cache."""

# Every number below is a uint64: Numba turns a uint64 and a Python integer into a float64.


_LOW_6: Final = np.uint64(63)

_LOW_32: Final = np.uint64(0xFFFFFFFF)
_EACH: Final = 0x0101010101010101
_EACH_0F, _EACH_19, _EACH_1F, _EACH_30 = (np.uint64(_EACH * byte) for byte in (0x0F, 0x19, 0x1F, 0x30))
_EACH_40, _EACH_46, _EACH_50, _EACH_76 = (np.uint64(_EACH * byte) for byte in (0x40, 0x46, 0x50, 0x76))
_EACH_80 = np.uint64(_EACH * 0x80)
"""Words with the same byte eight times, for arithmetic on eight characters at a time."""
_PAIRS: Final = np.uint64(0x00FF00FF00FF00FF)
_FOURS: Final = np.uint64(0x0000FFFF0000FFFF)
"""Every second byte, and every second pair of bytes: where two neighbors were joined into one number."""


@inlined_kernel
def _category(word: np.uint64, length: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Read a field of eight hex digits in either case, or an empty one; return its number and fault.

    The word holds eight characters, the first in the lowest byte; all are checked and converted together.
    The fault is nonzero if the field is invalid. A byte is compared by adding a number that reaches its
    highest bit from a given character on. The sum of a byte from 0x80 on may spoil its neighbor's; ``~word``
    rejects such a byte, and the field with it.
    """
    # Letters have the bit 0x40 and digits do not; with 0x20 set as well, letters are lower case.
    letter = word & _EACH_40
    lower = word | (letter >> _ONE)

    # Highest bits: from "0" on and not beyond "9"; from "a" on and not beyond "f".
    is_digit = (lower + _EACH_50) & ~(lower + _EACH_46)
    is_letter = (lower + _EACH_1F) & ~(lower + _EACH_19)
    not_hex = ((is_digit | is_letter) & ~word & _EACH_80) ^ _EACH_80

    # "0" to "9" end in their value and "a" to "f" in 1 to 6: nine more makes a nibble of either. Neighbors
    # are then joined, the first the higher: nibbles to bytes, bytes to pairs, pairs to the number.
    nibbles = (word & _EACH_0F) + (letter >> np.uint64(6)) * np.uint64(9)
    pairs = ((nibbles << np.uint64(4)) | (nibbles >> _EIGHT)) & _PAIRS
    fours = ((pairs << _EIGHT) | (pairs >> np.uint64(16))) & _FOURS
    number = ((fours << np.uint64(16)) | (fours >> np.uint64(32))) & _LOW_32

    # An empty field is 0 and good whatever bytes follow it: the mask is all bits or none, without a branch.
    is_there = _ZERO - np.uint64(length != _ZERO)
    return number & is_there, (not_hex | (length ^ _EIGHT)) & is_there


@inlined_kernel
def _integer(word: np.uint64, length: np.uint64) -> tuple[np.int64, np.uint64]:
    """Read a field of at most eight bytes, an integer or empty; return its value and fault.

    The fault is nonzero if the field is invalid. All digits are converted together. The result of a longer
    field is meaningless, see `long_integer`.

    Source:
        Lemire, "Quickly parsing eight digits" (2018).
    """
    sign = np.uint64((word & _LOW_8) == _MINUS)
    num_digits = length - sign
    is_empty = _ZERO - np.uint64(num_digits == _ZERO)  # all bits or none

    # "0" to "9" become 0 to 9. The sign is shifted out below, then what follows the field above, so that the
    # last digit is the highest byte and zeros precede the first.
    digits = (word ^ _EACH_30) >> (sign << np.uint64(3))
    digits = (digits << ((GROUP - (num_digits << np.uint64(3))) & _LOW_6)) & ~is_empty

    # Adding 0x76 carries into the highest bit of a byte from 10 on; a sign alone is no number either.
    fault = (((digits + _EACH_76) | digits) & _EACH_80) | (sign & is_empty)

    # Join neighbors: digits to numbers below 100, these to numbers below 10,000, these to the number.
    digits = (digits * np.uint64(10) + (digits >> _EIGHT)) & _PAIRS
    digits = (digits * np.uint64(100) + (digits >> np.uint64(16))) & _FOURS
    number = np.int64((digits * np.uint64(10000) + (digits >> np.uint64(32))) & _LOW_32)
    return (number ^ -np.int64(sign)) + np.int64(sign), fault  # two's complement where there is a sign


@kernel
def long_integer(text: NDArray[np.uint8], start: np.uint64, length: np.uint64) -> tuple[np.int32, bool]:
    """Read a field too long for `_integer`: its value, and whether it is at most ten digits within int32."""
    sign = np.uint64(text[start] == _MINUS)
    num_bytes = sign
    number = np.int64(0)
    while num_bytes < min(length, sign + _MAX_DIGITS) and 48 <= text[start + num_bytes] < 58:
        number = number * 10 + np.int64(text[start + num_bytes]) - 48
        num_bytes += _ONE
    if num_bytes != length or number > _INT32_MAX + np.int64(sign):
        return np.int32(0), False
    return np.int32(-number if sign else number), True


@inlined_kernel
def load_column(
    text: NDArray[np.uint8],
    start: np.uint64,
    after: NDArray[np.uint32],
    first_fields: NDArray[np.uint64],
    num_taken: np.uint64,
    column: np.uint64,
    words: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
) -> None:
    """Load the fields of a column: eight bytes each, and lengths, which give the bytes that count."""
    for i in range(num_taken):
        field = first_fields[i] + column
        first = np.uint64(after[field])
        words[i] = load8(text, start + first)
        lengths[i] = np.uint64(after[field + _ONE]) - first - _ONE


@inlined_kernel
def leave_out_returns(
    text: NDArray[np.uint8],
    start: np.uint64,
    after: NDArray[np.uint32],
    first_fields: NDArray[np.uint64],
    num_taken: np.uint64,
    num_fields: np.uint64,
    lengths: NDArray[np.uint64],
) -> None:
    """Shorten the last field of each line by the carriage return that it may end in."""
    for i in range(num_taken):
        last = start + np.uint64(after[first_fields[i] + num_fields]) - np.uint64(2)
        if lengths[i] != _ZERO and text[last] == _RETURN:
            lengths[i] -= _ONE


@inlined_kernel
def decode_labels(
    words: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    num_taken: np.uint64,
    label: NDArray[np.uint8],
    first: np.uint64,
    faults: NDArray[np.uint64],
) -> None:
    """Write labels from ``first`` on: one byte, "0" or "1"; any other leaves a bit above the lowest."""
    for i in range(num_taken):
        value = (words[i] ^ _EACH_30) & _LOW_8
        label[first + np.uint64(i)] = np.uint8(value)
        faults[i] |= (value >> _ONE) | (lengths[i] ^ _ONE)


@inlined_kernel
def decode_dense(
    words: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    num_taken: np.uint64,
    dense: NDArray[np.int32],
    row: np.uint64,
    first: np.uint64,
    faults: NDArray[np.uint64],
) -> bool:
    """Write dense values from ``first`` on; returns whether some are longer than eight bytes.

    Those are rare: this loop, which the compiler turns into vector instructions, ignores their faults.
    """
    are_long = _ZERO
    for i in range(num_taken):
        number, fault = _integer(words[i], lengths[i])
        is_long = _ZERO - np.uint64(lengths[i] > _EIGHT)
        dense[row, first + np.uint64(i)] = np.int32(number)
        faults[i] |= fault & ~is_long
        are_long |= is_long
    has_long: bool = are_long != _ZERO
    return has_long


@inlined_kernel
def decode_categories(
    words: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    num_taken: np.uint64,
    categories: NDArray[np.uint32],
    feature: np.uint64,
    first: np.uint64,
    faults: NDArray[np.uint64],
) -> None:
    """Write categories from ``first`` on: eight bytes or none."""
    for i in range(num_taken):
        category, fault = _category(words[i], lengths[i])
        categories[feature, first + np.uint64(i)] = np.uint32(category)
        faults[i] |= fault


@inlined_kernel
def present_of(lengths: NDArray[np.uint64], num_taken: np.uint64) -> np.uint64:
    """Return the validity of a column in one word: a field that is not empty has a value."""
    are_there = _ZERO
    for i in range(num_taken):
        are_there |= np.uint64(lengths[i] != _ZERO) << np.uint64(i)
    return are_there


@inlined_kernel
def ask_for_next_group(values: NDArray[np.int32 | np.uint32], row: np.uint64, first: np.uint64) -> None:
    """Prefetch the cache lines that a later group will write in a column."""
    ahead = row * np.uint64(values.shape[1]) + first + _WRITTEN_AHEAD
    for line in range(GROUP // _LINE_VALUES):
        prefetch(values, ahead + np.uint64(line) * _LINE_VALUES)


PADDING_BYTES: Final = CHUNK_BYTES

_UNROLLED: Final = np.uint64(8)
"""Separators noted at a time; entries beyond a chunk's last one are overwritten by the next chunk."""
_COUNTED_TOGETHER: Final = np.uint64(128)
"""Bytes whose newlines are counted in a byte: three times as fast as in 64 bits each."""
_TEXT_AHEAD: Final = np.uint64(4096)
"""Prefetch distance for text (bytes). A block and its columns are larger than the cache: 130 ns per line
without prefetching, 68 with both."""
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
        prefetch(text, position + _TEXT_AHEAD)

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

    # Of each line taken, as `criteo_kernel` says; ``lines`` is its number in the group.
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
