"""Rows as float32, bfloat16 or float16: a sign, an exponent and fewer digits.

Promises, for finite numbers x: ``none`` keeps the bits; ``bf16`` is the nearest bfloat16, ties to even, so
|x - x'| <= 2**-8 |x| for normal x; ``fp16`` likewise, 2**-11 |x| from 2**-14 up to 65,504. What is larger
than the largest number of the format becomes that number and is counted: an infinity would spoil the row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .row_codec import MessageShape, RowMessage, refuse_infinite, refuse_stream

_SIGN_OFF = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_LARGEST_BF16 = np.uint32(0x7F7F)
_LARGEST_FP16 = np.float32(65_504)


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
        if rounded & np.uint32(0x7FFF) > _LARGEST_BF16:
            rounded = (rounded & np.uint32(0x8000)) | _LARGEST_BF16
            num_saturated += 1
        codes_N[i] = rounded
    return num_saturated


class Float32Codec:
    """Rows as they are."""

    name = "none"
    is_exact = True
    rounds_stochastically = False

    def num_bytes(self, shape: MessageShape) -> int:
        """Four bytes a number."""
        return 4 * shape.num_rows * shape.embedding_dim

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Copy the rows."""
        refuse_stream(self.name, message)
        refuse_infinite(first_infinite_row(message.rows_ND.view(np.uint32)))
        data.view(np.float32)[:] = message.rows_ND.reshape(-1)
        return 0

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Copy the rows back."""
        rows[:] = data.view(np.float32).reshape(rows.shape)


class _HalfCodec:
    """Half of the bytes of float32, by rounding to nearest."""

    is_exact = False
    rounds_stochastically = False

    def num_bytes(self, shape: MessageShape) -> int:
        """Two bytes a number."""
        return 2 * shape.num_rows * shape.embedding_dim


class Bfloat16Codec(_HalfCodec):
    """The upper half of each float32, rounded to nearest."""

    name = "bf16"

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows."""
        refuse_stream(self.name, message)
        bits_ND = message.rows_ND.view(np.uint32)
        refuse_infinite(first_infinite_row(bits_ND))
        return int(_to_bf16(bits_ND.reshape(-1), data.view(np.uint16)))

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Fill up with zeros."""
        codes = data.view(np.uint16).reshape(rows.shape)
        np.left_shift(codes, 16, out=rows.view(np.uint32), dtype=np.uint32)


class Float16Codec(_HalfCodec):
    """IEEE half precision, rounded to nearest, ties to even."""

    name = "fp16"

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; numbers beyond 65,504 become that number."""
        refuse_stream(self.name, message)
        refuse_infinite(first_infinite_row(message.rows_ND.view(np.uint32)))
        numbers = message.rows_ND.reshape(-1)
        clipped = np.clip(numbers, -_LARGEST_FP16, _LARGEST_FP16)
        data.view(np.float16)[:] = clipped
        return int(np.count_nonzero(clipped != numbers))

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Widen the numbers, exactly."""
        rows[:] = data.view(np.float16).reshape(rows.shape)
