"""Trainers are built of what fits, with a warning of what is larger than it was counted.

Tests `resolve_config`, `build_rows`, `build_order` and `run_start`, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.errors import ShardError
from hotset.tests.support.shard_factory import write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.trainer_building.build_trainer import build_trainer


def test_too_large_hot_rows_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    build_trainer(shards, TrainConfig(placement="fae", embedding_optimizer="adagrad"))
    assert "the hot rows take 1.1 KiB with adagrad" in caplog.text and "560 B with sgd" in caplog.text


def test_hot_rows_as_the_shards_counted_them_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", embedding_optimizer="adam"))
    trainer = build_trainer(shards, TrainConfig(placement="fae"))
    assert trainer.optimizers.embedding_optimizer == "adam"
    assert caplog.text == ""


def test_shards_without_training_batches_are_refused(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", num_hot_only=0, num_mixed=0))
    with pytest.raises(ShardError, match="no training batch"):
        build_trainer(shards, TrainConfig())
