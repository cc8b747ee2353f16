"""Rows with a bounded error in a given number of bytes: each message chooses the bits of its tables.

With b bits a number, the levels of `bounded_codec` are at most r / (2**b - 1) apart on a range r, so the mean
square error of a table is in proportion to 4**-b. A message has n rows of each table, and the bits of its
tables make

    sum over tables of  w 4**-b    as small as can be, where    sum of  n row_bytes(b) + 8  <=  budget

by taking bits where they save most of the sum for a byte, from 2 bits on, up to 15 (reverse water-filling).
Every sample reads one row or bag of each table, so the error of a table counts alike however many of its rows
cross: tables of which few rows cross get more bits. Weights w say which errors matter more.

Both sides know the rows of each table, so they choose the same bits, and sizes follow from the shape as for
any codec. Promises: a message takes at most its budget, or what 2 bits take where that is more; and each
number keeps the promise of `bounded_codec` with the bound ``1 / (2 (2**b - 1))``.

Source:
    Reverse water-filling: Cover and Thomas, Elements of Information Theory (2006), section 10.3.3; the greedy
    choice for whole bits: Fox, Operations Research 14 (1966).

Shapes: T tables, C choices of bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .bounded_codec import RANGE_BYTES, BoundedCodec
from .row_codec import MessageShape, RowMessage, shape_of

LEAST_BITS, MOST_BITS = 2, 15
"""One bit would be a bound of half the range, and 16 take as many bytes as bfloat16."""
_FLOAT_BYTES = 4
_MOST_BYTES = 2**62
"""More than any message has, in 64 bits."""


@kernel
def _take_in_order(
    order: NDArray[np.int64],
    costs_TC: NDArray[np.int64],
    left: int,
    choices_T: NDArray[np.int64],
) -> None:
    """Take choices in their order while they fit; the first of a table that does not fit ends its own."""
    is_open_T = np.ones(choices_T.shape[0], np.bool_)
    for i in range(order.shape[0]):
        table = order[i] // costs_TC.shape[1]
        cost = costs_TC[table, order[i] % costs_TC.shape[1]]
        is_open_T[table] &= cost <= left
        if is_open_T[table]:
            left -= cost
            choices_T[table] += 1


def choose_bits(
    num_rows: NDArray[np.int64], weights: NDArray[np.float64], embedding_dim: int, budget_bytes: int
) -> NDArray[np.int64]:
    """Return the bits of each table's numbers, (num_tables,), from 2 to 15.

    Args:
        num_rows: (num_tables,), rows of the message; a table without any gets the fewest bits.
        weights: (num_tables,), above 0.
        embedding_dim: numbers of a row.
        budget_bytes: of the whole message, ranges of tables included.

    Error:
        The weighted sum of mean square errors is the least that any bits have that take as many bytes as were
        taken when the first choice did not fit; what is left then goes to choices that do.
    """
    bits_C, row_bytes_C = _useful_bits(embedding_dim)
    # The square error that a choice saves and the bytes it takes, from each number of bits to the next.
    saved_C = 4.0 ** -bits_C[:-1].astype(np.float64) - 4.0 ** -bits_C[1:].astype(np.float64)
    costs_TC = num_rows[:, None] * np.diff(row_bytes_C)
    per_byte_TC = weights[:, None] * saved_C / np.maximum(costs_TC, 1)
    # Savings fall from choice to choice faster than bytes do, so choices of a table stand in their order.
    order = np.argsort(-per_byte_TC.ravel(), kind="stable")
    order = order[(costs_TC > 0).ravel()[order]]
    least = int(num_rows.sum()) * int(row_bytes_C[0]) + RANGE_BYTES * num_rows.size
    choices_T = np.zeros(num_rows.size, np.int64)
    _take_in_order(order, costs_TC, budget_bytes - least, choices_T)
    found: NDArray[np.int64] = bits_C[choices_T]
    return found


def _useful_bits(embedding_dim: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of bits of which one more would take another byte a row, and the bytes of each."""
    bits = np.arange(LEAST_BITS, MOST_BITS + 1)
    row_bytes = (bits * embedding_dim + 7) // 8
    is_useful = np.append(np.diff(row_bytes) > 0, True)
    return bits[is_useful], row_bytes[is_useful]


class BudgetCodec:
    """Levels on the range of each table, as many as a message has bytes for.

    Args:
        budget: of a message: a share of its bytes as float32 where it is below 1, else bytes.
        weights: of the tables; by default alike.

    Raises:
        ValueError: a budget that is not above 0.
    """

    is_exact = False

    def __init__(self, budget: float, weights: NDArray[np.float64] | None = None) -> None:
        if not budget > 0:
            raise ValueError(f"want a budget above 0, got {budget:g}")
        self.budget = budget
        self.weights = weights
        self.name = f"bounded:budget={budget:g}"

    def num_bytes(self, shape: MessageShape) -> int:
        """At most the budget, or what the fewest bits take."""
        return self.levels_for(shape).num_bytes(shape)

    def encode(self, message: RowMessage, data: NDArray[np.uint8]) -> int:
        """Round the rows; nothing saturates."""
        return self.levels_for(shape_of(message)).encode(message, data)

    def decode(self, data: NDArray[np.uint8], shape: MessageShape, rows: NDArray[np.float32]) -> None:
        """Turn levels into numbers."""
        self.levels_for(shape).decode(data, shape, rows)

    def levels_for(self, shape: MessageShape) -> BoundedCodec:
        """Return the codec whose bounds a message of this shape has."""
        weights_T = np.ones(shape.num_tables) if self.weights is None else self.weights
        bits_T = choose_bits(
            np.diff(shape.starts_T1).astype(np.int64),
            weights_T,
            shape.embedding_dim,
            self.budget_bytes(shape),
        )
        bounds = 1 / (2 * (2.0**bits_T - 1))
        return BoundedCodec(float(bounds[0]), dict(enumerate(bounds.tolist())))

    def budget_bytes(self, shape: MessageShape) -> int:
        """Return the bytes that a message may take."""
        if self.budget >= 1:
            return int(min(self.budget, _MOST_BYTES))
        return int(self.budget * _FLOAT_BYTES * shape.num_rows * shape.embedding_dim)
