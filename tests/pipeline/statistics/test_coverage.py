"""The share of lookups that the first rows of a table serve, and the budgets of its curves.

The comparison of splits on several devices.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hotset.pipeline.statistics.coverage import (
    CHOSEN,
    DISTINCT,
    FAE,
    POOLED,
    SMALLEST_BUDGET,
    budgets_up_to,
    coverage,
    replication_of,
    room_for_replicas,
    unique_rows,
)
from hotset.pipeline.statistics.folder import Inspected
from hotset.stats.replication import Network, TableSize, memory_of
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import ShardSet
from hotset.train.torchrec.sharding import count_uses


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_shares_are_those_of_the_most_looked_up_rows_whatever_the_order_of_ids(
    is_shuffled: bool, rng: np.random.Generator
) -> None:
    counts = np.sort(rng.zipf(1.3, 500).clip(max=10**6).astype(np.int64))[::-1].copy()
    given = rng.permutation(counts) if is_shuffled else counts
    inspected = SimpleNamespace(tables=[SimpleNamespace(name="C1")], counts=[given])
    found = coverage(cast(Inspected, inspected))
    assert found[0]["num_rows"] == 1 and found[-1]["num_rows"] == 500
    for point in found:
        assert point["table"] == "C1"
        assert point["lookup_share"] == pytest.approx(counts[: point["num_rows"]].sum() / counts.sum())


@pytest.mark.parametrize("num_bytes", [100, SMALLEST_BUDGET, SMALLEST_BUDGET + 1, 10**6])
def test_budgets_rise_by_half_powers_of_two_up_to_all_rows(num_bytes: int) -> None:
    budgets = budgets_up_to(num_bytes)
    assert budgets == sorted(set(budgets)) and budgets[-1] == num_bytes
    curve = budgets[:-1]
    assert all(SMALLEST_BUDGET <= size < num_bytes for size in curve)
    assert all(b / a == pytest.approx(2**0.5, rel=1e-3) for a, b in pairwise(curve))


def test_a_log_of_lists_alone_has_no_distinct_rows_to_expect() -> None:
    table = SimpleNamespace(name="tags", is_multi_hot=True, features=())
    inspected = SimpleNamespace(tables=[table], counts=[np.ones(3, np.int64)], num_train=3, left_out=[])
    assert unique_rows(cast(Inspected, inspected)) == []
    assert inspected.left_out == ["distinct rows per batch of list-valued features: tags"]


SPEC = ShardSpec(multi_hot=(1, 2), same_table=(2,), num_rows=(5, 40, 40), num_hot=(3, 10, 10))


def test_the_choice_takes_no_more_time_than_any_other_split(tmp_path: Path) -> None:
    write_shards(tmp_path, SPEC)
    shards = ShardSet.open(tmp_path)
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
    shards = ShardSet.open(tmp_path)
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
