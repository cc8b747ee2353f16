"""Reads batches as several ranks see them: the distinct rows of each, with the ranks that use them.

Rows of all tables of one row width are numbered as one, table after table; such a number is a key. Shapes:
N lookups and U distinct rows of a batch, F tables of the width.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ...stats.batch_rows import LookupsByRow
from ...stats.exchange import (
    Masks,
    RankedEpoch,
    count_remote_lookups,
    count_uses,
    mask_type,
    owners_by_use,
    rank_masks,
    ranks_of_samples,
    striped_owners,
)
from ..data.batch import BatchIds, IdReader
from ..data.shards import Shards

_MOST_ROWS = 2**31 - 1
"""Keys are int32."""
_RANGE_BYTES = 256 << 20
"""Memory for the counts of the rows that are looked at together; each range reads all batches."""
_COUNT_BYTES = 4


@dataclass(frozen=True, slots=True)
class RankedBatch:
    """The lookups of one batch in the tables of a width, and the ranks that make them."""

    lookups: LookupsByRow
    ranks_N: NDArray[np.uint8]
    """Rank of each lookup, in the order of the batch."""
    keys_U: NDArray[np.int32]
    """Distinct rows, ascending."""
    masks_U: Masks
    """The ranks that use each of them."""
    num_samples: int


class RankReader:
    """Reads training batches of shards as several ranks see them.

    Args:
        shards: with the batches.
        chosen: positions of the tables of one width, ascending.
        num_ranks: ranks that compute a batch.
        num_shares: equal parts of a batch, a multiple of ``num_ranks``; by default one for each rank.

    Raises:
        ConfigError: a batch cannot be cut so, or the tables have too many rows.
    """

    def __init__(
        self, shards: Shards, chosen: Sequence[int], num_ranks: int, num_shares: int | None = None
    ) -> None:
        self.num_ranks = num_ranks
        self._shards = shards
        self._num_shares = num_shares or num_ranks
        self._reader = IdReader(shards.tables, chosen)
        self._first_key_F1 = np.cumsum([0, *(shards.tables[table].num_rows for table in chosen)])
        # The kernels trust these numbers, so they are tried here once.
        try:
            mask_type(num_ranks)
            ranks_of_samples(0, shards.batch_size, self._num_shares, num_ranks)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.num_rows > _MOST_ROWS:
            raise ConfigError(f"{self.num_rows:,} rows of one width; at most {_MOST_ROWS:,} can be planned")

    @property
    def num_rows(self) -> int:
        """Rows of all tables of the width."""
        return int(self._first_key_F1[-1])

    def read(self, number: int) -> RankedBatch:
        """The training batch ``number``."""
        ids = self._reader.read(self._shards.training_batch(number))
        lookups = self._reader.by_row(ids)
        ranks_N = self._ranks_of(ids)
        # Rows of all tables are numbered as one: to each id the first key of its table is added.
        keys_U = lookups.rows_U + np.repeat(self._first_key_F1[:-1], np.diff(lookups.first_F1))
        masks_U = rank_masks(lookups, ranks_N, self.num_ranks)
        return RankedBatch(lookups, ranks_N, keys_U.astype(np.int32), masks_U, ids.num_samples)

    def _ranks_of(self, ids: BatchIds) -> NDArray[np.uint8]:
        """(num_lookups,); the rank of each lookup's sample."""
        ranks_B = ranks_of_samples(ids.num_samples, self._shards.batch_size, self._num_shares, self.num_ranks)
        # A sample has one lookup of each feature, or each lookup names its bag.
        if ids.bags_N is None:
            return np.repeat(ranks_B, ids.num_features)
        return ranks_B[ids.bags_N // max(ids.num_features, 1)]


def read_epoch(reader: RankReader, order: Iterable[int]) -> RankedEpoch:
    """Read the batches of an epoch in their order; of each only its rows and their ranks are kept."""
    # An empty array comes first, so that an epoch without batches has arrays of these types too.
    keys: list[NDArray[np.int32]] = [np.empty(0, np.int32)]
    masks: list[Masks] = [np.empty(0, mask_type(reader.num_ranks))]
    lookups_of_rows = np.zeros(reader.num_rows, np.int64)
    striped = striped_owners(reader.num_rows, reader.num_ranks)
    num_samples = 0
    remote_lookups = 0
    # A batch is forgotten as soon as its rows and their ranks are known.
    for number in order:
        batch = reader.read(number)
        keys.append(batch.keys_U)
        masks.append(batch.masks_U)
        lookups_of_rows[batch.keys_U] += batch.lookups.counts_U
        remote_lookups += count_remote_lookups(batch.lookups, batch.ranks_N, striped[batch.keys_U])
        num_samples += batch.num_samples
    return RankedEpoch(
        num_ranks=reader.num_ranks,
        num_samples=num_samples,
        offsets=np.cumsum([0, *(part.size for part in keys[1:])]),
        keys=np.concatenate(keys),
        masks=np.concatenate(masks),
        lookups_of_rows=lookups_of_rows,
        remote_lookups=remote_lookups,
    )


def choose_owners(reader: RankReader, num_batches: int) -> NDArray[np.uint8]:
    """Return for each row the rank that uses it in most steps, (num_keys,), table after table.

    Which rank uses a row in which steps follows from the batches alone, whatever their order.

    Args:
        reader: of the batches.
        num_batches: of training.
    """
    # Rows are counted across ranges: of ranks that use a row equally often, the one with the fewest takes it.
    owners = [np.empty(0, np.uint8)]
    rows_of_ranks = np.zeros(reader.num_ranks, np.int64)
    most = max(1, _RANGE_BYTES // (_COUNT_BYTES * reader.num_ranks))
    for first in range(0, reader.num_rows, most):
        uses_KW = np.zeros((min(most, reader.num_rows - first), reader.num_ranks), np.uint32)
        for number in range(num_batches):
            batch = reader.read(number)
            count_uses(batch.keys_U, batch.masks_U, first, uses_KW)
        owners.append(owners_by_use(uses_KW, rows_of_ranks, first))
    return np.concatenate(owners)
