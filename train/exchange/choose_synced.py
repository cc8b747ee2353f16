"""The rows of which every rank holds a copy where copies are synchronised every few steps: the hottest ones.

A row that is used by n of the ranks in each of m steps would send n vectors and n gradients in each of them;
its copies send about as much once in m steps. So it is the rows with the most uses that save the most.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611, for keeping the likeliest rows at each device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange.fixed_homes import count_uses
from ..data.shards import Shards
from .rank_reader import RankReader

_RANGE_BYTES = 256 << 20
"""Memory for the counts of the rows that are looked at together; each range reads all batches."""
_COUNT_BYTES = 4


def choose_synced(
    shards: Shards, widths: Sequence[Sequence[int]], num_ranks: int, num_shares: int, most_rows: int
) -> list[NDArray[np.int32]]:
    """Return the keys of the rows that ranks use most often, of each width, ascending.

    A use is a rank and a step that looks the row up. Of rows with as many uses those of the first width, then
    those with the lowest keys are taken; rows without a use never.

    Args:
        shards: whose training batches are read.
        widths: positions of the tables of each width, ascending.
        num_ranks: of them all.
        num_shares: parts of a batch.
        most_rows: of all widths together.
    """
    # The best rows so far: their uses, the number of their width, and their keys, in the order of choice.
    best = np.empty((0, 3), np.int64)
    for number, chosen in enumerate(widths):
        reader = RankReader(shards, chosen, num_ranks, num_shares)
        most = max(1, _RANGE_BYTES // (_COUNT_BYTES * num_ranks))
        for first in range(0, reader.num_rows, most):
            uses_K = _uses(shards, reader, first, min(most, reader.num_rows - first))
            used = np.flatnonzero(uses_K)
            found = np.stack([uses_K[used], np.full(used.size, number), used + first], axis=1)
            best = np.concatenate([best, found])
            order = np.lexsort((best[:, 2], best[:, 1], -best[:, 0]))
            best = best[order[:most_rows]]
    return [np.sort(best[best[:, 1] == number, 2]).astype(np.int32) for number in range(len(widths))]


def _uses(shards: Shards, reader: RankReader, first: int, num_rows: int) -> NDArray[np.int64]:
    """(num_rows,): steps in which each row of a range is used, once for each rank that uses it."""
    uses_KW = np.zeros((num_rows, reader.num_ranks), np.uint32)
    for number in range(shards.num_training_batches):
        batch = reader.read(number)
        count_uses(batch.keys_U, batch.masks_U, first, uses_KW)
    uses_K: NDArray[np.int64] = uses_KW.sum(axis=1, dtype=np.int64)
    return uses_K
