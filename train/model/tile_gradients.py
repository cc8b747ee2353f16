"""The tiles of a batch, the gradient of the dense weights of each, and their sum by a tree.

Tile t of n has the samples i with ``floor(i * n / num_samples) == t``, and n is a power of two that follows
from the number of samples alone. Sums of tiles are added in adjacent pairs, then sums of pairs, and so on: a
binary tree over sample position. So the order of additions depends neither on threads nor on which of them
took a tile, and a part of the batch that is a half, a quarter and so on of it is a subtree: what computes
that part elsewhere adds up the same numbers in the same order.

Tiles of a share are added first, then the shares; see `data.batch_shares`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_work import num_tiles_of
from ...stats.kernel import kernel
from ..data.batch_shares import BatchShares
from ..work_threads import WorkThreads

SUM_COLUMNS = 2048
"""Numbers of each tile that are added together; `add_tiles` keeps them in the first cache."""
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


def tile_bounds(num_samples: int) -> list[tuple[int, int]]:
    """Return the first and the last-plus-one sample of each tile; an empty batch has one empty tile."""
    num_tiles = num_tiles_of(num_samples)
    starts = [-(-tile * num_samples // num_tiles) for tile in range(num_tiles + 1)]
    return list(pairwise(starts))


@kernel
def add_tiles(
    tiles_LN: NDArray[np.float32],
    first: int,
    stop: int,
    workspace_LC: NDArray[np.float32],
    sums_N: NDArray[np.float32],
) -> None:
    """Add the numbers of all tiles by the binary tree, from column ``first`` up to ``stop``.

    Args:
        tiles_LN: (num_tiles, num_columns).
        first: column of the first sum.
        stop: column after the last sum.
        workspace_LC: (at least half of the tiles, rounded up; `SUM_COLUMNS`).
        sums_N: (num_columns,), written in that range.

    Error:
        ``ceil(log2(num_tiles)) * 2**-24`` of the sum of magnitudes. Of an odd number of sums the last is
        carried to the next level as it is.

    Source:
        Higham, Accuracy and Stability of Numerical Algorithms (2002), section 4.2.
    """
    num_tiles = tiles_LN.shape[0]
    for start in range(first, stop, workspace_LC.shape[1]):
        # Parts of columns that fit in a cache with all levels of the tree.
        width = min(workspace_LC.shape[1], stop - start)
        target_C = sums_N[start : start + width]
        # The tiles themselves are the leaves, read once; every other level is in the workspace.
        num_sums = (num_tiles + 1) // 2
        for pair in range(num_sums):
            left_C = tiles_LN[2 * pair, start : start + width]
            sum_C = workspace_LC[pair, :width]
            if 2 * pair + 1 < num_tiles:
                right_C = tiles_LN[2 * pair + 1, start : start + width]
                for column in range(width):
                    sum_C[column] = left_C[column] + right_C[column]
            else:
                sum_C[:] = left_C
        # Each level takes half the room of the one below, in place: a sum never overtakes its terms.
        while num_sums > 1:
            num_pairs = num_sums // 2
            for pair in range(num_pairs):
                left_C = workspace_LC[2 * pair, :width]
                right_C = workspace_LC[2 * pair + 1, :width]
                sum_C = workspace_LC[pair, :width]
                for column in range(width):
                    sum_C[column] = left_C[column] + right_C[column]
            # The last one of an odd number has no partner, and goes up as it is.
            if num_sums % 2:
                workspace_LC[num_pairs, :width] = workspace_LC[num_sums - 1, :width]
            num_sums = num_pairs + num_sums % 2
        target_C[:] = workspace_LC[0, :width]


def add_losses(losses: list[float]) -> float:
    """Add the losses of tiles by the same tree."""
    while len(losses) > 1:
        sums = [left + right for left, right in zip(losses[::2], losses[1::2], strict=False)]
        losses = sums + losses[len(sums) * 2 :]
    return losses[0]
