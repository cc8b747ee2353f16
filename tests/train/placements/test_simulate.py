"""A simulated epoch moves what the run counts, exactly."""

from __future__ import annotations

from typing import Any

import pytest

from hotset.tests.support.shard_factory import write_shards
from hotset.tests.system.test_equal_bits import STAGING, STATELESS
from hotset.tests.train.test_trainer import trained
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.placements.simulate import NOTHING_MOVED, simulate_epoch


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    folder = tmp_path_factory.mktemp("data") / "shards"
    return Shards.open(write_shards(folder, skew=1.2, multi_hot=(0,), table_dims=(4, 4, 8)))


@pytest.mark.parametrize("staging_bytes", [700, 20_000])
@pytest.mark.parametrize("placement", [{"placement": "all-fast"}, *STATELESS, *STAGING], ids=str)
def test_the_counts_are_those_of_the_run(
    placement: dict[str, Any], staging_bytes: int, shards: Shards
) -> None:
    fields: dict[str, Any] = {"embedding_optimizer": "adagrad", "staging_bytes": staging_bytes}
    trainer = trained(shards, **placement, **fields)
    moved = simulate_epoch(shards, trainer.config, trainer.numbers)
    assert (moved.bytes_to_fast, moved.bytes_to_slow) == trainer.meter.training_bytes()
    assert (moved.num_shortened, moved.num_split) == (trainer.feed.num_shortened, trainer.feed.num_split)
    assert (moved == NOTHING_MOVED) == (placement["placement"] == "all-fast")


def test_fae_decides_as_it_goes(shards: Shards) -> None:
    with pytest.raises(ValueError, match="fae cannot be simulated"):
        simulate_epoch(shards, TrainConfig(placement="fae"), [0])
