"""The owner of each row for a whole run: striped by id, or the rank that uses the row most.

Shapes: U rows of a step, K rows of a range, W ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .rank_masks import Masks, lowest_bit


def striped_owners(num_rows: int, num_ranks: int, first_row: int = 0) -> NDArray[np.uint8]:
    """Return the owner ``id mod W`` of each row, (num_rows,): ids follow frequency, so loads are even."""
    return ((np.arange(num_rows) + first_row) % num_ranks).astype(np.uint8)


@kernel
def count_uses(rows: NDArray[np.int32], masks: Masks, first_row: int, uses_KW: NDArray[np.uint32]) -> None:
    """Add the steps in which each rank uses each row of a range. Exact.

    Args:
        rows: (num_entries,), keys; those outside the range are passed over.
        masks: (num_entries,), the ranks that use each.
        first_row: of the range.
        uses_KW: (num_rows of the range, num_ranks), added to.
    """
    for i in range(rows.shape[0]):
        row = np.int64(rows[i]) - first_row
        if 0 <= row < uses_KW.shape[0]:
            mask = np.uint64(masks[i])
            while mask:
                uses_KW[row, lowest_bit(mask)] += np.uint32(1)
                mask &= mask - np.uint64(1)


@kernel
def _most_using(
    uses_KW: NDArray[np.uint32], first_row: int, rows_W: NDArray[np.int64], owners_K: NDArray[np.uint8]
) -> None:
    num_ranks = uses_KW.shape[1]
    for row in range(uses_KW.shape[0]):
        best = 0
        for rank in range(1, num_ranks):
            if uses_KW[row, rank] > uses_KW[row, best]:
                best = rank
            elif uses_KW[row, rank] == uses_KW[row, best] and rows_W[rank] < rows_W[best]:
                best = rank
        # A row that nobody uses burdens nobody.
        if uses_KW[row, best] == 0:
            best = (first_row + row) % num_ranks
        else:
            rows_W[best] += 1
        owners_K[row] = best


def owners_by_use(
    uses: NDArray[np.uint32], rows_of_ranks: NDArray[np.int64], first_row: int = 0
) -> NDArray[np.uint8]:
    """Return the rank that uses each row of a range in most steps, (num_rows of the range,).

    Args:
        uses: (num_rows of the range, num_ranks), as `count_uses` left them.
        rows_of_ranks: (num_ranks,), used rows that each rank owns so far; added to. Among ranks that use a
            row equally often, the one with the fewest takes it.
        first_row: of the range; a row that no rank uses is owned by ``id mod W``.
    """
    owners_K = np.empty(uses.shape[0], np.uint8)
    _most_using(uses, first_row, rows_of_ranks, owners_K)
    return owners_K
