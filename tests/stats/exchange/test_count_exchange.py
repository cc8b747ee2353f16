"""Counts of an epoch (`ranked_epoch`): no scheme is below the bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.stats.exchange.count_exchange import count_exchange
from hotset.stats.exchange.ranked_epoch import RankedEpoch
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.exchange.rank_reader import RankReader, read_epoch


@pytest.fixture
def epoch(tmp_path: Path) -> RankedEpoch:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(num_mixed=400)))
    return read_epoch(RankReader(shards, [0, 1, 2], 4), range(shards.num_training_batches))


def test_schemes_stand_in_their_order(epoch: RankedEpoch) -> None:
    counts = count_exchange(epoch)
    assert counts.least <= counts.by_use.rows <= counts.striped.rows < counts.deduplicated
    assert counts.deduplicated <= 2 * epoch.remote_lookups
