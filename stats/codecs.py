"""Row codecs by their option names, and `BoundedCodec`, whose error has a bound.

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
    Feng et al., SC'24, arXiv 2407.04272, for a bound on each table's range; their codes are not of fixed
    width, so sizes must be exchanged first. The linear schedule and its constant of 2 are theirs, too; it
    ends after 65,536 steps of a run of 306,969.

Shapes: N rows, D numbers of a row, T tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .kernel import kernel
from .plain_codecs import (
    COLUMNS_OF_WORD,
    Bfloat16Codec,
    Float16Codec,
    Float32Codec,
    Int8Codec,
    MessageShape,
    RowCodec,
    RowMessage,
    first_infinite_row,
    refuse_infinite,
    seed_of_row,
    word_of_columns,
)

# ruff: noqa: N815  (arrays carry shape suffixes)


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
            seed = seed_of_row(stream, keys_N[row])
            word = np.uint64(0)
            bits = np.uint64(0)
            num_waiting = 0
            for column in range(rows_ND.shape[1]):
                level = (np.float64(rows_ND[row, column]) - np.float64(low)) / per_level
                if is_stochastic:
                    if column % COLUMNS_OF_WORD == 0:
                        word = word_of_columns(seed, column)
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
        refuse_infinite(first_infinite_row(message.rows_ND.view(np.uint32)))
        ranges_T2, packed = self._split(data, message.starts_T1)
        is_stochastic = message.stream is not None
        stream = np.uint64(message.stream or 0)
        levels = self._levels(message.starts_T1.size - 1)
        rows_ND = message.rows_ND
        starts_T1 = message.starts_T1
        keys_N = message.keys_N
        _pack_levels(rows_ND, starts_T1, levels, keys_N, stream, is_stochastic, ranges_T2, packed)
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
