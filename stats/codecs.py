"""Codecs of rows that cross between ranks, by their option names.

The bytes of a message depend on its rows, their embedding_dim and its tables, never on their values, so a
receiver knows the size of each message from the plan.

Floats, for finite x: ``none`` keeps the bits; ``bf16`` is the nearest bfloat16, ties to even, so
|x - x'| <= 2**-8 |x| for normal x; ``fp16`` likewise, 2**-11 |x| from 2**-14 up to 65,504. Numbers beyond the
largest of the format become that number and are counted: an infinity would spoil the row.

``int8`` is small integers times a scale per row. A row's scale s is its largest magnitude m over the largest
code, rounded up to bfloat16, so no number leaves the range. The exponent of bfloat16 is that of float32, so a
scale cannot underflow, whereas a gradient divided by the batch is often below the smallest float16. A message
is the scales of all rows, two bytes each, followed by their codes. For finite x, except for 2**-149 where
products are denormal:

    int8    x' = s q, |q| <= 127     |x - x'| <= s / 2 (1 + 2**-16),  s <= (1 + 2**-7) m / 127 + 2**-133

2**-133 is the smallest bfloat16.

Stochastic rounding takes one of the two neighbors of x, with probabilities that make it unbiased; its error
is at most twice the bound. Its random bits depend only on the message's stream, the row's key and the column,
so they are the same in every run.

`BoundedCodec` writes a fixed number of bits for each number, on the range of each table in a message. With lo
and hi the smallest and largest number of a table's rows in the message and the table's relative bound e,
numbers are rounded to one of L = ceil(1 / (2 e)) + 1 levels from lo to hi, in ceil(log2 L) bits. A message
holds lo and hi of each table as float32, 8 bytes, followed by the codes, each row in whole bytes. For finite
x:

    |x - x'| <= e (hi - lo) (1 + 2**-20) + u

where u is half a unit in the last place of the larger of |lo| and |hi|: x' itself is rounded to float32,
which matters where a table's rows are nearly equal. Stochastic rounding takes one of the two levels around x,
with probabilities that make it unbiased; its error is at most twice the bound.

In early training the bound is looser. With ``u`` the finished share of the early steps, from 0 to 1, it is
multiplied by ``2 - u``, and by 1 after them.

Source:
    Row-wise scales as in FBGEMM's and TorchRec's quantized communications.
    Feng et al., SC'24, arXiv 2407.04272, for a bound on each table's range; their codes are not of fixed
    width, so sizes must be exchanged first. The linear schedule and its constant of 2 are theirs, too; it
    ends after 65,536 steps of a run of 306,969.

Shapes: N rows of a message, D numbers of a row, T tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .id_tables import mix64, mix64_pair
from .kernel import inlined_kernel, kernel

# ruff: noqa: N815  (arrays carry shape suffixes)


class RowMessage(NamedTuple):
    """The rows of a message, table after table."""

    rows_ND: NDArray[np.float32]
    """C-contiguous; finite but for exact codecs."""
    starts_T1: NDArray[np.int64]
    """Beginning of each table's rows, and the end of the last."""
    keys_N: NDArray[np.int64]
    """A number for each row, the same wherever it is sent; random bits of its rounding depend on it."""
    stream: int | None = None
    """Seed of stochastic rounding, one for each step and rank; None rounds to nearest. Exact codecs round
    nothing."""

    @classmethod
    def of(cls, rows: NDArray[np.float32], *, stream: int | None = None) -> RowMessage:
        """Take rows (N, D) of one table, keys in their order."""
        starts = np.array([0, rows.shape[0]])
        return cls(np.ascontiguousarray(rows), starts, np.arange(rows.shape[0]), stream)


class MessageShape(NamedTuple):
    """The part of a message that both sides know."""

    starts_T1: NDArray[np.int64]
    embedding_dim: int

    @property
    def num_rows(self) -> int:
        return int(self.starts_T1[-1])

    @property
    def num_tables(self) -> int:
        return int(self.starts_T1.size) - 1


class NotFiniteError(ValueError):
    """A row of a message holds an infinity or a NaN; the only argument is its position in the message."""


class RowCodec(Protocol):
    """Turns rows into bytes and back."""

    name: str
    """Name of the codec in options."""
    is_exact: bool
    """Whether decoded rows have the bits of those encoded."""

    def num_bytes(self, shape: MessageShape) -> int:
        """Return the bytes of a message."""

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Write the bytes of a message.

        Args:
            message: its rows.
            data: (num_bytes,), written.

        Returns:
            How many numbers were too large for the code and became its largest.

        Raises:
            NotFiniteError: a row is not finite, and the codec is not exact.
        """

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Write the rows of a message, (num_rows, D), from its bytes."""


def shape_of(message: RowMessage) -> MessageShape:
    """Return what the receiver knows of a message."""
    return MessageShape(message.starts_T1, message.rows_ND.shape[1])


_COLUMNS_OF_WORD = 4
"""Columns that one hash of 64 bits serves, with 16 bits each."""


@inlined_kernel
def _seed_of_row(stream: np.uint64, key: np.int64) -> np.uint64:
    """Return the seed of a row: every rank rounds it alike."""
    return mix64_pair(np.uint64(stream), np.uint64(key))


@inlined_kernel
def _word_of_columns(seed: np.uint64, first_column: int) -> np.uint64:
    """Return the bits of `_COLUMNS_OF_WORD` columns, the lowest 16 for the first of them."""
    return mix64(np.uint64(seed) ^ np.uint64(first_column))


_SIGN_OFF = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_LARGEST_BF16 = np.uint32(0x7F7F)
_LARGEST_FP16 = np.float32(65_504)
_LEAST_NORMAL_FP16 = 2.0**-14


@kernel
def _largest_magnitudes(bits_ND: NDArray[np.uint32], tops_N: NDArray[np.uint32]) -> int:
    """Write the largest magnitude of each row, as its bits; return the first infinite row, or -1. Exact."""
    for row in range(bits_ND.shape[0]):
        top = np.uint32(0)
        # Magnitudes of floats have the order of their bits.
        for column in range(bits_ND.shape[1]):
            top = max(top, bits_ND[row, column] & _SIGN_OFF)
        tops_N[row] = top
        if top >= _INFINITY:
            return row
    return -1


def _finite_tops(message: RowMessage) -> NDArray[np.uint32]:
    """Return the largest magnitude of each row, as its bits; raise NotFiniteError where a row has none."""
    tops_N = np.empty(message.rows_ND.shape[0], np.uint32)
    position = _largest_magnitudes(message.rows_ND.view(np.uint32), tops_N)
    if position >= 0:
        raise NotFiniteError(position)
    return tops_N


def _rounding(message: RowMessage) -> tuple[np.uint64, bool]:
    """Return the seed of stochastic rounding, and whether there is any, as kernels take them."""
    return np.uint64(message.stream or 0), message.stream is not None


@kernel
def _round_stochastically(
    rows_ND: NDArray[np.float32],
    keys_N: NDArray[np.int64],
    stream: np.uint64,
    num_lost: np.uint32,
    least_normal: np.float32,
    rounded_ND: NDArray[np.float32],
) -> None:
    """Round float32 stochastically to ``num_lost`` digits less, 16 at most.

    Numbers below ``least_normal`` become multiples of 2**-24, the smallest float16.
    """
    bits_ND = rows_ND.view(np.uint32)
    rounded_bits_ND = rounded_ND.view(np.uint32)
    for row in range(rows_ND.shape[0]):
        seed = _seed_of_row(stream, keys_N[row])
        word = np.uint64(0)
        for column in range(rows_ND.shape[1]):
            if column % _COLUMNS_OF_WORD == 0:
                word = _word_of_columns(seed, column)
            random = np.uint32(word & np.uint64(0xFFFF))
            word >>= np.uint64(16)
            number = rows_ND[row, column]
            if abs(number) >= least_normal:
                # The digits that are lost carry into those that stay as often as they are large.
                bits = bits_ND[row, column] + (random >> (np.uint32(16) - num_lost))
                rounded_bits_ND[row, column] = (bits >> num_lost) << num_lost
            else:
                fraction = (np.float32(random) + np.float32(0.5)) * np.float32(2.0**-16)
                steps = np.floor(abs(number) * np.float32(2.0**24) + fraction)
                rounded_ND[row, column] = np.copysign(steps * np.float32(2.0**-24), number)


def _rounded_rows(message: RowMessage, num_lost: int, least_normal: float) -> NDArray[np.float32]:
    """Return the rows, rounded where their message is stochastically; raises NotFiniteError."""
    _finite_tops(message)
    if message.stream is None:
        return message.rows_ND
    rounded_ND = np.empty_like(message.rows_ND)
    _round_stochastically(
        message.rows_ND,
        message.keys_N,
        np.uint64(message.stream),
        np.uint32(num_lost),
        np.float32(least_normal),
        rounded_ND,
    )
    return rounded_ND


@kernel
def _to_bf16(bits_N: NDArray[np.uint32], codes_N: NDArray[np.uint16]) -> int:
    """Round float32 to the nearest bfloat16; return how many would have become infinite."""
    num_saturated = 0
    for i in range(bits_N.shape[0]):
        # Half of the last kept digit, less one where that digit is even: a tie then stays below it.
        added = np.uint32(0x7FFF) + ((bits_N[i] >> np.uint32(16)) & np.uint32(1))
        rounded = (bits_N[i] + added) >> np.uint32(16)
        # Rounding up may end at the code of infinity: the largest number takes its place.
        if rounded & np.uint32(0x7FFF) > _LARGEST_BF16:
            rounded = (rounded & np.uint32(0x8000)) | _LARGEST_BF16
            num_saturated += 1
        codes_N[i] = rounded
    return num_saturated


class Float32Codec:
    """Rows as they are."""

    name = "none"
    is_exact = True

    def num_bytes(self, shape: MessageShape) -> int:
        """Four bytes a number."""
        return 4 * shape.num_rows * shape.embedding_dim

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Copy the rows, infinities and NaN among them."""
        data.view(np.float32)[:] = message.rows_ND.reshape(-1)
        return 0

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Copy the rows back."""
        rows[:] = data.view(np.float32).reshape(rows.shape)


class _HalfCodec:
    """Half of the bytes of float32, by rounding to nearest."""

    is_exact = False

    def num_bytes(self, shape: MessageShape) -> int:
        """Two bytes a number."""
        return 2 * shape.num_rows * shape.embedding_dim


class Bfloat16Codec(_HalfCodec):
    """The upper half of each float32, rounded to nearest."""

    name = "bf16"

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows."""
        bits_N = _rounded_rows(message, 16, 0.0).view(np.uint32).reshape(-1)
        return int(_to_bf16(bits_N, data.view(np.uint16)))

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Fill up with zeros."""
        codes = data.view(np.uint16).reshape(rows.shape)
        np.left_shift(codes, 16, out=rows.view(np.uint32), dtype=np.uint32)


class Float16Codec(_HalfCodec):
    """IEEE half precision, rounded to nearest, ties to even."""

    name = "fp16"

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; numbers beyond 65,504 become that number."""
        numbers = _rounded_rows(message, 13, _LEAST_NORMAL_FP16).reshape(-1)
        # Clipped first: the conversion would make an infinity of what is far beyond the largest.
        clipped = np.clip(numbers, -_LARGEST_FP16, _LARGEST_FP16)
        data.view(np.float16)[:] = clipped
        return int(np.count_nonzero(clipped != numbers))

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Widen the numbers, exactly."""
        rows[:] = data.view(np.float16).reshape(rows.shape)


_SCALE_BYTES = 2
_LARGEST = np.finfo(np.float32).max
_LARGEST_INT8 = np.float32(127)
_UNIT = np.float32(2.0**-16)
"""Random numbers of stochastic rounding are odd multiples of half of it, so that their mean is 1/2."""


def _scale_codes(tops_N: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return the scale of each row as bits of bfloat16: its top over 127, rounded up, 0 for zeros."""
    quotients = (tops_N.view(np.float32) / _LARGEST_INT8).view(np.uint32)
    # The bits of positive floats are in their order, so a carry into the upper half rounds up.
    codes = ((quotients + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)
    # A quotient below all floats became 0, but its row has numbers: it gets the smallest scale.
    return np.where(tops_N > 0, np.maximum(codes, 1), 0).astype(np.uint16)


def _scales_of(codes_N: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return scales from their bits."""
    return (codes_N.astype(np.uint32) << np.uint32(16)).view(np.float32)


@kernel
def _to_int8(
    rows_ND: NDArray[np.float32],
    scales_N: NDArray[np.float32],
    keys_N: NDArray[np.int64],
    stream: np.uint64,
    is_stochastic: bool,
    codes_ND: NDArray[np.int8],
) -> None:
    """Round numbers over the scale of their row to the nearest integer, ties to even, or stochastically."""
    for row in range(rows_ND.shape[0]):
        # A row of zeros may have any divisor.
        divisor = np.float32(1) if scales_N[row] == 0 else scales_N[row]
        seed = _seed_of_row(stream, keys_N[row])
        word = np.uint64(0)
        for column in range(rows_ND.shape[1]):
            quotient = rows_ND[row, column] / divisor
            code = np.rint(quotient)
            if is_stochastic:
                if column % _COLUMNS_OF_WORD == 0:
                    word = _word_of_columns(seed, column)
                # With a random fraction added, flooring is stochastic rounding.
                random = (np.float32(word & np.uint64(0xFFFF)) + np.float32(0.5)) * _UNIT
                word >>= np.uint64(16)
                code = np.floor(quotient + random)
            codes_ND[row, column] = np.int8(min(max(code, -_LARGEST_INT8), _LARGEST_INT8))


@kernel
def _scaled_back(
    codes_ND: NDArray[np.int8], scales_N: NDArray[np.float32], rows_ND: NDArray[np.float32]
) -> None:
    for row in range(codes_ND.shape[0]):
        scale = scales_N[row]
        for column in range(codes_ND.shape[1]):
            number = scale * np.float32(codes_ND[row, column])
            # A scale rounded up may carry the largest numbers of float32 beyond it.
            rows_ND[row, column] = min(max(number, -_LARGEST), _LARGEST)


def _split(data: NDArray[np.uint8], num_rows: int) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Return the scales of a message, as bits, and its codes, (num_rows, bytes of a row)."""
    # Without rows nothing says how many bytes one would have, and reshape refuses to guess.
    end = _SCALE_BYTES * num_rows
    return data[:end].view(np.uint16), data[end:].reshape(num_rows, -1 if num_rows else 0)


class Int8Codec:
    """Whole numbers from -127 to 127 times a scale a row."""

    name = "int8"
    is_exact = False

    def num_bytes(self, shape: MessageShape) -> int:
        """A byte a number, and two a row."""
        return (shape.embedding_dim + _SCALE_BYTES) * shape.num_rows

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; nothing saturates."""
        scale_codes_N, codes_ND = _split(data, message.rows_ND.shape[0])
        scale_codes_N[:] = _scale_codes(_finite_tops(message))
        scales_N = _scales_of(scale_codes_N)
        _to_int8(message.rows_ND, scales_N, message.keys_N, *_rounding(message), codes_ND.view(np.int8))
        return 0

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Multiply codes by scales."""
        scale_codes_N, codes_ND = _split(data, shape.num_rows)
        _scaled_back(codes_ND.view(np.int8), _scales_of(scale_codes_N), rows)


RANGE_BYTES = 8
_LEAST_BOUND = 2.0**-16
"""Smaller bounds take as many bits as bfloat16."""


class _Levels(NamedTuple):
    """The levels of each table's numbers."""

    num_levels_T: NDArray[np.int64]
    num_bits_T: NDArray[np.int64]


@kernel
def _pack_levels(
    rows_ND: NDArray[np.float32],
    starts_T1: NDArray[np.int64],
    levels: _Levels,
    keys_N: NDArray[np.int64],
    stream: np.uint64,
    is_stochastic: bool,
    ranges_T2: NDArray[np.float32],
    packed: NDArray[np.uint8],
) -> None:
    """Write the range of each table and the codes of its rows, the first number in the lowest bits."""
    end = 0
    # Each table by itself: first the range of its numbers, then the codes of its rows.
    for table in range(starts_T1.shape[0] - 1):
        first = starts_T1[table]
        last = starts_T1[table + 1]
        low = np.float32(np.inf)
        high = np.float32(-np.inf)
        for row in range(first, last):
            for column in range(rows_ND.shape[1]):
                low = min(low, rows_ND[row, column])
                high = max(high, rows_ND[row, column])
        # A table without rows in the message has a range all the same, from 0 to 0.
        if first == last:
            low = np.float32(0)
            high = np.float32(0)
        ranges_T2[table, 0] = low
        ranges_T2[table, 1] = high
        # In float64: the range of float32 numbers may exceed the largest of them.
        highest = np.float64(levels.num_levels_T[table] - 1)
        num_bits = levels.num_bits_T[table]
        per_level = (np.float64(high) - np.float64(low)) / highest
        # Where all numbers are equal each is at level 0, and any spacing does.
        if per_level == 0:
            per_level = np.float64(1)
        # A row begins at a whole byte, so that rows can be read one by one.
        for row in range(first, last):
            seed = _seed_of_row(stream, keys_N[row])
            word = np.uint64(0)
            bits = np.uint64(0)
            num_waiting = 0
            for column in range(rows_ND.shape[1]):
                level = (np.float64(rows_ND[row, column]) - np.float64(low)) / per_level
                if is_stochastic:
                    if column % _COLUMNS_OF_WORD == 0:
                        word = _word_of_columns(seed, column)
                    # With a random fraction added, flooring is stochastic rounding.
                    random = (np.float64(word & np.uint64(0xFFFF)) + 0.5) * 2.0**-16
                    word >>= np.uint64(16)
                    level = min(np.floor(level + random), highest)
                else:
                    level = np.rint(level)
                bits |= np.uint64(level) << np.uint64(num_waiting)
                num_waiting += num_bits
                # Whole bytes leave as soon as they are full; what is left of a row fills its last one.
                while num_waiting >= 8:
                    packed[end] = bits & np.uint64(255)
                    bits >>= np.uint64(8)
                    num_waiting -= 8
                    end += 1
            if num_waiting:
                packed[end] = bits & np.uint64(255)
                end += 1


@kernel
def _unpack_levels(
    packed: NDArray[np.uint8],
    starts_T1: NDArray[np.int64],
    levels: _Levels,
    ranges_T2: NDArray[np.float32],
    rows_ND: NDArray[np.float32],
) -> None:
    begin = 0
    for table in range(starts_T1.shape[0] - 1):
        num_bits = levels.num_bits_T[table]
        mask = (np.uint64(1) << np.uint64(num_bits)) - np.uint64(1)
        low = np.float64(ranges_T2[table, 0])
        per_level = (np.float64(ranges_T2[table, 1]) - low) / (levels.num_levels_T[table] - 1)
        for row in range(starts_T1[table], starts_T1[table + 1]):
            # Each row begins at a whole byte: nothing is left over from the row before.
            bits = np.uint64(0)
            num_waiting = 0
            for column in range(rows_ND.shape[1]):
                # As many bytes as the next number needs.
                while num_waiting < num_bits:
                    bits |= np.uint64(packed[begin]) << np.uint64(num_waiting)
                    begin += 1
                    num_waiting += 8
                rows_ND[row, column] = np.float32(low + np.float64(bits & mask) * per_level)
                bits >>= np.uint64(num_bits)
                num_waiting -= num_bits


class BoundedCodec:
    """Levels on the range of each table.

    Args:
        bound: largest error as a share of the range, from 2**-16 to below 1/2.
        of_tables: bounds of some tables by their position, where they are others.

    Raises:
        ValueError: a bound is outside that.
    """

    is_exact = False

    def __init__(self, bound: float, of_tables: Mapping[int, float] | None = None) -> None:
        self.bound = bound
        self.of_tables = dict(of_tables or {})
        for each in (bound, *self.of_tables.values()):
            if not _LEAST_BOUND <= each < 0.5:
                raise ValueError(f"want a bound from 2**-16 to below 0.5, got {each}")
        self.name = f"bounded:{bound:g}"

    def num_bytes(self, shape: MessageShape) -> int:
        """Whole bytes a row, and 8 a table."""
        row_bytes_T = (self._levels(shape.num_tables).num_bits_T * shape.embedding_dim + 7) // 8
        return int(row_bytes_T @ np.diff(shape.starts_T1)) + RANGE_BYTES * shape.num_tables

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; nothing saturates."""
        _finite_tops(message)
        rows_ND, starts_T1, keys_N, _ = message
        ranges_T2, packed = self._split(data, starts_T1)
        levels = self._levels(starts_T1.size - 1)
        _pack_levels(rows_ND, starts_T1, levels, keys_N, *_rounding(message), ranges_T2, packed)
        return 0

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Turn levels into numbers."""
        ranges_T2, packed = self._split(data, shape.starts_T1)
        _unpack_levels(packed, shape.starts_T1, self._levels(shape.num_tables), ranges_T2, rows)

    def _levels(self, num_tables: int) -> _Levels:
        bounds = [self.of_tables.get(table, self.bound) for table in range(num_tables)]
        num_levels = [math.ceil(1 / (2 * bound)) + 1 for bound in bounds]
        # Levels count from 0, so the highest is one less than their number.
        num_bits = [(each - 1).bit_length() for each in num_levels]
        return _Levels(np.array(num_levels, np.int64), np.array(num_bits, np.int64))

    def _split(
        self, data: NDArray[np.uint8], starts_T1: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        end = RANGE_BYTES * (starts_T1.size - 1)
        return data[:end].view(np.float32).reshape(-1, 2), data[end:]


_FIXED: tuple[RowCodec, ...] = (
    Float32Codec(),
    Float16Codec(),
    Bfloat16Codec(),
    Int8Codec(),
)
CODEC_NAMES = tuple(codec.name for codec in _FIXED)
"""Names of the codecs without a setting; ``bounded:E`` has a bound."""


def codec_of(name: str) -> RowCodec:
    """Return the codec of a name, such as int8 or bounded:0.03.

    Raises:
        ValueError: there is none, or its bound is no number in range.
    """
    for codec in _FIXED:
        if codec.name == name:
            return codec
    kind, _, bound = name.partition(":")
    if kind != "bounded":
        raise ValueError(f"no codec {name!r}: want {', '.join(CODEC_NAMES)} or bounded:E")
    try:
        return BoundedCodec(float(bound))
    except ValueError as error:
        raise ValueError(f"codec {name!r}: {error}") from None


EARLY_SHARE = 0.2
"""Share of the steps of a run in which bounds are looser."""
_FACTOR = 2.0


def bound_factor(step: int, early_steps: int) -> float:
    """Return the factor of the bound in a step, counted from 0.

    Args:
        step: of the run.
        early_steps: steps in which the factor is above 1.
    """
    if step >= early_steps:
        return 1.0
    return _FACTOR - step / early_steps * (_FACTOR - 1)
