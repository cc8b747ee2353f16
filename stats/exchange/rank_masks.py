"""Which ranks use each distinct row of a batch: one bit for each rank.

A batch is cut into G equal shares by sample position, and each of W ranks computes G / W consecutive ones:
sample i of a batch of B is in share ``i * G // B``, and share s is computed by rank ``s * W // G``. A batch
with fewer than B samples leaves the last shares short or empty.

Shapes: B samples, N lookups, U distinct rows, W ranks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..batches.lookups_by_row import LookupsByRow
from ..kernel import inlined_kernel, kernel

MOST_RANKS = 64
"""A mask has one bit for each rank."""

Masks = NDArray[np.unsignedinteger]
"""Bit r of an entry says whether rank r uses the row."""


def mask_type(num_ranks: int) -> type[np.unsignedinteger]:
    """Return the smallest type with a bit for each rank.

    Raises:
        ValueError: there are fewer ranks than 1 or more than `MOST_RANKS`.
    """
    if not 1 <= num_ranks <= MOST_RANKS:
        raise ValueError(f"want 1 to {MOST_RANKS} ranks, got {num_ranks}")
    for chosen in (np.uint8, np.uint16, np.uint32):
        if num_ranks <= np.iinfo(chosen).bits:
            return chosen
    return np.uint64


@inlined_kernel
def lowest_bit(mask: np.uint64) -> np.int64:
    """Return the number of the lowest bit that is set; of a mask with at least one."""
    # The bits below it are counted, in pairs, then in fours, then in bytes, whose counts are added at once.
    below = (mask & (~mask + np.uint64(1))) - np.uint64(1)
    below -= below >> np.uint64(1) & np.uint64(0x5555555555555555)
    fours = np.uint64(0x3333333333333333)
    below = (below & fours) + (below >> np.uint64(2) & fours)
    below = below + (below >> np.uint64(4)) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64(below * np.uint64(0x0101010101010101) >> np.uint64(56))


def ranks_of_samples(num_samples: int, batch_size: int, num_shares: int, num_ranks: int) -> NDArray[np.uint8]:
    """Return the rank that computes each sample of a batch, (num_samples,), ascending.

    Args:
        num_samples: samples of this batch.
        batch_size: samples of a whole batch, at least ``num_samples``.
        num_shares: equal parts of a whole batch; a multiple of ``num_ranks``.
        num_ranks: ranks that compute them.

    Raises:
        ValueError: the shares cannot be divided among the ranks, or the batch has too many samples.
    """
    if num_shares % num_ranks:
        raise ValueError(f"{num_shares} shares cannot be divided among {num_ranks} ranks")
    if num_samples > batch_size:
        raise ValueError(f"a batch of {batch_size} has {num_samples} samples")
    shares_B = np.arange(num_samples) * num_shares // batch_size
    return (shares_B * num_ranks // num_shares).astype(np.uint8)


@kernel
def _collect_masks(
    order_N: NDArray[np.int32],
    starts_U1: NDArray[np.int32],
    ranks_N: NDArray[np.uint8],
    masks_U: Masks,
) -> None:
    """Set the bits of the ranks that look up each row. Exact."""
    for i in range(masks_U.shape[0]):
        mask = np.uint64(0)
        for k in range(starts_U1[i], starts_U1[i + 1]):
            mask |= np.uint64(1) << np.uint64(ranks_N[order_N[k]])
        masks_U[i] = mask


def rank_masks(lookups: LookupsByRow, ranks: NDArray[np.uint8], num_ranks: int) -> Masks:
    """Return the ranks that use each distinct row of a batch, (num_rows,).

    Args:
        lookups: of the batch by row, as `group_lookups` or `place_lookups` made them.
        ranks: (num_lookups,), the rank of each lookup's sample, below ``num_ranks``, in the order of the
            batch's lookups.
        num_ranks: of them all.
    """
    masks_U = np.empty(lookups.num_rows, mask_type(num_ranks))
    _collect_masks(lookups.order_N, lookups.starts_U1, ranks, masks_U)
    return masks_U
