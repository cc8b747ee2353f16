"""Uses of rows by ranks, read from shards, and the comparison of splits on several devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import shards_in
from hotset.pipeline.statistics.replication import (
    CHOSEN,
    DISTINCT,
    FAE,
    POOLED,
    count_uses,
    replication_of,
    room_for_replicas,
    table_sizes,
)
from hotset.stats.replication import Network, TableSize, memory_of
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards

SPEC = ShardSpec(multi_hot=(1, 2), same_table=(2,), num_rows=(5, 40, 40), num_hot=(3, 10, 10))


@pytest.mark.parametrize("order", ["grouped", "original"])
def test_uses_are_those_of_the_batches_that_training_reads(tmp_path: Path, order: str) -> None:
    write_shards(tmp_path, replace(SPEC, order=order))
    shards = Shards.open(tmp_path)
    uses = count_uses(shards.manifest, 3)
    wanted = [np.zeros(table.num_rows, np.int64) for table in shards.tables]
    for number in range(shards.num_training_batches):
        batch = shards.training_batch(number)
        ends = [batch.num_samples * rank // 3 for rank in range(4)]
        for rank in range(3):
            part = batch.cut(ends[rank], ends[rank + 1])
            # The second table has two features, whose rows are the same.
            found = [part.ids_BF[:, 0], np.concatenate([bags.ids_N for bags in part.bags])]
            for own, ids in zip(wanted, found, strict=True):
                own[np.unique(ids)] += 1
    assert [own.tolist() for own in uses.uses] == [own.tolist() for own in wanted]
    assert uses.samples_S.sum() == shards.num_training_samples
    assert [table.num_features for table in table_sizes(shards.manifest, "sgd")] == [1, 2]


def test_a_long_epoch_is_sampled_evenly_from_both_kinds(tmp_path: Path) -> None:
    write_shards(tmp_path, ShardSpec(num_hot_only=320, num_mixed=640))
    manifest = shards_in(tmp_path)
    uses = count_uses(manifest, 2, most_steps=6)
    is_hot_only = (uses.largest_ST < np.array([5, 10, 20])).all(axis=1)
    assert (uses.num_steps, is_hot_only.sum()) == (6, 2)


def test_the_choice_takes_no_more_time_than_any_other_split(tmp_path: Path) -> None:
    write_shards(tmp_path, SPEC)
    manifest = shards_in(tmp_path)
    network = Network(exchange_seconds=1e-4)
    for row in replication_of(manifest, (2, 4), network=network):
        splits = {each["split"]: each for each in row["splits"]}
        assert set(splits) == {CHOSEN, DISTINCT, POOLED, FAE}
        seconds = {name: each["step_seconds"] for name, each in splits.items()}
        assert seconds[CHOSEN] == min(seconds[name] for name in (CHOSEN, DISTINCT, FAE))
        assert splits[FAE]["num_replicated"] == [3, 10]
        assert splits[FAE]["hot_only_share"] >= 3 / 8
        assert row["excess"] >= 0


def test_one_device_exchanges_nothing(tmp_path: Path) -> None:
    write_shards(tmp_path, SPEC)
    manifest = shards_in(tmp_path)
    (row,) = replication_of(manifest, (1,))
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
