"""Codecs of float and int8 rows whose message size the plan gives.

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

Source:
    Row-wise scales as in FBGEMM's and TorchRec's quantized communications.

Shapes: N rows of a message, D numbers of a row, T tables.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .id_tables import mix64, mix64_pair
from .kernel import inlined_kernel, kernel

# ruff: noqa: N815  (arrays carry shape suffixes)


class RowMessage(NamedTuple):
    """The rows of a message, table after table."""

    rows_ND: NDArray[np.float32]
    """C-contiguous, finite."""
    starts_T1: NDArray[np.int64]
    """Beginning of each table's rows, and the end of the last."""
    keys_N: NDArray[np.int64]
    """A number for each row, the same wherever it is sent; random bits of its rounding depend on it."""
    stream: int | None = None
    """Seed of stochastic rounding, one for each step and rank; None rounds to nearest. Exact codecs round
    nothing."""

    @classmethod
    def of(
        cls, rows: NDArray[np.float32], *, starts: NDArray[np.int64] | None = None, stream: int | None = None
    ) -> RowMessage:
        """Take rows (N, D) of one table or of those that begin at ``starts``, keys in their order."""
        if starts is None:
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
            NotFiniteError: a row is not finite.
        """

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Write the rows of a message, (num_rows, D), from its bytes."""


def shape_of(message: RowMessage) -> MessageShape:
    """Return what the receiver knows of a message."""
    return MessageShape(message.starts_T1, message.rows_ND.shape[1])


def refuse_infinite(position: int) -> None:
    """Raise NotFiniteError where a kernel stopped at a row; -1: it did not."""
    if position >= 0:
        raise NotFiniteError(position)


COLUMNS_OF_WORD = 4
"""Columns that one hash of 64 bits serves, with 16 bits each."""


@inlined_kernel
def seed_of_row(stream: np.uint64, key: np.int64) -> np.uint64:
    """Return the seed of a row: every rank rounds it alike."""
    return mix64_pair(np.uint64(stream), np.uint64(key))


@inlined_kernel
def word_of_columns(seed: np.uint64, first_column: int) -> np.uint64:
    """Return the bits of `COLUMNS_OF_WORD` columns, the lowest 16 for the first of them."""
    return mix64(np.uint64(seed) ^ np.uint64(first_column))


_SIGN_OFF = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_LARGEST_BF16 = np.uint32(0x7F7F)
_LARGEST_FP16 = np.float32(65_504)
_LEAST_NORMAL_FP16 = np.float32(2.0**-14)


@kernel
def first_infinite_row(bits_ND: NDArray[np.uint32]) -> int:
    """Return the first row with an infinity or a NaN, -1 where there is none. Exact."""
    for row in range(bits_ND.shape[0]):
        # Infinities and NaN have all bits of the exponent.
        top = np.uint32(0)
        for column in range(bits_ND.shape[1]):
            top = max(top, bits_ND[row, column] & _SIGN_OFF)
        if top >= _INFINITY:
            return row
    return -1


@kernel
def _to_bf16(bits_N: NDArray[np.uint32], codes_N: NDArray[np.uint16]) -> int:
    """Round float32 to the nearest bfloat16, ties to even; return how many would have become infinite."""
    num_saturated = 0
    for i in range(bits_N.shape[0]):
        bits = bits_N[i]
        # Half of the last kept digit, less one where that digit is even: a tie then stays below it.
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        # Rounding up may end at the code of infinity: the largest number takes its place.
        if rounded & np.uint32(0x7FFF) > _LARGEST_BF16:
            rounded = (rounded & np.uint32(0x8000)) | _LARGEST_BF16
            num_saturated += 1
        codes_N[i] = rounded
    return num_saturated


@kernel
def _to_bf16_stochastically(
    bits_ND: NDArray[np.uint32], keys_N: NDArray[np.int64], stream: np.uint64, codes_ND: NDArray[np.uint16]
) -> int:
    """Round float32 stochastically to bfloat16; return how many would have become infinite."""
    num_saturated = 0
    for row in range(bits_ND.shape[0]):
        seed = seed_of_row(stream, keys_N[row])
        word = np.uint64(0)
        for column in range(bits_ND.shape[1]):
            if column % COLUMNS_OF_WORD == 0:
                word = word_of_columns(seed, column)
            # The digits that are lost carry into those that stay as often as they are large.
            rounded = (bits_ND[row, column] + np.uint32(word & np.uint64(0xFFFF))) >> np.uint32(16)
            word >>= np.uint64(16)
            if rounded & np.uint32(0x7FFF) > _LARGEST_BF16:
                rounded = (rounded & np.uint32(0x8000)) | _LARGEST_BF16
                num_saturated += 1
            codes_ND[row, column] = rounded
    return num_saturated


@kernel
def _to_fp16_stochastically(
    rows_ND: NDArray[np.float32],
    keys_N: NDArray[np.int64],
    stream: np.uint64,
    rounded_ND: NDArray[np.float32],
) -> None:
    """Round float32 stochastically to values of float16; numbers beyond its largest stay beyond it."""
    bits_ND = rows_ND.view(np.uint32)
    rounded_bits_ND = rounded_ND.view(np.uint32)
    for row in range(rows_ND.shape[0]):
        seed = seed_of_row(stream, keys_N[row])
        word = np.uint64(0)
        for column in range(rows_ND.shape[1]):
            if column % COLUMNS_OF_WORD == 0:
                word = word_of_columns(seed, column)
            random = np.uint32(word & np.uint64(0xFFFF))
            word >>= np.uint64(16)
            number = rows_ND[row, column]
            if abs(number) >= _LEAST_NORMAL_FP16:
                # 10 of 23 digits stay; of the random bits 13 are as many as are lost.
                bits = bits_ND[row, column] + (random >> np.uint32(3))
                rounded_bits_ND[row, column] = bits & np.uint32(0xFFFF_E000)
            else:
                # Below 2**-14 the numbers are multiples of 2**-24.
                fraction = (np.float32(random) + np.float32(0.5)) * np.float32(2.0**-16)
                steps = np.floor(abs(number) * np.float32(2.0**24) + fraction)
                rounded_ND[row, column] = np.copysign(steps * np.float32(2.0**-24), number)


class Float32Codec:
    """Rows as they are."""

    name = "none"
    is_exact = True

    def num_bytes(self, shape: MessageShape) -> int:
        """Four bytes a number."""
        return 4 * shape.num_rows * shape.embedding_dim

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Copy the rows."""
        refuse_infinite(first_infinite_row(message.rows_ND.view(np.uint32)))
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
        bits_ND = message.rows_ND.view(np.uint32)
        refuse_infinite(first_infinite_row(bits_ND))
        codes = data.view(np.uint16)
        if message.stream is None:
            return int(_to_bf16(bits_ND.reshape(-1), codes))
        stream = np.uint64(message.stream)
        return int(_to_bf16_stochastically(bits_ND, message.keys_N, stream, codes.reshape(bits_ND.shape)))

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Fill up with zeros."""
        codes = data.view(np.uint16).reshape(rows.shape)
        np.left_shift(codes, 16, out=rows.view(np.uint32), dtype=np.uint32)


class Float16Codec(_HalfCodec):
    """IEEE half precision, rounded to nearest, ties to even."""

    name = "fp16"

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; numbers beyond 65,504 become that number."""
        refuse_infinite(first_infinite_row(message.rows_ND.view(np.uint32)))
        rows_ND = message.rows_ND
        if message.stream is not None:
            rows_ND = np.empty_like(message.rows_ND)
            _to_fp16_stochastically(message.rows_ND, message.keys_N, np.uint64(message.stream), rows_ND)
        numbers = rows_ND.reshape(-1)
        # Clipped first: the conversion would make an infinity of what is far beyond the largest.
        clipped = np.clip(numbers, -_LARGEST_FP16, _LARGEST_FP16)
        data.view(np.float16)[:] = clipped
        return int(np.count_nonzero(clipped != numbers))

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Widen the numbers, exactly."""
        rows[:] = data.view(np.float16).reshape(rows.shape)


_SCALE_BYTES = 2
_LARGEST = np.finfo(np.float32).max
_UNIT = np.float32(2.0**-16)
"""Random numbers of stochastic rounding are odd multiples of half of it, so that their mean is 1/2."""


@kernel
def largest_magnitudes(bits_ND: NDArray[np.uint32], tops_N: NDArray[np.uint32]) -> int:
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


def scale_codes(tops_N: NDArray[np.uint32], largest: int) -> NDArray[np.uint16]:
    """Return the scale of each row as bits of bfloat16: ``top / largest`` rounded up, 0 for zeros."""
    quotients = (tops_N.view(np.float32) / np.float32(largest)).view(np.uint32)
    # The bits of positive floats are in their order, so a carry into the upper half rounds up.
    codes = ((quotients + np.uint32(0xFFFF)) >> np.uint32(16)).astype(np.uint16)
    # A quotient below all floats became 0, but its row has numbers: it gets the smallest scale.
    return np.where(tops_N > 0, np.maximum(codes, 1), 0).astype(np.uint16)


def scales_of(codes_N: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return scales from their bits."""
    return (codes_N.astype(np.uint32) << np.uint32(16)).view(np.float32)


@inlined_kernel
def _divisor(scale: np.float32) -> np.float32:
    """Return the divisor of a row's numbers; a row of zeros may have any."""
    return np.float32(1) if scale == 0 else scale


@inlined_kernel
def _rounded(quotient: np.float32, largest: np.float32) -> np.float32:
    """Round to the nearest integer, ties to even, within the codes."""
    return min(max(np.rint(quotient), -largest), largest)


@kernel
def _round_to_nearest(
    rows_ND: NDArray[np.float32],
    scales_N: NDArray[np.float32],
    largest: np.float32,
    codes_ND: NDArray[np.int8],
) -> None:
    for row in range(rows_ND.shape[0]):
        divisor = _divisor(scales_N[row])
        for column in range(rows_ND.shape[1]):
            codes_ND[row, column] = np.int8(_rounded(rows_ND[row, column] / divisor, largest))


@kernel
def _round_stochastically(
    rows_ND: NDArray[np.float32],
    scales_N: NDArray[np.float32],
    largest: np.float32,
    keys_N: NDArray[np.int64],
    stream: np.uint64,
    codes_ND: NDArray[np.int8],
) -> None:
    for row in range(rows_ND.shape[0]):
        divisor = _divisor(scales_N[row])
        seed = seed_of_row(stream, keys_N[row])
        word = np.uint64(0)
        for column in range(rows_ND.shape[1]):
            if column % COLUMNS_OF_WORD == 0:
                word = word_of_columns(seed, column)
            # With a random fraction added, flooring is stochastic rounding.
            random = (np.float32(word & np.uint64(0xFFFF)) + np.float32(0.5)) * _UNIT
            word >>= np.uint64(16)
            code = np.floor(rows_ND[row, column] / divisor + random)
            codes_ND[row, column] = np.int8(min(max(code, -largest), largest))


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


def _write_scales(message: RowMessage, largest: int, codes_N: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Write the scale of each row; returns the scales as numbers."""
    tops_N = np.empty(message.rows_ND.shape[0], np.uint32)
    refuse_infinite(largest_magnitudes(message.rows_ND.view(np.uint32), tops_N))
    codes_N[:] = scale_codes(tops_N, largest)
    return scales_of(codes_N)


def _write_codes(
    message: RowMessage, scales_N: NDArray[np.float32], largest: int, codes_ND: NDArray[np.int8]
) -> None:
    if message.stream is None:
        _round_to_nearest(message.rows_ND, scales_N, np.float32(largest), codes_ND)
        return
    stream = np.uint64(message.stream)
    _round_stochastically(message.rows_ND, scales_N, np.float32(largest), message.keys_N, stream, codes_ND)


class Int8Codec:
    """Whole numbers from -127 to 127 times a scale a row."""

    name = "int8"
    is_exact = False
    _largest = 127

    def num_bytes(self, shape: MessageShape) -> int:
        """A byte a number, and two a row."""
        return (shape.embedding_dim + _SCALE_BYTES) * shape.num_rows

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; nothing saturates."""
        scale_codes_N, codes_ND = _split(data, message.rows_ND.shape[0])
        scales_N = _write_scales(message, self._largest, scale_codes_N)
        _write_codes(message, scales_N, self._largest, codes_ND.view(np.int8))
        return 0

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Multiply codes by scales."""
        scale_codes_N, codes_ND = _split(data, shape.num_rows)
        _scaled_back(codes_ND.view(np.int8), scales_of(scale_codes_N), rows)
