"""Settings of a training run."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any, get_type_hints

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.config import Optimizers, TrainConfig
from hotset.train.options.exchange_options import ExchangeOptions
from hotset.train.options.recipe_options import RecipeOptions


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


@pytest.mark.parametrize("kind", [TrainConfig, RecipeOptions, ExchangeOptions])
def test_a_value_that_no_choice_has_is_refused_with_those_there_are(kind: Any) -> None:
    """The command line knows its choices; from Python they come unchecked."""
    hints = {name: str(hint) for name, hint in get_type_hints(kind).items() if "Literal" in str(hint)}
    assert len(hints) >= 2
    for name, hint in hints.items():
        for value in ("luck", "", 3, True):
            with pytest.raises(ConfigError, match=rf"^{name} must be one of .*, got {value!r}$") as caught:
                kind(**{name: value})
            assert all(word in str(caught.value) for word in re.findall(r"'([^']+)'", hint))


def test_choices_that_may_be_left_open_may_be_none() -> None:
    assert TrainConfig(cross_structure=None, embedding_optimizer=None).cross_structure is None
    settings: dict[str, Any] = {"placement": None}
    with pytest.raises(ConfigError, match=r"placement must be one of all-fast, hybrid, .*, got None"):
        TrainConfig(**settings)
