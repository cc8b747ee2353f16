"""The rows of a rank as tables of their own.

The owner of each row, by the ranks that use it, sample by sample.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.batch import EmbeddingTable
from hotset.train.data.shards import Shards
from hotset.train.ranks.exchange import HeldRows, choose_owners

NUM_ROWS = (5, 0, 9)


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_each_row_is_held_once_and_keeps_its_order(num_ranks: int, rng: np.random.Generator) -> None:
    owners = rng.integers(0, num_ranks, sum(NUM_ROWS)).astype(np.uint8)
    tables = [EmbeddingTable(f"C{n}", rows, rows // 2, 4) for n, rows in enumerate(NUM_ROWS)]
    every = [HeldRows(NUM_ROWS, owners, rank) for rank in range(num_ranks)]
    for number, table in enumerate(tables):
        ids = [held.ids.of_table(number) for held in every]
        assert sorted(np.concatenate(ids).tolist()) == list(range(table.num_rows))
        for held, own in zip(every, ids, strict=True):
            cut = held.cut(tables)[number]
            assert cut.num_rows == own.size and cut.num_hot == np.count_nonzero(own < table.num_hot)
            first = int(held.first_key_F1[number])
            assert (owners[first + own] == held.rank).all() and (np.diff(own) > 0).all()


def test_served_rows_are_named_by_their_numbers_here(rng: np.random.Generator) -> None:
    owners = rng.integers(0, 2, sum(NUM_ROWS)).astype(np.uint8)
    held = HeldRows(NUM_ROWS, owners, 1)
    chosen = held.keys_R[rng.random(held.keys_R.size) < 0.6].astype(np.int32)
    served = held.served(chosen)
    assert served.counts_U.tolist() == [1] * chosen.size
    tables = np.repeat(np.arange(3), np.diff(served.first_F1))
    ids = held.ids.of(tables, served.rows_U.astype(np.int64))
    np.testing.assert_array_equal(held.first_key_F1[tables] + ids, chosen)


SPEC = ShardSpec(
    num_rows=(50, 40, 300, 9), num_hot=(5, 10, 20, 4), multi_hot=(1,), table_dims=(2, 4, 4, 2), batch_size=24
)


def naive_users(shards: Shards, number: int, chosen: list[int], num_ranks: int) -> dict[int, set[int]]:
    """The ranks that use each key of a batch, sample by sample."""
    batch = shards.training_batch(number)
    users: dict[int, set[int]] = {}
    one_hot = [table for table, each in enumerate(shards.tables) if not each.is_multi_hot]
    multi_hot = [table for table, each in enumerate(shards.tables) if each.is_multi_hot]
    first_key = 0
    for table in chosen:
        for sample in range(batch.num_samples):
            rank = sample * num_ranks // shards.batch_size
            if table in one_hot:
                ids = batch.ids_BF[sample, one_hot.index(table)][None]
            else:
                bags = batch.bags[multi_hot.index(table)]
                ids = bags.ids_N[bags.offsets_B1[sample] : bags.offsets_B1[sample + 1]]
            for row in ids:
                users.setdefault(first_key + int(row), set()).add(rank)
        first_key += shards.tables[table].num_rows
    return users


@pytest.mark.parametrize("chosen", [[0, 3], [1, 2]])
@pytest.mark.parametrize(("num_ranks", "num_shares"), [(1, 1), (3, 3), (4, 8)])
def test_a_row_is_owned_by_the_rank_that_uses_it_in_most_steps(
    chosen: list[int], num_ranks: int, num_shares: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    num_rows = sum(shards.tables[table].num_rows for table in chosen)
    uses = np.zeros((num_rows, num_ranks), np.int64)
    for number in range(shards.num_training_batches):
        for key, users in naive_users(shards, number, chosen, num_ranks).items():
            uses[key, sorted(users)] += 1
    found = choose_owners(shards, chosen, num_ranks, num_shares)
    is_used = uses.any(axis=1)
    np.testing.assert_array_equal(uses[np.arange(num_rows), found][is_used], uses.max(axis=1)[is_used])
    # In ranges of few rows the owners are the same: ties go to the rank with fewer rows so far.
    monkeypatch.setattr("hotset.train.ranks.exchange._RANGE_BYTES", 100 * num_ranks)
    np.testing.assert_array_equal(choose_owners(shards, chosen, num_ranks, num_shares), found)


def test_batches_that_cannot_be_cut_are_refused(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec()))
    with pytest.raises(ConfigError, match="6 micro-batches cannot be divided among 4 ranks"):
        choose_owners(shards, [0], 4, 6)
    with pytest.raises(ConfigError, match="want 1 to 64 ranks, got 65"):
        choose_owners(shards, [0], 65, 65)
