"""Rows of all widths as one message to each rank, as they are or in the codes of a step."""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ...stats.plain_codecs import MessageShape, NotFiniteError, RowMessage
from ..ranks.ranks import Message, Pending, Ranks
from .coded_exchange import Coding

_FLOAT_BYTES = 4
_PART_BYTES = 4
"""The codes of a width begin at a multiple of this, where numbers of 4 bytes may lie."""

Counts = tuple[int, ...]
"""Rows to or from each rank."""


class CrossingRows(NamedTuple):
    """The rows of one width that cross one way in a step, those of rank r behind those of rank r - 1."""

    counts: Counts
    keys_N: NDArray[np.int32]
    """Ascending for each rank."""

    def parts(self) -> Iterator[slice]:
        """The rows of each rank."""
        first = 0
        for count in self.counts:
            yield slice(first, first + count)
            first += count


class NotFiniteRowError(HotsetError):
    """A number that is to be sent in fewer bytes is an infinity or a NaN."""


class RowsUnderWay:
    """Rows that are being received.

    Args:
        pending: the message.
        sent: what goes out meanwhile; kept until all is there.
        received: where the message arrives.
        rows: of each width, those that arrive.
        coding: of the rows.
        layout: of each width.
    """

    def __init__(
        self,
        pending: Pending,
        sent: Message,
        received: Message,
        rows: Sequence[CrossingRows],
        coding: Coding,
        layout: Sequence[WidthLayout],
    ) -> None:
        self._pending = pending
        self._sent = sent
        self._received = received
        self._rows = rows
        self._coding = coding
        self._layout = layout

    def wait(self) -> list[NDArray[np.float32]]:
        """Return the rows of each width, (num_rows, embedding_dim), those of rank r behind those of r - 1."""
        self._pending.wait()
        data = self._received.data.numpy()
        if not self._coding.is_exact:
            return self._decoded(data)
        # With one width the message is the rows as they are.
        floats = data.view(np.float32)
        if len(self._layout) == 1:
            return [floats.reshape(-1, self._layout[0].embedding_dim)]
        parts: list[list[NDArray[np.float32]]] = [[] for _ in self._layout]
        first = 0
        # Of each rank those of the first width come first.
        for of_rank in zip(*(rows.counts for rows in self._rows), strict=True):
            for found, count, layout in zip(parts, of_rank, self._layout, strict=True):
                dim = layout.embedding_dim
                found.append(floats[first : first + count * dim].reshape(-1, dim))
                first += count * dim
        return [np.concatenate(found) for found in parts]

    def _decoded(self, data: NDArray[np.uint8]) -> list[NDArray[np.float32]]:
        found = [
            np.empty((rows.keys_N.size, layout.embedding_dim), np.float32)
            for rows, layout in zip(self._rows, self._layout, strict=True)
        ]
        first = 0
        # Both sides know the rows of each part, and with them where it ends.
        for _, width, part in _parts(self._rows):
            shape = self._layout[width].shape(self._rows[width].keys_N[part])
            codec = self._coding.codecs[width]
            num_bytes = codec.num_bytes(shape)
            codec.decode(data[first : first + num_bytes], shape, found[width][part])
            first += _padded(num_bytes)
        return found


class WidthLayout(NamedTuple):
    """The tables of a width, as a codec and an error need them."""

    embedding_dim: int
    first_key_F1: NDArray[np.int64]
    names: tuple[str, ...]
    """Names of the tables."""

    def shape(self, keys_N: NDArray[np.int32]) -> MessageShape:
        """Return the shape of a message of rows, ascending."""
        return MessageShape(np.searchsorted(keys_N, self.first_key_F1), self.embedding_dim)

    def name_of(self, key: int) -> str:
        """Return the table and the id of a row."""
        table = int(np.searchsorted(self.first_key_F1, key, side="right")) - 1
        return f"row {key - int(self.first_key_F1[table])} of table {self.names[table]}"


class RowMessages:
    """Sends rows of known numbers to every rank, and receives theirs.

    Args:
        ranks: all of them.
        layout: of each width.
    """

    def __init__(self, ranks: Ranks, layout: Sequence[WidthLayout]) -> None:
        self._ranks = ranks
        self._layout = tuple(layout)
        self.sent_bytes = 0
        """Bytes of the last exchange."""
        self.num_saturated = 0
        """Numbers of the last exchange that were too large for their code."""

    def send(
        self,
        rows: Sequence[NDArray[np.float32]],
        sent: Sequence[CrossingRows],
        received: Sequence[CrossingRows],
        coding: Coding,
    ) -> RowsUnderWay:
        """Start an exchange.

        Args:
            rows: of each width, those to rank r behind those to r - 1.
            sent: which rows these are.
            received: the rows that come from each rank.
            coding: of both.

        Raises:
            NotFiniteRowError: a row that is to be coded has an infinity or a NaN.
        """
        self.num_saturated = 0
        data = self._packed(rows, sent) if coding.is_exact else self._coded(rows, sent, coding)
        message = Message(torch.from_numpy(data), self._sizes(sent, coding))
        arriving = Message.unset(self._sizes(received, coding))
        self.sent_bytes = message.data.numel()
        pending = self._ranks.exchange(message, arriving)
        return RowsUnderWay(pending, message, arriving, received, coding, self._layout)

    def _sizes(self, rows: Sequence[CrossingRows], coding: Coding) -> tuple[int, ...]:
        sizes = [0] * self._ranks.num_ranks
        if coding.is_exact:
            for each, layout in zip(rows, self._layout, strict=True):
                for rank, count in enumerate(each.counts):
                    sizes[rank] += _FLOAT_BYTES * layout.embedding_dim * count
            return tuple(sizes)
        for rank, width, part in _parts(rows):
            shape = self._layout[width].shape(rows[width].keys_N[part])
            sizes[rank] += _padded(coding.codecs[width].num_bytes(shape))
        return tuple(sizes)

    def _packed(self, rows: Sequence[NDArray[np.float32]], sent: Sequence[CrossingRows]) -> NDArray[np.uint8]:
        # The rows of one width lie in the order of ranks already.
        if len(rows) == 1:
            return np.ascontiguousarray(rows[0]).reshape(-1).view(np.uint8)
        # Of several, the rows to a rank stand together, those of the first width before the others.
        cut = [[each[part] for part in of_width.parts()] for each, of_width in zip(rows, sent, strict=True)]
        parts = [part.reshape(-1) for of_rank in zip(*cut, strict=True) for part in of_rank]
        return np.concatenate(parts).view(np.uint8)

    def _coded(
        self, rows: Sequence[NDArray[np.float32]], sent: Sequence[CrossingRows], coding: Coding
    ) -> NDArray[np.uint8]:
        # Zeros fill the gaps behind the codes of a width.
        data = np.zeros(sum(self._sizes(sent, coding)), np.uint8)
        first = 0
        for rank, width, part in _parts(sent):
            keys_N = sent[width].keys_N[part]
            layout = self._layout[width]
            shape = layout.shape(keys_N)
            codec = coding.codecs[width]
            num_bytes = codec.num_bytes(shape)
            rows_ND = np.ascontiguousarray(rows[width][part])
            if coding.errors is not None:
                rows_ND = coding.errors[width].added(rows_ND, keys_N)
            message = RowMessage(rows_ND, shape.starts_T1, keys_N.astype(np.int64), coding.streams[width])
            try:
                self.num_saturated += codec.encode(message, data[first : first + num_bytes])
            except NotFiniteError as error:
                name = layout.name_of(int(keys_N[error.args[0]]))
                raise NotFiniteRowError(f"{name}, sent to rank {rank}, is not finite") from None
            # What the receiver will decode is decoded here too, to know its errors.
            if coding.errors is not None:
                arrived_ND = np.empty_like(rows_ND)
                codec.decode(data[first : first + num_bytes], shape, arrived_ND)
                coding.errors[width].keep(rows_ND, arrived_ND, keys_N)
            first += _padded(num_bytes)
        return data


def _parts(rows: Sequence[CrossingRows]) -> Iterator[tuple[int, int, slice]]:
    """Yield rank, width and rows of each part of a message that has any, in their order in it."""
    for rank, of_rank in enumerate(zip(*(each.parts() for each in rows), strict=True)):
        for width, part in enumerate(of_rank):
            if part.start < part.stop:
                yield rank, width, part


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _PART_BYTES) * _PART_BYTES
