"""Rows as small whole numbers times one scale a row.

A row's scale s is its largest magnitude m over the largest code, rounded up to bfloat16, so no number leaves
the range. The exponent of bfloat16 is that of float32, so a scale cannot underflow, where a gradient divided
by the batch often lies below the smallest float16. A message is the scales of all rows, two bytes each, and
behind them their codes. Promises, for finite x, but for 2**-149 where products are denormal:

    int8    x' = s q, |q| <= 127     |x - x'| <= s / 2 (1 + 2**-16),  s <= (1 + 2**-7) m / 127 + 2**-133

2**-133 is the smallest bfloat16. Stochastic rounding takes the next code up or down, each as likely as it is
near, with the bits of `random_bits`: unbiased, at most twice these errors, and the same in every run.

Source:
    Row-wise scales as in FBGEMM's and TorchRec's quantized communications.

Shapes: N rows, D numbers of a row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import inlined_kernel, kernel
from .random_bits import COLUMNS_OF_WORD, seed_of_row, word_of_columns
from .row_codec import MessageShape, RowMessage, refuse_infinite

_SIGN_OFF = np.uint32(0x7FFF_FFFF)
_INFINITY = np.uint32(0x7F80_0000)
_SCALE_BYTES = 2
_LARGEST = np.finfo(np.float32).max
_UNIT = np.float32(2.0**-16)
"""Random numbers of stochastic rounding are odd multiples of half of it, so that their mean is 1/2."""


@kernel
def largest_magnitudes(bits_ND: NDArray[np.uint32], tops_N: NDArray[np.uint32]) -> int:
    """Write the largest magnitude of each row, as its bits; return the first infinite row, or -1. Exact."""
    for row in range(bits_ND.shape[0]):
        top = np.uint32(0)
        # Magnitudes of floats stand in the order of their bits.
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
    """Return what the numbers of a row are divided by: a row of zeros has no scale, and any does for it."""
    return np.float32(1) if scale == 0 else scale


@inlined_kernel
def _rounded(quotient: np.float32, largest: np.float32) -> np.float32:
    """Round to the nearest whole number, ties to even, within the codes."""
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
            # With a random fraction added, flooring takes the next code as often as it is near.
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
