"""Settings of a training run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.config import TrainConfig


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
def test_the_dense_optimizer_follows_the_rows(rows: Any, dense: Any, resolved: str) -> None:
    assert TrainConfig(embedding_optimizer=rows, dense_optimizer=dense).resolved_dense_optimizer == resolved


def test_a_given_learning_rate_wins() -> None:
    config = TrainConfig(embedding_lr=0.5)
    assert config.resolved_embedding_lr == 0.5
    assert config.resolved_dense_lr == TrainConfig().resolved_dense_lr == 0.1


def test_the_config_does_not_import_torch() -> None:
    code = "import sys, hotset.train.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
