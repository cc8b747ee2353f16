"""The tables of one row width, seen from a rank: which rows a step looks up, serves, sends and receives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange import ranks_of_samples
from ..data.batch import Batch, BatchIds
from ..data.batch_shares import BatchShares
from ..exchange.width_exchange import ExchangeReader, WidthExchange, served_ids
from ..execution.row_width import RowWidth, WidthLookups
from ..placements.staging_placements import ColdRows, StagingPlacement
from ..rows.initial_values import InitialValues


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedWidth(RowWidth):
    """The tables of one row width, of which some rows live here; ``reader`` reads them whole."""

    shares: BatchShares
    exchange: ExchangeReader
    initial: InitialValues
    """Values of the rows of the whole tables."""

    def read(self, number: int, batch: Batch) -> WidthLookups:
        """The rows that a training step serves, once each, and what crosses between the ranks."""
        # Every rank cuts its own share out of the batch, and reads the others', too.
        own = self.reader.read(self.shares.cut(batch))
        ids = self.reader.read(batch)
        served, exchange = self.exchange.read(ids, self.reader.by_row(ids), self._ranks_of(ids), own)
        return WidthLookups(served_ids(served), served, exchange)

    def look_at(self, batch: Batch) -> WidthExchange:
        """Return what would cross in a training step if all its rows had been used before; nothing is
        remembered."""
        ids = self.reader.read(batch)
        own = self.reader.read(self.shares.cut(batch))
        lookups = self.reader.by_row(ids)
        return self.exchange.look(ids, lookups, self._ranks_of(ids), own)[1]

    def _ranks_of(self, ids: BatchIds) -> NDArray[np.uint8]:
        shares = self.shares
        return ranks_of_samples(ids.num_samples, shares.batch_size, shares.num_shares, shares.num_ranks)

    def read_round(self, batches: Sequence[Batch]) -> WidthLookups:
        """The same of an evaluation in which rank r has the whole of batch r."""
        # The batches of all ranks as one, with the rank of each sample.
        parts = [self.reader.read(batch) for batch in batches]
        ranks_B = np.repeat(np.arange(len(parts)), [part.num_samples for part in parts]).astype(np.uint8)
        ids = _joined(parts)
        own = parts[self.shares.rank]
        served, exchange = self.exchange.look(ids, self.reader.by_row(ids), ranks_B, own)
        return WidthLookups(served_ids(served), served, exchange)

    def cold_rows(self, number: int, batch: Batch) -> ColdRows:
        keys_U = self.exchange.keys(self.reader.by_row(self.reader.read(batch)))
        assert isinstance(self.placement, StagingPlacement)
        return self.placement.cold_rows(self.exchange.held.served_of(keys_U))


def _joined(parts: Sequence[BatchIds]) -> BatchIds:
    """Return the lookups of batches as those of one."""
    num_samples = sum(part.num_samples for part in parts)
    ids_N = np.concatenate([part.ids_N for part in parts])
    num_features = parts[0].num_features
    bags: list[NDArray[np.int64]] = []
    first = 0
    for part in parts:
        if part.bags_N is not None:
            bags.append(part.bags_N + first * num_features)
        first += part.num_samples
    bags_N = np.concatenate(bags) if bags else None
    return BatchIds(ids_N, bags_N, num_samples, num_features, parts[0].features_F)
