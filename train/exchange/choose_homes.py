"""The home rank of each row, before the first step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange.fixed_homes import count_uses, homes_by_use, striped_homes
from ...stats.exchange.homes_name import HomesName
from ..data.shards import Shards
from .rank_reader import RankReader

_RANGE_BYTES = 256 << 20
"""Memory for the counts of the rows that are looked at together; each range reads all batches."""
_COUNT_BYTES = 4


def choose_homes(
    name: HomesName, shards: Shards, chosen: Sequence[int], num_ranks: int, num_shares: int
) -> NDArray[np.uint8]:
    """Return the rank of each row of some tables, (num_keys,), table after table.

    Which rank uses a row in which steps follows from the batches alone, whatever their order.

    Args:
        name: striped by key; or at the rank that uses the row in most steps.
        shards: whose training batches are read for that.
        chosen: positions of the tables, ascending.
        num_ranks: of them all.
        num_shares: parts of a batch.
    """
    reader = RankReader(shards, chosen, num_ranks, num_shares)
    if name == "striped":
        return striped_homes(reader.num_rows, num_ranks)
    # Rows are counted across ranges: of ranks that use a row equally often, the one with the fewest takes it.
    homes = []
    rows_of_ranks = np.zeros(num_ranks, np.int64)
    most = max(1, _RANGE_BYTES // (_COUNT_BYTES * num_ranks))
    for first in range(0, reader.num_rows, most):
        uses_KW = np.zeros((min(most, reader.num_rows - first), num_ranks), np.uint32)
        for number in range(shards.num_training_batches):
            batch = reader.read(number)
            count_uses(batch.keys_U, batch.masks_U, first, uses_KW)
        homes.append(homes_by_use(uses_KW, rows_of_ranks, first))
    return np.concatenate([np.empty(0, np.uint8), *homes])
