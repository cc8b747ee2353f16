"""The fields of a column in a group of lines to values: eight characters at a time, and the faults of each.

Functions of arrays are inlined: each call of one would count references to its arrays. Arrays by line have an
entry for each line taken of the group: ``first_fields`` has the entry of ``after`` of its first field,
``words`` the first eight bytes of its field of the column at hand, ``lengths`` the bytes of that field, and
``faults`` is nonzero where one of its fields is at fault.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....stats.kernel import inlined_kernel, kernel
from ....stats.simd import LINE_BYTES, prefetch_of_cpu_prefetch
from ..byte_words import load8

GROUP: Final = np.uint64(64)
"""Lines decoded together; the bits of a word."""

_RETURN: Final = 13
_MINUS: Final = np.uint64(45)
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = np.uint64(10)
_LINE_VALUES: Final = np.uint64(LINE_BYTES // 4)
"""Values of 4 bytes in a cache line."""
_WRITTEN_AHEAD: Final = np.uint64(2 * 64)
"""How far ahead the cache is asked for what will be written, values: columns are larger than it is."""

# Every number below is a uint64: Numba turns a uint64 and a Python integer into a float64.
_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_EIGHT: Final = np.uint64(8)
_LOW_6: Final = np.uint64(63)
_LOW_8: Final = np.uint64(0xFF)
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
    """Read a field of eight hex digits, either case, or nothing: its number, and nonzero where it is neither.

    The word holds eight characters, the first in the lowest byte; all are checked and converted at once.
    A byte is compared by adding a number that reaches its highest bit from a given character on. The sum
    of a byte from 0x80 on may spoil its neighbor's; ``~word`` refuses such a byte, and the field with it.
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
    """Read a field of at most eight bytes: an integer or nothing, and nonzero where it is neither.

    All digits are converted at once. Of a longer field the result is meaningless, see `long_integer`.

    Source:
        Lemire, "Quickly parsing eight digits" (2018).
    """
    sign = np.uint64((word & _LOW_8) == _MINUS)
    num_digits = length - sign
    is_empty = _ZERO - np.uint64(num_digits == _ZERO)  # all bits or none

    # "0" to "9" become 0 to 9. The sign is shifted out below, then what follows the field above, so that the
    # last digit is the highest byte and zeros stand before the first.
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
    """Load the fields of a column: eight bytes each, and lengths, which tell what of them counts."""
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
    """Ask the cache for the lines that a later group will write in a column."""
    ahead = row * np.uint64(values.shape[1]) + first + _WRITTEN_AHEAD
    for line in range(GROUP // _LINE_VALUES):
        prefetch_of_cpu_prefetch(values, ahead + np.uint64(line) * _LINE_VALUES)
