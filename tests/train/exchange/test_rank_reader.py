"""Batches as several ranks see them: keys over all tables of a width, and the ranks that use each row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.exchange.rank_reader import RankReader, choose_owners, read_epoch

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
@pytest.mark.parametrize(("num_ranks", "num_shares"), [(1, None), (3, None), (4, 8)])
def test_every_step_has_its_rows_and_their_ranks(
    chosen: list[int], num_ranks: int, num_shares: int | None, tmp_path: Path
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    order = list(reversed(range(shards.num_training_batches)))
    epoch = read_epoch(RankReader(shards, chosen, num_ranks, num_shares), order)
    assert epoch.num_samples == shards.num_training_samples
    assert epoch.num_rows == sum(shards.tables[table].num_rows for table in chosen)
    lookups = 0
    for number, entries in zip(order, epoch.steps(), strict=True):
        users = naive_users(shards, number, chosen, num_ranks)
        assert epoch.keys[entries].tolist() == sorted(users)
        masks = [sum(1 << rank for rank in users[key]) for key in sorted(users)]
        assert epoch.masks[entries].tolist() == masks
        lookups += sum(1 for _ in users)
    assert epoch.lookups_of_rows.sum() >= lookups == epoch.keys.size
    if num_ranks == 1:
        assert epoch.remote_lookups == 0


def test_lookups_away_from_striped_owners_are_counted(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec()))
    epoch = read_epoch(RankReader(shards, [2], 4), range(shards.num_training_batches))
    remote = 0
    for number in range(shards.num_training_batches):
        batch = shards.training_batch(number)
        ranks = np.arange(batch.num_samples) * 4 // shards.batch_size
        remote += int((batch.ids_BF[:, 2] % 4 != ranks).sum())
    assert epoch.remote_lookups == remote > 0


def test_batches_that_cannot_be_cut_are_refused(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec()))
    with pytest.raises(ConfigError, match="6 shares cannot be divided among 4 ranks"):
        RankReader(shards, [0], 4, 6)
    with pytest.raises(ConfigError, match="want 1 to 64 ranks, got 65"):
        RankReader(shards, [0], 65)


def test_owners_follow_the_uses_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    reader = RankReader(shards, (0, 2), 2, 4)
    found = choose_owners(reader, shards.num_training_batches)
    assert found.size == 305 and set(found.tolist()) == {0, 1}
    # In ranges of few rows the owners are the same, but for ties, which go to the rank with fewer so far.
    monkeypatch.setattr("hotset.train.exchange.rank_reader._RANGE_BYTES", 800)
    np.testing.assert_array_equal(choose_owners(reader, shards.num_training_batches), found)
