"""Sends rows, their gradients and dense gradients between ranks.

The rows for a rank are one message, uncoded or in the codes of the step; the owner of a row adds its
gradients over ranks.

Dense gradients are added in the order of one process. Each rank owns an equal slice of the numbers. It
receives that slice from every rank, adds the W of them by the binary tree over rank numbers, and sends the
sum to all. So the bytes are those of a ring, 2 (W - 1) / W of the gradient each way, and the order of
additions depends on neither the back end nor the network. With a codec, each slice is rounded once before it
is sent, and the sum once more before it returns; sums are in float32, and all ranks, the owner too, use the
rounded sum, so that their dense layers stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.codecs import MessageShape, NotFiniteError, RowCodec, RowMessage
from ...stats.kernel import kernel
from ..dense.gradients import SUM_COLUMNS, add_losses, add_tiles
from ..rows.kernels import num_levels
from .codes import CodedExchange, Coding
from .ranks import Message, NotFiniteRowError, Ranks

# ruff: noqa: N815  (arrays carry shape suffixes)


_PART_BYTES = 4
"""The codes of a table group begin at a multiple of this, where numbers of 4 bytes may lie."""


class Crossing(NamedTuple):
    """Rows of one table group that cross one way, in rank order."""

    counts: tuple[int, ...]
    """Rows to or from each rank."""
    keys_N: NDArray[np.int32]
    """Ascending for each rank."""
    places_N: NDArray[np.int32]
    """Where each is among the rows that this rank serves or looks up."""

    def parts(self) -> Iterator[slice]:
        """The rows of each rank."""
        first = 0
        for count in self.counts:
            yield slice(first, first + count)
            first += count


class GroupLayout(NamedTuple):
    """The tables of a group, as a codec and an error need them."""

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
        layout: of each table group.
    """

    def __init__(self, ranks: Ranks, layout: Sequence[GroupLayout]) -> None:
        self._ranks = ranks
        self._layout = tuple(layout)
        self.sent_bytes = 0
        """Bytes of the last exchange."""
        self.num_saturated = 0
        """Numbers of the last exchange that were too large for their code."""

    def send(
        self,
        rows: Sequence[NDArray[np.float32]],
        sent: Sequence[Crossing],
        received: Sequence[Crossing],
        coding: Coding,
    ) -> Callable[[], list[NDArray[np.float32]]]:
        """Start an exchange; return what waits for the rows of each table group, in the order of ranks.

        Args:
            rows: of each table group, in the order of the ranks they go to.
            sent: which rows these are.
            received: the rows that come from each rank.
            coding: of both.

        Raises:
            NotFiniteRowError: a row that is to be coded has an infinity or a NaN.
        """
        self.num_saturated = 0
        data = self._coded(rows, sent, coding)
        message = Message(torch.from_numpy(data), self._sizes(sent, coding))
        arriving = Message.unset(self._sizes(received, coding))
        self.sent_bytes = message.data.numel()
        wait = self._ranks.exchange(message, arriving)
        # What goes out is kept until all is there.
        return lambda: self._received(wait, message, arriving, received, coding)

    def _received(
        self,
        wait: Callable[[], None],
        _sent: Message,
        arriving: Message,
        rows: Sequence[Crossing],
        coding: Coding,
    ) -> list[NDArray[np.float32]]:
        wait()
        data = arriving.data.numpy()
        found = [
            np.empty((of_group.keys_N.size, layout.embedding_dim), np.float32)
            for of_group, layout in zip(rows, self._layout, strict=True)
        ]
        first = 0
        # Both sides know the rows of each part, and with them where it ends.
        for _, group, part in _parts(rows):
            shape = self._layout[group].shape(rows[group].keys_N[part])
            codec = coding.codec(group)
            num_bytes = codec.num_bytes(shape)
            codec.decode(data[first : first + num_bytes], shape, found[group][part])
            first += _padded(num_bytes)
        return found

    def _sizes(self, rows: Sequence[Crossing], coding: Coding) -> tuple[int, ...]:
        sizes = [0] * self._ranks.num_ranks
        for rank, group, part in _parts(rows):
            shape = self._layout[group].shape(rows[group].keys_N[part])
            sizes[rank] += _padded(coding.codec(group).num_bytes(shape))
        return tuple(sizes)

    def _coded(
        self, rows: Sequence[NDArray[np.float32]], sent: Sequence[Crossing], coding: Coding
    ) -> NDArray[np.uint8]:
        errors = None if coding.is_exact else coding.errors
        streams = coding.streams or [None] * len(rows)
        # Zeros pad the codes of a table group.
        data = np.zeros(sum(self._sizes(sent, coding)), np.uint8)
        first = 0
        for rank, group, part in _parts(sent):
            keys_N = sent[group].keys_N[part]
            layout = self._layout[group]
            shape = layout.shape(keys_N)
            codec = coding.codec(group)
            num_bytes = codec.num_bytes(shape)
            rows_ND = np.ascontiguousarray(rows[group][part])
            if errors is not None:
                rows_ND = errors[group].added(rows_ND, keys_N)
            message = RowMessage(rows_ND, shape.starts_T1, keys_N.astype(np.int64), streams[group])
            try:
                self.num_saturated += codec.encode(message, data[first : first + num_bytes])
            except NotFiniteError as error:
                name = layout.name_of(int(keys_N[error.args[0]]))
                raise NotFiniteRowError(f"{name}, sent to rank {rank}, is not finite") from None
            # What the receiver will decode is decoded here too, to know its errors.
            if errors is not None:
                arrived_ND = np.empty_like(rows_ND)
                codec.decode(data[first : first + num_bytes], shape, arrived_ND)
                errors[group].keep(rows_ND, arrived_ND, keys_N)
            first += _padded(num_bytes)
        return data


def _parts(rows: Sequence[Crossing]) -> Iterator[tuple[int, int, slice]]:
    """Yield rank, table group and rows of each non-empty part of a message.

    They come in their order in the message.
    """
    for rank, of_rank in enumerate(zip(*(each.parts() for each in rows), strict=True)):
        for group, part in enumerate(of_rank):
            if part.start < part.stop:
                yield rank, group, part


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _PART_BYTES) * _PART_BYTES


def sum_over_ranks(places_SW: NDArray[np.int32], partials_ND: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sum of each row over ranks, (num_served, embedding_dim); as `sum_partials`."""
    levels = num_levels(places_SW.shape[1])
    sums_SD = np.empty((places_SW.shape[0], partials_ND.shape[1]), np.float32)
    stack_LD = np.empty((levels, partials_ND.shape[1]), np.float32)
    sum_partials(places_SW, partials_ND, sums_SD, stack_LD, np.empty(levels, np.int64))
    return sums_SD


@kernel
def sum_partials(
    places_SW: NDArray[np.int32],
    partials_ND: NDArray[np.float32],
    sums_SD: NDArray[np.float32],
    stack_LD: NDArray[np.float32],
    ranks_L: NDArray[np.int64],
) -> None:
    """Add the gradients of each row by the binary tree over ranks.

    Ranks without one are skipped, and a row without any gets zeros.

    Args:
        places_SW: (num_served, num_ranks); where the gradient of each rank is, -1 where it has none.
        partials_ND: (num_partials, embedding_dim).
        sums_SD: (num_served, embedding_dim), written.
        stack_LD: (2 + log2(num_ranks), embedding_dim), workspace: sums of subtrees.
        ranks_L: (as many,), workspace: a rank of each.

    Error:
        ``ceil(log2(num_ranks)) * 2**-24`` of the sum of magnitudes.

    Source:
        Higham, Accuracy and Stability of Numerical Algorithms (2002), section 4.2.
    """
    dim = sums_SD.shape[1]
    for row in range(places_SW.shape[0]):
        depth = 0
        for rank in range(places_SW.shape[1]):
            place = places_SW[row, rank]
            if place < 0:
                continue
            # Of two subtrees that are nearer to each other than to this rank, none grows any more.
            while depth > 1 and ranks_L[depth - 2] ^ ranks_L[depth - 1] < ranks_L[depth - 1] ^ rank:
                depth -= 1
                for column in range(dim):
                    stack_LD[depth - 1, column] += stack_LD[depth, column]
            # The gradient of this rank is a whole subtree, on top of the stack.
            for column in range(dim):
                stack_LD[depth, column] = partials_ND[place, column]
            ranks_L[depth] = rank
            depth += 1
        # No rank follows: the subtrees that are left are joined from the last to the first.
        while depth > 1:
            depth -= 1
            for column in range(dim):
                stack_LD[depth - 1, column] += stack_LD[depth, column]
        for column in range(dim):
            sums_SD[row, column] = stack_LD[0, column] if depth else np.float32(0)


_LOSS_BYTES = 8
_BLOCK = 128
"""Numbers that share a scale where a gradient is coded."""


class DenseSums:
    """Sums gradients of one size over all ranks.

    Args:
        ranks: that sum.
        coded: codecs and counts of what crosses.
        num_numbers: of a gradient.
    """

    def __init__(self, ranks: Ranks, coded: CodedExchange, num_numbers: int) -> None:
        self._ranks = ranks
        self._coded = coded
        self._num_numbers = num_numbers
        num_ranks = ranks.num_ranks
        # Equal slices of whole blocks, the last filled up with zeros that nobody reads.
        self._slice = -(-num_numbers // (num_ranks * _BLOCK)) * _BLOCK
        self._own_WN = torch.zeros(num_ranks, self._slice)
        self._slices_WN = torch.zeros(num_ranks, self._slice)
        """The slice of this rank, from every rank."""
        self._workspace_LC = torch.empty(max((num_ranks + 1) // 2, 1), SUM_COLUMNS).numpy()
        self._sums_N = torch.empty(self._slice)

    def add(self, gradient_N: torch.Tensor, loss: float) -> float:
        """Replace a gradient by its sum over all ranks; return the losses' sum.

        The gradient is (num_numbers,) float32. The gradient of a rank without samples is -0, which changes no
        number that it is added to.

        Raises:
            NotFiniteRowError: a gradient that is to be coded has an infinity or a NaN.
        """
        # A lone rank has nothing to add, and rounds nothing.
        if self._ranks.num_ranks == 1:
            return loss
        # Each rank gets its slice of all gradients, and adds it up.
        self._own_WN.view(-1)[: self._num_numbers] = gradient_N
        with self._coded.clocked("dense"):
            self._exchange_slices()
        slices_WN = self._slices_WN.numpy()
        add_tiles(slices_WN, 0, self._slice, self._workspace_LC, self._sums_N.numpy())
        # The losses travel along, each as the bits of a float64.
        own_loss = torch.tensor([loss], dtype=torch.float64).view(torch.uint8)
        codec, stream = self._coded.dense("sums")
        with self._coded.clocked("dense"):
            sums = torch.from_numpy(self._encoded(self._sums_N.numpy(), 0, codec, stream))
            found = self._ranks.gather(torch.cat([sums, own_loss]))
            self._coded.counts.sent_bytes["dense"] += (sums.numel() + _LOSS_BYTES) * (
                self._ranks.num_ranks - 1
            )
            # The owner decodes its own sum too, so that all ranks have the same numbers.
            whole_WN = torch.empty_like(self._own_WN)
            for part, sums_N in zip(found, whole_WN, strict=True):
                self._decode(part[:-_LOSS_BYTES].numpy(), codec, sums_N.numpy())
        gradient_N[:] = whole_WN.view(-1)[: self._num_numbers]
        return add_losses([part[-_LOSS_BYTES:].clone().view(torch.float64).item() for part in found])

    def _exchange_slices(self) -> None:
        """Send every rank its slice of the gradient, and receive this rank's slices."""
        ranks = self._ranks
        codec, stream = self._coded.dense("partials")
        # Messages have no part for the rank itself, whose slice stays as it is.
        others = [rank for rank in range(ranks.num_ranks) if rank != ranks.rank]
        own_WN = self._own_WN.numpy()
        # Blocks are numbered over the whole gradient, so slices do not share random bits.
        first_blocks = [rank * (self._slice // _BLOCK) for rank in range(ranks.num_ranks)]
        parts = [self._encoded(own_WN[rank], first_blocks[rank], codec, stream) for rank in others]
        sizes = [codec.num_bytes(self._shape()) * (rank != ranks.rank) for rank in range(ranks.num_ranks)]
        received = Message.unset(sizes)
        sent = Message(torch.from_numpy(np.concatenate(parts)), tuple(sizes))
        ranks.exchange(sent, received)()
        self._coded.counts.sent_bytes["dense"] += sent.data.numel()
        arrived = received.parts()
        for rank in others:
            self._decode(arrived[rank].numpy(), codec, self._slices_WN[rank].numpy())
        self._slices_WN[ranks.rank] = self._own_WN[ranks.rank]

    def _shape(self) -> MessageShape:
        return MessageShape(np.array([0, self._slice // _BLOCK]), _BLOCK)

    def _encoded(
        self, numbers: NDArray[np.float32], first_block: int, codec: RowCodec, stream: int
    ) -> NDArray[np.uint8]:
        if codec.is_exact:
            return numbers.view(np.uint8)
        # To a codec the blocks of a slice are the rows of one table.
        shape = self._shape()
        keys = np.arange(first_block, first_block + shape.num_rows)
        message = RowMessage(numbers.reshape(-1, _BLOCK), shape.starts_T1, keys, stream)
        data = np.empty(codec.num_bytes(shape), np.uint8)
        try:
            self._coded.counts.num_saturated += codec.encode(message, data)
        except NotFiniteError:
            step = self._coded.step + 1
            raise NotFiniteRowError(
                f"the gradient of the dense layers is not finite at step {step}"
            ) from None
        return data

    def _decode(self, data: NDArray[np.uint8], codec: RowCodec, numbers: NDArray[np.float32]) -> None:
        if codec.is_exact:
            numbers[:] = data.view(np.float32)
        else:
            codec.decode(data, self._shape(), numbers.reshape(-1, _BLOCK))
