"""The sum of all ranks' dense gradients, in the order of additions that one process has.

Each rank owns an equal slice of the numbers. It receives that slice from every rank, adds the W of them by
the binary tree over rank numbers, and sends the sum to all. So the bytes are those of a ring, 2 (W - 1) / W
of the gradient each way, and the order of additions depends on neither the back end nor the network.
"""

from __future__ import annotations

import torch

from ..model.sample_tree import SUM_COLUMNS, add_losses, add_tiles
from ..ranks.ranks import Message, Ranks

_FLOAT_BYTES = 4


class DenseSums:
    """Sums gradients of one size over all ranks.

    Args:
        ranks: that sum.
        num_numbers: of a gradient.
    """

    def __init__(self, ranks: Ranks, num_numbers: int) -> None:
        self._ranks = ranks
        self._num_numbers = num_numbers
        num_ranks = ranks.num_ranks
        # Equal slices, the last filled up with zeros that nobody reads.
        self._slice = -(-num_numbers // num_ranks)
        self._own_WN = torch.zeros(num_ranks, self._slice)
        self._others_WN = torch.zeros(num_ranks, self._slice)
        self._workspace_LC = torch.empty(max((num_ranks + 1) // 2, 1), SUM_COLUMNS).numpy()
        self._sums_N = torch.empty(self._slice)

    def add(self, gradient_N: torch.Tensor, loss: float) -> float:
        """Replace a gradient, (num_numbers,) float32, by its sum over all ranks; return that of the losses.

        The gradient of a rank without samples is -0, which changes no number that it is added to.
        """
        ranks = self._ranks
        if ranks.num_ranks == 1:
            return loss
        self._own_WN.view(-1)[: self._num_numbers] = gradient_N
        sizes = [_FLOAT_BYTES * self._slice * (rank != ranks.rank) for rank in range(ranks.num_ranks)]
        # Messages have no part for the rank itself: its slice is taken out before, put in after.
        sent = self._without_own(self._own_WN)
        received = Message.unset(sizes)
        ranks.exchange(Message(sent.view(torch.uint8), tuple(sizes)), received).wait()
        others = received.data.view(torch.float32).view(-1, self._slice)
        self._others_WN[: ranks.rank] = others[: ranks.rank]
        self._others_WN[ranks.rank] = self._own_WN[ranks.rank]
        self._others_WN[ranks.rank + 1 :] = others[ranks.rank :]
        add_tiles(self._others_WN.numpy(), 0, self._slice, self._workspace_LC, self._sums_N.numpy())
        # The losses travel along, each as the bits of a float64.
        own_loss = torch.tensor([loss], dtype=torch.float64).view(torch.float32)
        found = ranks.gather(torch.cat([self._sums_N, own_loss]))
        gradient_N[:] = torch.cat([part[: self._slice] for part in found])[: self._num_numbers]
        return add_losses([part[self._slice :].clone().view(torch.float64).item() for part in found])

    def _without_own(self, slices_WN: torch.Tensor) -> torch.Tensor:
        """The slices of all other ranks, one behind the other."""
        rank = self._ranks.rank
        return torch.cat([slices_WN[:rank].reshape(-1), slices_WN[rank + 1 :].reshape(-1)])
