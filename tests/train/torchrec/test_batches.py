"""The batches of a rank: every lookup is found again in its part, and all ranks agree on the kind."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError, ShardError
from hotset.pipeline.folders.totals import for_features
from hotset.stats.batch_rows import part_of_rank
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.batch import Batch, SeededOrder
from hotset.train.data.dataset import ShardDataset, Split
from hotset.train.data.shards import ShardSet
from hotset.train.torchrec.batches import (
    GroupLookups,
    RankBatch,
    RankBatches,
    ReplicatedRows,
    RowsOfDim,
    rank_batch,
)

SPEC = ShardSpec(
    num_rows=(50, 40, 300, 300, 9, 20),
    num_hot=(5, 10, 20, 20, 4, 20),
    multi_hot=(1, 3, 4),
    same_table=(3,),
    table_dims=(2, 4, 4, 2, 4),
    batch_size=24,
    has_weight=True,
    num_validation=20,
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("shards") / "shards", SPEC))


def replicated(shards: ShardSet) -> ReplicatedRows:
    return ReplicatedRows(shards.tables, tuple(table.num_hot for table in shards.tables), "mean")


def lists_of(group: GroupLookups, rows: ReplicatedRows, own: RowsOfDim) -> list[tuple[list[int], list[int]]]:
    """The hot and the cold ids of each bag, within their tables again."""
    found = []
    num_bags = len(group.hot_offsets_P1) - 1
    of_feature = for_features(rows.tables, range(len(rows.tables)))
    cold_of_place = []
    cold_tables = [table for table in own.tables if rows.tables[table].name in own.cold_tables]
    for table, ids in zip(
        cold_tables, torch.split(group.cold_ids_C, group.cold_lengths_T.tolist()), strict=True
    ):
        assert (ids.diff() > 0).all()
        cold_of_place += [(table, int(each) + rows.num_replicated[table]) for each in ids]
    for bag in range(num_bags):
        feature = own.features[bag // (num_bags // len(own.features))]
        table = of_feature[feature]
        first = own.first_hot_T[own.tables.index(table)]
        hot = group.hot_ids_N[group.hot_offsets_P1[bag] : group.hot_offsets_P1[bag + 1]] - first
        cold = [
            cold_of_place[place]
            for place in group.cold_places_M[group.cold_offsets_P1[bag] : group.cold_offsets_P1[bag + 1]]
        ]
        assert all(each == table for each, _ in cold)
        found.append((hot.tolist(), [row for _, row in cold]))
    return found


def wanted_lists(batch: Batch, rows: ReplicatedRows, own: RowsOfDim) -> list[tuple[list[int], list[int]]]:
    wanted = []
    lookups = list(batch.features(rows.tables))
    limits = for_features(rows.tables, rows.num_replicated)
    for feature in own.features:
        _, ids, offsets = lookups[feature]
        for sample in range(batch.num_samples):
            ends = (sample, sample + 1) if offsets is None else offsets[sample : sample + 2]
            bag = ids[ends[0] : ends[1]].tolist()
            hot = [each for each in bag if each < limits[feature]]
            wanted.append((hot, [each for each in bag if each >= limits[feature]]))
    return wanted


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_lookup_is_in_the_part_of_its_rank(shards: ShardSet, world_size: int) -> None:
    rows = replicated(shards)
    for number in range(shards.num_training_batches):
        batch = shards.training_batch(number)
        parts = [rank_batch(batch, rows, rank=rank, world_size=world_size) for rank in range(world_size)]
        assert sum(part.num_samples for part in parts) == batch.num_samples == parts[0].global_samples
        assert {part.is_hot_only for part in parts} == {batch.is_hot_only}
        for rank, part in enumerate(parts):
            own = batch.cut(*part_of_rank(batch.num_samples, rank, world_size))
            assert torch.equal(part.label_B, own.label_B) and torch.equal(part.dense_BK, own.dense_BK)
            assert part.of_samples["weight"].tolist() == own.of_samples["weight"].tolist()
            for group, own_rows in zip(part.groups, rows.groups, strict=True):
                assert lists_of(group, rows, own_rows) == wanted_lists(own, rows, own_rows)


def test_all_ranks_know_the_replicated_rows_that_any_of_them_looks_up(shards: ShardSet) -> None:
    rows = replicated(shards)
    batch = shards.training_batch(shards.num_training_batches - 1)
    parts = [rank_batch(batch, rows, rank, 3, has_used=True) for rank in range(3)]
    for groups in zip(*(part.groups for part in parts), strict=True):
        wanted = torch.unique(torch.cat([group.hot_ids_N for group in groups]))
        assert len(wanted) and all(torch.equal(group.used_hot_U, wanted) for group in groups)
        assert any(len(torch.unique(group.hot_ids_N)) < len(wanted) for group in groups)
    moved = parts[0].to(torch.device("meta")).groups[0].used_hot_U
    assert moved is not None and moved.is_meta
    assert rank_batch(batch, rows, 0, 3).groups[0].used_hot_U is None


def test_means_divide_by_the_whole_list(shards: ShardSet) -> None:
    rows = replicated(shards)
    batch = shards.training_batch(shards.num_training_batches - 1)
    part = rank_batch(batch, rows, rank=1, world_size=2)
    own = batch.cut(*part_of_rank(batch.num_samples, 1, 2))
    lookups = list(own.features(rows.tables))
    for group, own_rows in zip(part.groups, rows.groups, strict=True):
        assert group.mean_lengths_FB is not None
        for feature, lengths_B in zip(own_rows.features, group.mean_lengths_FB, strict=True):
            offsets = lookups[feature][2]
            wanted = np.ones(own.num_samples) if offsets is None else np.maximum(np.diff(offsets), 1)
            assert lengths_B.tolist() == wanted.tolist()
    summed = ReplicatedRows(shards.tables, rows.num_replicated)
    assert all(each.mean_lengths_FB is None for each in rank_batch(own, summed, rank=0, world_size=1).groups)


def same(one: RankBatch, other: RankBatch) -> bool:
    tensors = [
        (a, b)
        for mine, yours in zip(one.groups, other.groups, strict=True)
        for a, b in zip(
            (mine.hot_ids_N, mine.cold_ids_C, mine.cold_places_M),
            (yours.hot_ids_N, yours.cold_ids_C, yours.cold_places_M),
            strict=True,
        )
    ]
    return (
        one.step == other.step and one.number == other.number and all(torch.equal(a, b) for a, b in tensors)
    )


def test_batches_go_on_at_any_step(shards: ShardSet) -> None:
    rows = replicated(shards)
    order = SeededOrder(shards.is_hot_only, 3, 2, is_grouped=True)
    numbers = [number for epoch in order.epochs() for number in epoch]
    with closing(RankBatches(shards, rows, numbers, rank=1, world_size=2)) as batches:
        whole = list(batches)
    assert [batch.number for batch in whole] == numbers
    assert [batch.step for batch in whole] == list(range(len(numbers)))
    for first in (1, 7, len(numbers)):
        with closing(RankBatches(shards, rows, numbers, rank=1, world_size=2, first_step=first)) as batches:
            rest = list(batches)
        assert len(rest) == len(numbers) - first
        assert all(same(one, other) for one, other in zip(whole[first:], rest, strict=True))


def test_batches_may_be_left_early(shards: ShardSet) -> None:
    with closing(RankBatches(shards, replicated(shards), depth=1)) as batches:
        assert next(iter(batches)).step == 0


@pytest.mark.parametrize("split", ["valid", "test"])
def test_evaluation_parts_have_batches_too(shards: ShardSet, split: Split) -> None:
    rows = replicated(shards)
    labels = []
    for rank in range(2):
        with closing(RankBatches(shards, rows, split=split, rank=rank, world_size=2)) as batches:
            labels.append([batch.label_B for batch in batches])
    wanted = [batch["label"] for batch in ShardDataset(shards.manifest.folder, split=split)]
    assert len(wanted) == {"valid": 1, "test": 3}[split]
    for *parts, whole in zip(*labels, wanted, strict=True):
        assert torch.equal(torch.cat(parts), whole)


def test_numbers_of_rows_that_do_not_fit_are_refused(shards: ShardSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 1 numbers, and the log 5 tables"):
        ReplicatedRows(shards.tables, (3,))
    with pytest.raises(ConfigError, match=r"'C5' must be in \[0, 9\], got 10"):
        ReplicatedRows(shards.tables, (0, 0, 0, 10, 0))
    with pytest.raises(ConfigError, match=r"rank must be in \[0, 2\), got 2"):
        RankBatches(shards, replicated(shards), rank=2, world_size=2)
    other = ShardSet.open(write_shards(tmp_path / "shards"))
    with pytest.raises(ConfigError, match="are not of the tables"):
        RankBatches(other, replicated(shards))
    with pytest.raises(ConfigError, match="split must be train, valid or test, got 'all'"):
        RankBatches(shards, replicated(shards), split="all")  # type: ignore[arg-type]


ODD_LOGS = {
    "no dense columns": ShardSpec(num_dense=0, batch_size=16),
    "one table": ShardSpec(num_rows=(40,), num_hot=(3,), batch_size=16),
    "lists only": ShardSpec(num_rows=(40, 9), num_hot=(3, 2), multi_hot=(0, 1), batch_size=16),
    "last batches of two samples": ShardSpec(batch_size=32, num_hot_only=34, num_mixed=66, num_evaluation=33),
    "batches smaller than the ranks": ShardSpec(batch_size=3, num_hot_only=7, num_mixed=8),
    "no hot rows": ShardSpec(num_hot=(0, 0, 0), num_hot_only=0),
}


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("log", ODD_LOGS)
def test_odd_logs_are_divided_as_all_others(log: str, world_size: int, tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", ODD_LOGS[log]))
    rows = replicated(shards)
    parts = []
    for rank in range(world_size):
        with closing(RankBatches(shards, rows, rank=rank, world_size=world_size)) as batches:
            parts.append(list(batches))
    for number, of_batch in enumerate(zip(*parts, strict=True)):
        whole = shards.training_batch(number)
        # A batch of few samples among the mixed ones may happen to look up hot rows alone.
        has_cold = any(cold for own in rows.groups for _, cold in wanted_lists(whole, rows, own))
        assert {part.is_hot_only for part in of_batch} == {not has_cold}
        # Some ranks may have no sample of a short batch, and take part in its step all the same.
        sizes = [part.num_samples for part in of_batch]
        assert sum(sizes) == whole.num_samples and max(sizes) - min(sizes) <= 1
        for rank, part in enumerate(of_batch):
            own = whole.cut(*part_of_rank(whole.num_samples, rank, world_size))
            for group, own_rows in zip(part.groups, rows.groups, strict=True):
                assert lists_of(group, rows, own_rows) == wanted_lists(own, rows, own_rows)


def test_a_damaged_shard_is_named_by_the_loop_that_reads_it(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", SPEC)
    shards = ShardSet.open(folder)
    rows = replicated(shards)
    path = next(folder / entry.path for entry in shards.manifest.files if entry.path.startswith("mixed"))
    # An id beyond its table never reaches the kernel: files are checked where they are read.
    raw = bytearray(path.read_bytes())
    ids = shards.training_batch(shards.num_training_batches - 1).ids_BF[0].tobytes()
    place = raw.rindex(ids)
    raw[place : place + 4] = (2**30).to_bytes(4, "little")
    path.write_bytes(raw)
    with closing(RankBatches(ShardSet.open(folder), rows)) as batches:
        with pytest.raises(ShardError, match=r"mixed-00000\.arrow is damaged: batch \d+, ids of samples"):
            list(batches)
