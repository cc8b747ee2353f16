"""Short training batches that are dropped or merged: in shards, datasets and runs of every kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import hotset
from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError
from hotset.pipeline.settings import LastBatch
from hotset.tests.support.processes.ranked_runs import train_on_ranks
from hotset.tests.support.processes.stopped_runs import WITH_ORDER, assert_same_files, train_until
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import (
    EACH_WAY,
    STAGING,
    STATELESS,
    assert_equal_bits,
    assert_placements_agree,
    trained,
)
from hotset.train.config import TrainConfig
from hotset.train.data.batch import MicroBatches
from hotset.train.data.dataset import ShardDataset
from hotset.train.data.shards import ShardSet
from hotset.train.ranks.exchange import ranks_of_batch
from hotset.train.run import train
from hotset.train.verify_run import faults_against_shards

SPEC = ShardSpec(
    num_rows=(6, 90, 300), num_hot=(6, 9, 20), batch_size=32, num_hot_only=70, num_mixed=131, multi_hot=(1,)
)
"""Three hot-only batches, the last of 6 samples, and five mixed ones, the last of 3."""
FIELDS: dict[str, Any] = {"embedding_optimizer": "adagrad", "epochs": 2, "staging_bytes": ByteSize(4_000)}


def opened(folder: Path, **changes: Any) -> ShardSet:
    return ShardSet.open(write_shards(folder / "shards", ShardSpec(**(vars_of(SPEC) | changes))))


def vars_of(spec: ShardSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def dense_of(shards: ShardSet) -> list[NDArray[np.float32]]:
    numbers = range(shards.num_training_batches)
    return [shards.training_batch(number).dense_BK.numpy() for number in numbers]


def test_short_batches_of_each_kind_are_left_out_or_joined(tmp_path: Path) -> None:
    shards = opened(tmp_path)
    every = dense_of(shards)
    assert [each.shape[0] for each in every] == [32, 32, 6, 32, 32, 32, 32, 3]
    dropped, merged = (shards.with_last_batch(what) for what in ("drop", "merge"))
    assert [len(each) for each in dense_of(dropped)] == [32] * 6
    assert [len(each) for each in dense_of(merged)] == [32, 38, 32, 32, 32, 35]
    kept = every[:2] + every[3:7]
    assert all(map(np.array_equal, dense_of(dropped), kept))
    both = [every[0], np.concatenate(every[1:3]), *every[3:6], np.concatenate(every[6:])]
    assert all(map(np.array_equal, dense_of(merged), both))
    # Lists are joined, too, and every id is checked as before.
    (bags,) = merged.training_batch(1).bags
    parts = [shards.training_batch(number).bags[0] for number in (1, 2)]
    np.testing.assert_array_equal(bags.ids_N, np.concatenate([part.ids_N for part in parts]))
    assert dropped.is_hot_only.tolist() == merged.is_hot_only.tolist() == [True] * 2 + [False] * 4
    assert (dropped.num_training_samples, merged.num_training_samples) == (192, 201)
    assert (dropped.least_batch_samples, merged.most_batch_samples, shards.least_batch_samples) == (32, 38, 3)
    assert dropped.with_last_batch("drop") is dropped and shards.with_last_batch("keep") is shards
    assert dropped.num_evaluation_samples == shards.num_evaluation_samples


def test_a_merged_batch_is_hot_only_where_both_are(tmp_path: Path) -> None:
    shards = opened(tmp_path, order="original", num_hot_only=192, num_mixed=5)
    assert shards.is_hot_only.tolist() == [True] * 6 + [False]
    merged = shards.with_last_batch("merge")
    assert merged.is_hot_only.tolist() == [True] * 5 + [False]
    assert not merged.training_batch(5).is_hot_only
    fewer = merged.with_hot_rows([1, 1, 1])
    assert fewer.training_batch(5).num_samples == 37 and not fewer.is_hot_only.any()


def test_a_batch_that_is_the_only_one_of_its_kind_stays(tmp_path: Path) -> None:
    shards = opened(tmp_path, num_hot_only=5, num_mixed=31)
    merged = shards.with_last_batch("merge")
    assert [len(each) for each in dense_of(merged)] == [5, 31]
    assert shards.with_last_batch("drop").num_training_batches == 0
    config = TrainConfig(last_batch="drop", threads=1)
    with pytest.raises(ConfigError, match=r"36 training .* no batch of 32\nhint: use --last-batch keep$"):
        train(tmp_path, config, tmp_path / "run")


@pytest.mark.parametrize(("num_shares", "num_ranks"), [(1, 1), (4, 1), (4, 2), (4, 4)])
def test_the_last_share_has_what_is_beyond_a_whole_batch(num_shares: int, num_ranks: int) -> None:
    found: list[int] = []
    for rank in range(num_ranks):
        shares = MicroBatches(100, num_shares, rank, num_ranks)
        first, stop = shares.own_part(150)
        assert (ranks_of_batch(150, 100, num_shares, num_ranks)[first:stop] == rank).all()
        bounds = shares.bounds(stop - first)
        assert len(bounds) == num_shares // num_ranks
        for start, end in bounds:
            found += range(first + start, first + end)
    assert found == list(range(150))


@pytest.mark.parametrize("last_batch", ["drop", "merge"])
def test_placements_devices_and_threads_end_with_equal_bits(tmp_path: Path, last_batch: LastBatch) -> None:
    shards = opened(tmp_path, multi_hot=())
    fields: dict[str, Any] = FIELDS | {"last_batch": last_batch, "micro_batches": 2, "epochs": 1}
    with_threads = {"placement": "lookahead", "threads": 3}
    all_fast = assert_placements_agree(shards, (*EACH_WAY, with_threads), **fields)
    assert all_fast.num_samples == (192 if last_batch == "drop" else 201)
    assert trained(shards, placement="fae", **fields).num_samples == all_fast.num_samples
    # One micro-batch, so that steps are queued.
    fields["micro_batches"] = 1
    alone = trained(shards, placement="all-fast", **fields)
    for placement in ({"placement": "all-fast"}, *STATELESS, STAGING[0]):
        assert_equal_bits(trained(shards, device="late", **placement, **fields), alone)
    torch.testing.assert_close(
        trained(shards, placement="all-fast", device="late", kernels="torch", **fields).weights()["C3"],
        alone.weights()["C3"],
    )


def test_ranks_and_a_resumed_run_end_with_the_bits_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened(tmp_path)
    fields: dict[str, Any] = FIELDS | {"threads": 1, "micro_batches": 2}
    for last_batch in ("drop", "merge"):
        config = TrainConfig(**fields, last_batch=last_batch)
        wanted, ranked, resumed = (tmp_path / f"{last_batch}-{name}" for name in ("one", "two", "resumed"))
        train(tmp_path, config, wanted)
        with monkeypatch.context() as patched:
            train_on_ranks(2, patched, tmp_path, config, ranked)
        # In the middle of the second epoch.
        train_until(290, tmp_path, config, resumed, every=2)
        other = TrainConfig(**fields)
        with pytest.raises(HotsetError, match=r"other settings: config\.last_batch is"):
            train(tmp_path, other, resumed)
        train(tmp_path, config, resumed)
        assert_same_files(ranked, wanted, WITH_ORDER)
        assert_same_files(resumed, wanted, WITH_ORDER)
        assert list(faults_against_shards(wanted, tmp_path)) == []
    said = {each.getMessage() for each in caplog.records if "--last-batch" in each.getMessage()}
    assert said == {"--last-batch drop leaves out 9 of 201 training samples in each epoch"}


def test_an_option_that_changes_nothing_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, num_hot_only=32, num_mixed=64)
    train(tmp_path, TrainConfig(last_batch="merge", threads=1), tmp_path / "run")
    assert "--last-batch merge changes nothing: there is no short batch to merge" in caplog.text


def test_batch_normalization_takes_a_log_whose_last_batch_has_one_sample(tmp_path: Path) -> None:
    opened(tmp_path, num_hot_only=0, num_mixed=97, num_evaluation=33)
    for last_batch in ("drop", "merge"):
        out = tmp_path / last_batch
        run = hotset.fit(tmp_path, out, batch_norm=True, last_batch=last_batch, threads=1, progress=False)
        assert run.summary.num_samples == 33
    with pytest.raises(ConfigError, match=r"has a single one\nhint: use --last-batch merge or drop"):
        train(tmp_path, TrainConfig(batch_norm=True), tmp_path / "keep")


def test_a_dataset_has_the_batches_of_the_trainer(tmp_path: Path) -> None:
    shards = opened(tmp_path)
    for last_batch in ("drop", "merge"):
        dataset = ShardDataset(tmp_path, seed=3, last_batch=last_batch)
        sizes = sorted(len(batch["label"]) for batch in dataset)
        assert sizes == sorted(len(each) for each in dense_of(shards.with_last_batch(last_batch)))
        assert len(dataset) == 6
        state = dataset.state_dict()
        with pytest.raises(ConfigError, match=f"the state is of last_batch '{last_batch}', want 'keep'"):
            ShardDataset(tmp_path, seed=3).load_state_dict(state)
    # States of before there was a choice, and of before the place was that of all ranks.
    new = ShardDataset(tmp_path).state_dict() | {"version": 1, "first_batch": 2, "position": 1}
    old = {name: value for name, value in new.items() if name not in ("last_batch", "first")}
    dataset = ShardDataset(tmp_path)
    dataset.load_state_dict(old)
    assert len(list(dataset)) == len(dataset) - 3
    assert sum(len(batch["label"]) for batch in ShardDataset(tmp_path, split="test", last_batch="drop")) == 90
    wrong: Any = "half"
    with pytest.raises(ConfigError, match="last_batch must be one of keep, drop, merge, got 'half'"):
        ShardDataset(tmp_path, last_batch=wrong)
