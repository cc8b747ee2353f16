"""The sum of all ranks' dense gradients, in the order of additions that one process has.

Each rank owns an equal slice of the numbers. It receives that slice from every rank, adds the W of them by
the binary tree over rank numbers, and sends the sum to all. So the bytes are those of a ring, 2 (W - 1) / W
of the gradient each way, and the order of additions depends on neither the back end nor the network.

Coded, each slice is rounded once before it is sent, and the sum once more before it returns; sums are of
float32, and all ranks, the owner too, take the rounded sum, so that their dense layers stay equal.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.plain_codecs import MessageShape, NotFiniteError, RowCodec, RowMessage
from ..model.tile_gradients import SUM_COLUMNS, add_losses, add_tiles
from ..ranks.ranks import Message, Ranks
from .coded_exchange import CodedExchange
from .row_messages import NotFiniteRowError

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
        """Replace a gradient, (num_numbers,) float32, by its sum over all ranks; return that of the losses.

        The gradient of a rank without samples is -0, which changes no number that it is added to.

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
        """Send every rank its slice of the gradient, and receive this rank's slice of all gradients."""
        ranks = self._ranks
        codec, stream = self._coded.dense("partials")
        # Messages have no part for the rank itself, whose slice stays as it is.
        others = [rank for rank in range(ranks.num_ranks) if rank != ranks.rank]
        own_WN = self._own_WN.numpy()
        # Blocks are numbered over the whole gradient, so each slice has random bits of its own.
        first_blocks = [rank * (self._slice // _BLOCK) for rank in range(ranks.num_ranks)]
        parts = [self._encoded(own_WN[rank], first_blocks[rank], codec, stream) for rank in others]
        sizes = [codec.num_bytes(self._shape()) * (rank != ranks.rank) for rank in range(ranks.num_ranks)]
        received = Message.unset(sizes)
        sent = Message(torch.from_numpy(np.concatenate(parts)), tuple(sizes))
        ranks.exchange(sent, received).wait()
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
