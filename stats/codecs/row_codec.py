"""The interface of a codec of rows: the bytes of a message, known before the message is, and its promise.

The bytes of a message depend on its rows, their width and its tables alone, never on their values, so a
receiver knows the size of each message from the plan.

Shapes: N rows of a message, D numbers of a row, T tables.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class RowMessage(NamedTuple):
    """The rows of a message, table after table."""

    rows_ND: NDArray[np.float32]
    """C-contiguous, finite."""
    starts_T1: NDArray[np.int64]
    """Where the rows of each table begin, and the end of the last."""
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
    """As an option names it."""
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
