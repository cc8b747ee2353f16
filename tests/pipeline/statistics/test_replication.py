"""The comparison of splits on several devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.statistics.replication import (
    CHOSEN,
    DISTINCT,
    FAE,
    POOLED,
    replication_of,
    room_for_replicas,
)
from hotset.stats.replication import Network, TableSize, memory_of
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.torchrec.sharding import count_uses

SPEC = ShardSpec(multi_hot=(1, 2), same_table=(2,), num_rows=(5, 40, 40), num_hot=(3, 10, 10))


def test_the_choice_takes_no_more_time_than_any_other_split(tmp_path: Path) -> None:
    write_shards(tmp_path, SPEC)
    shards = Shards.open(tmp_path)
    network = Network(exchange_seconds=1e-4)
    for row in replication_of(shards.manifest, count_uses(shards, [2, 4]), network=network):
        splits = {each["split"]: each for each in row["splits"]}
        assert set(splits) == {CHOSEN, DISTINCT, POOLED, FAE}
        seconds = {name: each["step_seconds"] for name, each in splits.items()}
        assert seconds[CHOSEN] == min(seconds[name] for name in (CHOSEN, DISTINCT, FAE))
        assert splits[FAE]["num_replicated"] == [3, 10]
        assert splits[FAE]["hot_only_share"] >= 3 / 8
        assert row["excess"] >= 0


def test_one_device_exchanges_nothing(tmp_path: Path) -> None:
    write_shards(tmp_path, SPEC)
    shards = Shards.open(tmp_path)
    (row,) = replication_of(shards.manifest, count_uses(shards, [1]))
    assert {tuple(each["num_replicated"]) for each in row["splits"] if each["split"] == CHOSEN} == {(0, 0)}
    assert {each["crossing_bytes"] for each in row["splits"]} == {0}


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_replicas_fill_what_divided_rows_leave(num_ranks: int) -> None:
    tables = [TableSize(1000, 16, 128)]
    device_bytes = 128 * 600
    most = room_for_replicas(tables, num_ranks, device_bytes) // 128
    assert memory_of(tables, [most], num_ranks) <= device_bytes
    assert memory_of(tables, [most + 2], num_ranks) > device_bytes
    assert room_for_replicas(tables, num_ranks, 128 * 10) == 128 * 5
