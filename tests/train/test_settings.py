"""Settings by name have the names and types of the configs' fields, and a type checker knows them."""

from __future__ import annotations

from typing import get_type_hints

import pytest

import hotset
import hotset.nn
from hotset.pipeline.errors import HotsetError
from hotset.tests.support.settings import settings_of
from hotset.train.config import ExportConfig, PredictConfig, TrainConfig
from hotset.train.config_parts import ExchangeOptions, RecipeOptions
from hotset.train.fit import ExportSettings, FitSettings, PredictSettings
from hotset.train.own_loop.embedding_module import RowSettings


def test_settings_are_those_of_the_configs() -> None:
    wanted = settings_of(TrainConfig, RecipeOptions, ExchangeOptions)
    # A model may also be a module, so it is an argument of its own.
    del wanted["model"]
    for name in ("model_args", "loss", "loss_weights"):
        wanted[name] = get_type_hints(FitSettings)[name]
    assert get_type_hints(FitSettings) == wanted
    rows = get_type_hints(RowSettings)
    assert rows == {name: wanted[name] for name in rows}
    assert get_type_hints(PredictSettings) == settings_of(PredictConfig)
    assert get_type_hints(ExportSettings) == settings_of(ExportConfig)


def test_a_type_checker_finds_wrong_settings() -> None:
    """It is `make check` that finds them: it reports a comment that nothing is ignored by."""
    with pytest.raises(HotsetError):
        hotset.fit("data", "run", placment="lookahead")  # type: ignore[call-arg]
    with pytest.raises(HotsetError):
        hotset.fit("data", "run", placement="lookahed")  # type: ignore[arg-type]
    with pytest.raises(HotsetError):
        hotset.fit("data", "run", epochs="2")  # type: ignore[arg-type]
    with pytest.raises(HotsetError):
        hotset.preprocess("log.tsv", "data", hot_byte=3)  # type: ignore[call-arg]
    with pytest.raises(HotsetError):
        hotset.predict("run", "log.tsv", batch=3)  # type: ignore[call-overload]
    with pytest.raises(HotsetError):
        hotset.export("run", "out", row_type="int4")  # type: ignore[arg-type]
    with pytest.raises(HotsetError):
        hotset.nn.Embeddings("data", epochs=3)  # type: ignore[call-arg]


def rightly_set() -> None:
    """Settings that a type checker takes."""
    hotset.fit("data", "run", placement="lookahead", staging_bytes="64MiB", epochs=2, top_mlp=[64, 32])
    hotset.preprocess("log.tsv", "data", hot_bytes="64MiB", feature_dims={"C1": 8})
