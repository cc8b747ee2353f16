"""Rows of all widths as one message to each rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from ..ranks.ranks import Message, Pending, Ranks
from .width_exchange import Counts

_FLOAT_BYTES = 4


class RowsUnderWay:
    """Rows that are being received.

    Args:
        pending: the message.
        sent: what goes out meanwhile; kept until all is there.
        received: where the message arrives.
        counts: rows of each width from each rank.
        dims: floats of a row of each width.
    """

    def __init__(
        self,
        pending: Pending,
        sent: Message,
        received: Message,
        counts: Sequence[Counts],
        dims: Sequence[int],
    ) -> None:
        self._pending = pending
        self._sent = sent
        self._received = received
        self._counts = counts
        self._dims = dims

    def wait(self) -> list[NDArray[np.float32]]:
        """Return the rows of each width, (num_rows, embedding_dim), those of rank r behind those of r - 1."""
        self._pending.wait()
        floats = self._received.data.numpy().view(np.float32)
        # With one width the message is the rows as they are.
        if len(self._dims) == 1:
            return [floats.reshape(-1, self._dims[0])]
        parts: list[list[NDArray[np.float32]]] = [[] for _ in self._dims]
        first = 0
        # Of each rank those of the first width come first.
        for of_rank in zip(*self._counts, strict=True):
            for found, count, dim in zip(parts, of_rank, self._dims, strict=True):
                found.append(floats[first : first + count * dim].reshape(-1, dim))
                first += count * dim
        return [np.concatenate(found) for found in parts]


class RowMessages:
    """Sends rows of known numbers to every rank, and receives theirs.

    Args:
        ranks: all of them.
        dims: floats of a row of each width.
    """

    def __init__(self, ranks: Ranks, dims: Sequence[int]) -> None:
        self._ranks = ranks
        self._dims = tuple(dims)
        self.sent_bytes = 0
        """Bytes sent so far."""

    def send(
        self, rows: Sequence[NDArray[np.float32]], sent: Sequence[Counts], received: Sequence[Counts]
    ) -> RowsUnderWay:
        """Start an exchange.

        Args:
            rows: of each width, those to rank r behind those to r - 1.
            sent: how many of each width go to each rank.
            received: how many of each width come from each.
        """
        message = Message(torch.from_numpy(self._packed(rows, sent).view(np.uint8)), self._sizes(sent))
        arriving = Message.unset(self._sizes(received))
        self.sent_bytes += message.data.numel()
        pending = self._ranks.exchange(message, arriving)
        return RowsUnderWay(pending, message, arriving, received, self._dims)

    def _sizes(self, counts: Sequence[Counts]) -> tuple[int, ...]:
        return tuple(
            _FLOAT_BYTES * sum(count * dim for count, dim in zip(of_rank, self._dims, strict=True))
            for of_rank in zip(*counts, strict=True)
        )

    def _packed(self, rows: Sequence[NDArray[np.float32]], counts: Sequence[Counts]) -> NDArray[np.float32]:
        if len(rows) == 1:
            return np.ascontiguousarray(rows[0]).reshape(-1)
        cut = [np.split(each, np.cumsum(of_width)[:-1]) for each, of_width in zip(rows, counts, strict=True)]
        return np.concatenate([part.reshape(-1) for of_rank in zip(*cut, strict=True) for part in of_rank])
