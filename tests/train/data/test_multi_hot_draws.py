"""Lists made of one-hot ids are those of MLPerf's program, and a dataset hands them out."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.resealed import set_in_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.batch import EmbeddingTable
from hotset.train.data.dataset import ShardDataset
from hotset.train.data.multi_hot_draws import MLPERF_SIZES, MultiHotDraws


def naive_lists(num_rows: list[int], sizes: list[int], seed: int) -> list[list[list[int]]]:
    """The list of each row, id by id in the order in which the generator of MLPerf draws them."""
    random = np.random.RandomState(seed)
    lists = []
    for rows, size in zip(num_rows, sizes, strict=True):
        lists.append([[row, *(int(random.randint(0, rows)) for _ in range(size - 1))] for row in range(rows)])
    return lists


@pytest.mark.parametrize("seed", [0, 7])
def test_lists_are_drawn_as_mlperf_draws_them(seed: int) -> None:
    assert (len(MLPERF_SIZES), sum(MLPERF_SIZES)) == (26, 214)
    num_rows, sizes = [5, 40, 3, 300], [3, 1, 2, 4]
    tables = [EmbeddingTable(f"C{number}", rows, 0, 4) for number, rows in enumerate(num_rows)]
    draws = MultiHotDraws(tables, sizes, seed)
    for table, size, lists in zip(tables, sizes, naive_lists(num_rows, sizes, seed), strict=True):
        ids = torch.tensor([0, table.num_rows - 1, 1, 0], dtype=torch.int32)
        none, _ = draws.expand(table.name, ids[:0])
        assert none.shape == (0,)
        found, offsets = draws.expand(table.name, ids)
        assert found.dtype == torch.int32
        assert found.tolist() == [each for row in ids.tolist() for each in lists[row]]
        wanted = None if size == 1 else [size * n for n in range(5)]
        assert (None if offsets is None else offsets.tolist()) == wanted


def test_a_dataset_hands_them_out_the_same_in_every_copy_of_it(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(num_hot_only=0, num_mixed=64))
    plain = next(iter(ShardDataset(folder)))
    dataset = ShardDataset(folder, multi_hot=(1, 3, 2))
    for each in (dataset, pickle.loads(pickle.dumps(dataset))):
        batch = next(iter(each))
        assert batch["C1"].tolist() == plain["C1"].tolist() and "C1_offsets" not in batch
        assert batch["C2"].reshape(-1, 3)[:, 0].tolist() == plain["C2"].tolist()
        assert batch["C3_offsets"].tolist() == list(range(0, 65, 2))
        assert batch["C2"].tolist() == next(iter(dataset))["C2"].tolist()
        # What EmbeddingBag takes as it is.
        bags = torch.nn.EmbeddingBag(40, 4, include_last_offset=True)
        assert bags(batch["C2"].long(), batch["C2_offsets"]).shape == (32, 4)


def test_sizes_that_do_not_fit_the_log_are_refused(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(multi_hot=(1,)))
    for sizes, message in (
        ((1, 2), "multi_hot has 2 sizes, and the log 3 tables"),
        ((1, 1, 0), "must be 1 or more"),
        ((1, 2, 1), "feature 'C2' has lists already"),
    ):
        with pytest.raises(ConfigError, match=message):
            ShardDataset(folder, multi_hot=sizes)


def test_lists_that_a_log_has_already_stay_as_they_are(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(multi_hot=(1,)))
    for split in ("train", "test"):
        for plain, drawn in zip(
            ShardDataset(folder, split=split),
            ShardDataset(folder, split=split, multi_hot=(2, 1, 1)),
            strict=True,
        ):
            assert drawn.keys() == plain.keys() | {"C1_offsets"}
            assert drawn["C1"][::2].tolist() == plain["C1"].tolist()
            assert drawn["C1_offsets"].tolist() == list(range(0, 2 * len(plain["label"]) + 1, 2))
            same = plain.keys() - {"C1"}
            assert all(torch.equal(drawn[name], plain[name]) for name in same)


def test_a_row_has_one_list_in_every_batch_rank_and_epoch(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec())
    list_of: dict[tuple[str, int], list[int]] = {}
    for rank, epoch in ((0, 0), (1, 0), (0, 4)):
        dataset = ShardDataset(folder, seed=2, rank=rank, world_size=2, multi_hot=(2, 3, 4))
        dataset.set_epoch(epoch)
        for batch in dataset:
            for name, size in (("C1", 2), ("C2", 3), ("C3", 4)):
                for ids in batch[name].reshape(-1, size).tolist():
                    assert list_of.setdefault((name, ids[0]), ids) == ids
    num_rows = dict(zip(("C1", "C2", "C3"), ShardSpec().num_rows, strict=True))
    assert {name for name, _ in list_of} == set(num_rows)
    assert all(0 <= found < num_rows[name] for (name, _), ids in list_of.items() for found in ids)


def test_offsets_of_drawn_lists_overwrite_no_feature(tmp_path: Path) -> None:
    """Without draws the names differ."""
    folder = write_shards(tmp_path / "shards", ShardSpec())
    set_in_manifest(folder, "totals.tables.2.name", "C1_offsets")
    assert len(ShardDataset(folder, multi_hot=(1, 2, 2))) > 0
    with pytest.raises(ConfigError, match="a feature is called 'C1_offsets', which a batch holds"):
        ShardDataset(folder, multi_hot=(2, 1, 1))
