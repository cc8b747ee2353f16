"""Other budgets of hot rows for shards of order original."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.train.test_trainer import assert_equal_bits, trained
from hotset.train.data.hot_budget import with_hot_bytes
from hotset.train.data.shards import Shards


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate(GenerateConfig(samples=1500), folder / "log.tsv")
    recipe = PreprocessConfig(
        split=SplitConfig(hot_bytes=ByteSize(1000), embedding_dim=4),
        pack=PackConfig(order="original", batch_size=128),
    )
    preprocess([folder / "log.tsv"], recipe, folder / "data")
    return folder / "data"


def num_hot(shards: Shards) -> int:
    return sum(table.num_hot for table in shards.tables)


def test_hot_rows_are_those_split_would_choose(data: Path) -> None:
    packed = Shards.open(data)
    again, more = (with_hot_bytes(packed, num_bytes, "sgd") for num_bytes in (1000, 9000))
    assert again.tables == packed.tables and num_hot(packed) == 1000 // 16
    assert num_hot(more) == 9000 // 16 and num_hot(with_hot_bytes(packed, 9000, "adagrad")) == 9000 // 32
    assert not more.is_hot_only.any() and packed.has_packed_budget and not more.has_packed_budget


def test_the_budget_moves_rows_and_changes_no_bit(data: Path) -> None:
    packed = Shards.open(data)
    runs: list[Any] = [
        trained(shards, placement="lookahead", staging_bytes=20_000)
        for shards in (packed, with_hot_bytes(packed, 9000, "sgd"), with_hot_bytes(packed, 0, "sgd"))
    ]
    few, many, none = (sum(run.meter.training_bytes()) for run in runs)
    assert many < few < none
    assert_equal_bits(runs[0], runs[1])
    assert_equal_bits(runs[0], runs[2])


def test_grouped_shards_and_shards_alone_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="grouped by the budget"):
        with_hot_bytes(Shards.open(write_shards(tmp_path / "a" / "shards")), 100, "sgd")
    original = Shards.open(write_shards(tmp_path / "b" / "shards", order="original"))
    with pytest.raises(ConfigError, match="needs the order of the rows"):
        with_hot_bytes(original, 100, "sgd")
