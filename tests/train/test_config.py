"""Settings of a training run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.config import Optimizers, TrainConfig


@pytest.mark.parametrize(
    "fields",
    [
        {"epochs": 0},
        {"log_every": 0},
        {"evaluate_every": 0},
        {"threads": 0},
        {"embedding_lr": 0.0},
        {"dense_lr": float("nan")},
        {"dense_lr": float("inf")},
        {"seed": -1},
        {"threads": 100_000},
        {"prefetch": 10**20},
        {"window": 10**20},
        {"cache_batches": 10**20},
    ],
)
def test_nonsense_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    with pytest.raises(ConfigError, match=name):
        TrainConfig(**fields)


@pytest.mark.parametrize(
    ("rows", "dense", "resolved"),
    [
        ("sgd", "same", "sgd"),
        ("adagrad", "same", "adagrad"),
        ("rowwise-adagrad", "same", "adagrad"),
        ("momentum", "same", "sgd"),
        ("adam", "same", "adam"),
        ("sgd", "adam", "adam"),
    ],
)
def test_the_dense_optimizer_is_that_of_the_rows_where_it_is_same(
    rows: Any, dense: Any, resolved: str
) -> None:
    config = TrainConfig(embedding_optimizer=rows, dense_optimizer=dense)
    assert config.optimizers("sgd").dense_optimizer == resolved
    assert TrainConfig(dense_optimizer=dense).optimizers(rows).dense_optimizer == resolved


def test_the_optimizer_of_the_rows_is_that_of_the_shards_unless_set() -> None:
    followed = TrainConfig().optimizers("rowwise-adagrad")
    assert followed == Optimizers("rowwise-adagrad", 0.04, "adam", 0.001)
    config = TrainConfig(embedding_optimizer="sgd")
    assert config.optimizers("adagrad") == Optimizers("sgd", 10.0, "adam", 0.001)
    assert config.row_optimizer("adagrad") == "sgd"


def test_a_given_learning_rate_wins() -> None:
    found = TrainConfig(embedding_lr=0.5).optimizers("adagrad")
    assert (found.embedding_lr, found.dense_lr) == (0.5, 0.001)


def test_the_config_does_not_import_torch() -> None:
    code = "import sys, hotset.train.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
