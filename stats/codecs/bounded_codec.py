"""Rows with a bounded error: a fixed number of bits for each number, on the range of each table in a message.

With lo and hi the smallest and largest number of a table's rows in the message and a relative bound e,
numbers are rounded to one of L = ceil(1 / (2 e)) + 1 levels from lo to hi, in ceil(log2 L) bits. A message
holds lo and hi of each table as float32, 8 bytes, and behind them the codes, each row in whole bytes.
Promise, for finite x:

    |x - x'| <= e (hi - lo) (1 + 2**-20) + u

where u is half a unit in the last place of the larger of |lo| and |hi|: x' itself is rounded to float32,
which counts where a table's rows are nearly equal.

Source:
    A bound on each table's range is that of Feng et al., SC'24, arXiv 2407.04272, whose codes are not of
    fixed width, so that their sizes must cross before them.

Shapes: N rows, D numbers of a row, C bytes of codes, T tables.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .float_codecs import first_infinite_row
from .row_codec import MessageShape, RowMessage, refuse_infinite, refuse_stream

_RANGE_BYTES = 8
_LEAST_BOUND = 2.0**-16
"""Smaller bounds take as many bits as bfloat16."""


@kernel
def _pack_levels(
    rows_ND: NDArray[np.float32],
    starts_T1: NDArray[np.int64],
    num_levels: int,
    num_bits: int,
    ranges_T2: NDArray[np.float32],
    packed_NC: NDArray[np.uint8],
) -> None:
    """Write the range of each table and the codes of its rows, the first number in the lowest bits."""
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
        if first == last:
            low = np.float32(0)
            high = np.float32(0)
        ranges_T2[table, 0] = low
        ranges_T2[table, 1] = high
        # In float64: the range of float32 numbers may exceed the largest of them.
        per_level = (np.float64(high) - np.float64(low)) / (num_levels - 1)
        if per_level == 0:
            per_level = np.float64(1)
        # A row begins at a whole byte, so that rows can be read one by one.
        for row in range(first, last):
            bits = np.uint64(0)
            num_waiting = 0
            end = 0
            for column in range(rows_ND.shape[1]):
                level = np.rint((np.float64(rows_ND[row, column]) - np.float64(low)) / per_level)
                bits |= np.uint64(level) << np.uint64(num_waiting)
                num_waiting += num_bits
                # Whole bytes leave as soon as they are full; what is left of a row fills its last one.
                while num_waiting >= 8:
                    packed_NC[row, end] = bits & np.uint64(255)
                    bits >>= np.uint64(8)
                    num_waiting -= 8
                    end += 1
            if num_waiting:
                packed_NC[row, end] = bits & np.uint64(255)


@kernel
def _unpack_levels(
    packed_NC: NDArray[np.uint8],
    starts_T1: NDArray[np.int64],
    num_levels: int,
    num_bits: int,
    ranges_T2: NDArray[np.float32],
    rows_ND: NDArray[np.float32],
) -> None:
    mask = (np.uint64(1) << np.uint64(num_bits)) - np.uint64(1)
    for table in range(starts_T1.shape[0] - 1):
        low = np.float64(ranges_T2[table, 0])
        per_level = (np.float64(ranges_T2[table, 1]) - low) / (num_levels - 1)
        for row in range(starts_T1[table], starts_T1[table + 1]):
            # Each row begins at a whole byte: nothing is left over from the row before.
            bits = np.uint64(0)
            num_waiting = 0
            begin = 0
            for column in range(rows_ND.shape[1]):
                # As many bytes as the next number needs.
                while num_waiting < num_bits:
                    bits |= np.uint64(packed_NC[row, begin]) << np.uint64(num_waiting)
                    begin += 1
                    num_waiting += 8
                rows_ND[row, column] = np.float32(low + np.float64(bits & mask) * per_level)
                bits >>= np.uint64(num_bits)
                num_waiting -= num_bits


class BoundedCodec:
    """Levels on the range of each table.

    Args:
        bound: largest error as a share of the range, from 2**-16 to below 1/2.

    Raises:
        ValueError: the bound is outside that.
    """

    is_exact = False
    rounds_stochastically = False

    def __init__(self, bound: float) -> None:
        if not _LEAST_BOUND <= bound < 0.5:
            raise ValueError(f"want a bound from 2**-16 to below 0.5, got {bound}")
        self.name = f"bounded:{bound:g}"
        self.num_levels = math.ceil(1 / (2 * bound)) + 1
        self.num_bits = (self.num_levels - 1).bit_length()

    def num_bytes(self, shape: MessageShape) -> int:
        """Whole bytes a row, and 8 a table."""
        return self._row_bytes(shape.embedding_dim) * shape.num_rows + _RANGE_BYTES * shape.num_tables

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; nothing saturates."""
        refuse_stream(self.name, message)
        refuse_infinite(first_infinite_row(message.rows_ND.view(np.uint32)))
        ranges_T2, packed_NC = self._split(data, message.starts_T1, message.rows_ND.shape[1])
        _pack_levels(message.rows_ND, message.starts_T1, self.num_levels, self.num_bits, ranges_T2, packed_NC)
        return 0

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Turn levels into numbers."""
        ranges_T2, packed_NC = self._split(data, shape.starts_T1, shape.embedding_dim)
        _unpack_levels(packed_NC, shape.starts_T1, self.num_levels, self.num_bits, ranges_T2, rows)

    def _row_bytes(self, embedding_dim: int) -> int:
        return (self.num_bits * embedding_dim + 7) // 8

    def _split(
        self, data: NDArray[np.uint8], starts_T1: NDArray[np.int64], embedding_dim: int
    ) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        end = _RANGE_BYTES * (starts_T1.size - 1)
        packed_NC = data[end:].reshape(int(starts_T1[-1]), self._row_bytes(embedding_dim))
        return data[:end].view(np.float32).reshape(-1, 2), packed_NC
