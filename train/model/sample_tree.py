"""Where a batch is cut into tiles, and the order in which their sums are added.

Tile t of n has the samples i with ``floor(i * n / num_samples) == t``, and n is a power of two that follows
from the number of samples alone. Sums of tiles are added in adjacent pairs, then sums of pairs, and so on: a
binary tree over sample position. So the order of additions depends neither on threads nor on which of them
took a tile, and a part of the batch that is a half, a quarter and so on of it is a subtree: what computes
that part elsewhere adds up the same numbers in the same order.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.work_division import num_tiles_of
from ...stats.kernel import kernel

SUM_COLUMNS = 2048
"""Numbers of each tile that are added together; `add_tiles` keeps them in the first cache."""


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
