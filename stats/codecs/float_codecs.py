"""Rows as float32, bfloat16 or float16: a sign, an exponent and fewer digits.

Promises, for finite numbers x: ``none`` keeps the bits; ``bf16`` is the nearest bfloat16, ties to even, so
|x - x'| <= 2**-8 |x| for normal x; ``fp16`` likewise, 2**-11 |x| from 2**-14 up to 65,504. What is larger
than the largest number of the format becomes that number and is counted: an infinity would spoil the row.
Stochastic rounding takes one of the two numbers around x, each as likely as it is near: unbiased, at most
twice these errors.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .random_bits import COLUMNS_OF_WORD, seed_of_row, word_of_columns
from .row_codec import MessageShape, RowMessage, refuse_infinite

_SIGN_OFF = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_LARGEST_BF16 = np.uint32(0x7F7F)
_LARGEST_FP16 = np.float32(65_504)
_LEAST_NORMAL_FP16 = np.float32(2.0**-14)


@kernel
def first_infinite_row(bits_ND: NDArray[np.uint32]) -> int:
    """Return the first row with an infinity or a NaN, -1 where there is none. Exact."""
    for row in range(bits_ND.shape[0]):
        # The greatest exponent tells: infinities and NaN have all of its bits.
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
    """Round float32 to a bfloat16 beside it; return how many would have become infinite."""
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
    """Round float32 to a float16 beside it, as float32; numbers beyond the largest stay beyond it."""
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
