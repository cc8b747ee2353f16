"""The sum of a row's gradients over ranks, at its home."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel
from ..rows.row_kernels import num_levels


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
    """Add the gradients of each row by the binary tree over rank numbers; ranks without one are passed over,
    and a row without any gets zeros.

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
            # The gradient of this rank is a subtree by itself, on top of the stack.
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
