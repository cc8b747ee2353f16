"""Gradients of the dense weights, one vector per tile of a batch, and their sum by the tree.

Tiles of a share are added first, then the shares; see `data.batch_shares`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from ..data.batch_shares import BatchShares
from ..work_threads import WorkThreads
from .sample_tree import SUM_COLUMNS, add_losses, add_tiles, tile_bounds

_SUM_PIECE = 16 * SUM_COLUMNS
"""Columns of the gradient that a thread adds up at a time."""


class BatchTiles:
    """The tiles of a batch, share by share.

    Args:
        shares: of the batch.
        num_samples: those of this rank.
    """

    def __init__(self, shares: BatchShares, num_samples: int) -> None:
        self.bounds: list[tuple[int, int]] = []
        """The first and the last-plus-one sample of each tile."""
        self.counts: list[int] = []
        """Tiles of each share that is not empty."""
        for start, stop in shares.bounds(num_samples):
            of_share = tile_bounds(stop - start)
            self.bounds += [(start + first, start + last) for first, last in of_share]
            self.counts.append(len(of_share))

    def add_losses(self, losses: Sequence[float]) -> float:
        """Add the losses of all tiles by the tree."""
        sums = []
        first = 0
        for count in self.counts:
            sums.append(add_losses(list(losses[first : first + count])))
            first += count
        return add_losses(sums) if sums else 0.0


class SumsOfRanks(Protocol):
    """Adds up what several ranks have found for their parts of a batch."""

    def add(self, gradient_N: torch.Tensor, loss: float) -> float:
        """Replace a gradient by its sum over all ranks; return that of the losses."""


BuildSums = Callable[[int], SumsOfRanks]
"""Makes the sums of gradients of so many floats."""


class TileGradients:
    """The gradient of each tile, kept from step to step.

    Args:
        num_columns: floats of a gradient.
        threads: add the gradients up.
        build_sums: of several ranks; None: there is one.
    """

    def __init__(self, num_columns: int, threads: WorkThreads, build_sums: BuildSums | None = None) -> None:
        self._threads = threads
        self._sums_of_ranks = build_sums(num_columns) if build_sums else None
        self.tiles_LN = torch.zeros(0, num_columns)
        """The gradient of each tile."""
        self.sums_N = torch.zeros(num_columns)
        """Their sum after `add`."""

    def make_room(self, num_tiles: int) -> bool:
        """Keep memory for so many tiles, zero at first; return whether it is new."""
        if self.tiles_LN.shape[0] >= num_tiles:
            return False
        self.tiles_LN = torch.zeros(num_tiles, self.sums_N.numel())
        return True

    def add(self, counts: Sequence[int]) -> None:
        """Add the gradients of the first tiles by the binary tree, pieces of the vector in parallel.

        Args:
            counts: tiles of each share, powers of two.
        """
        # Without a sample the sum is -0, which is no sum and changes none: zero would turn -0 into 0.
        if not counts:
            self.sums_N.fill_(-0.0)
            return
        # Shares of equally many tiles are subtrees of the tree over all of them.
        if len(set(counts)) == 1:
            self._add(self.tiles_LN[: sum(counts)], self.sums_N)
            return
        # Those of a short last batch are added one by one; each sum takes the place of its first tile.
        first = 0
        for share, count in enumerate(counts):
            self._add(self.tiles_LN[first : first + count], self.sums_N)
            self.tiles_LN[share].copy_(self.sums_N)
            first += count
        self._add(self.tiles_LN[: len(counts)], self.sums_N)

    def add_ranks(self, loss: float) -> float:
        """Add the sums of all ranks; return the sum of their losses."""
        return loss if self._sums_of_ranks is None else self._sums_of_ranks.add(self.sums_N, loss)

    def is_first_tile(self, counts: Sequence[int]) -> bool:
        """Return whether the sum is the gradient of the first tile, with nothing to add."""
        return self._sums_of_ranks is None and sum(counts) == 1

    def _add(self, tiles: torch.Tensor, sums: torch.Tensor) -> None:
        tiles_LN = tiles.numpy()
        sums_N = sums.numpy()
        num_tiles = tiles_LN.shape[0]

        def add_piece(piece: int, _: int) -> None:
            first = piece * _SUM_PIECE
            workspace = np.empty(((num_tiles + 1) // 2, SUM_COLUMNS), np.float32)
            add_tiles(tiles_LN, first, min(first + _SUM_PIECE, sums_N.size), workspace, sums_N)

        self._threads.run(add_piece, -(-sums_N.size // _SUM_PIECE))
