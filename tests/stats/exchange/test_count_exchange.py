"""Counts of an epoch (`ranked_epoch`): ranges of rows change nothing, and no scheme is below the bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.stats.exchange import home_plan as module
from hotset.stats.exchange.count_exchange import count_exchange, plan_homes
from hotset.stats.exchange.ranked_epoch import RankedEpoch
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.exchange.rank_reader import RankReader, read_epoch


@pytest.fixture
def epoch(tmp_path: Path) -> RankedEpoch:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(num_mixed=400)))
    return read_epoch(RankReader(shards, [0, 1, 2], 4), range(shards.num_training_batches))


def test_schemes_stand_in_their_order(epoch: RankedEpoch) -> None:
    costs = []
    for state_width in (0, 1, 4, 9):
        counts = count_exchange(epoch, 4, state_width)
        assert counts.least <= counts.moving.rows
        assert counts.by_use.rows <= counts.striped.rows < counts.deduplicated <= 2 * epoch.remote_lookups
        assert counts.striped.moves == counts.by_use.moves == 0
        assert counts.moving.num_numbers(4, state_width) <= counts.by_use.num_numbers(4, state_width)
        assert counts.rows_of_ranks.sum() == (epoch.lookups_of_rows > 0).sum()
        costs.append(counts.moving.num_numbers(4, state_width))
    # More state to move along never makes the exchange cheaper.
    assert costs == sorted(costs) and costs[0] == 4 * counts.least


def test_planning_in_ranges_changes_no_choice(epoch: RankedEpoch, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan_homes(epoch, 4, 4)
    monkeypatch.setattr(module, "_RANGE_BYTES", 2 * 4 * 10)
    parts = plan_homes(epoch, 4, 4)
    for name, first, second in zip(whole._fields, whole, parts, strict=True):
        assert first.tolist() == second.tolist(), name
