"""Options to models; tests `config`, too."""

from __future__ import annotations

from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.manifest import RecordError
from hotset.train.config import TrainConfig
from hotset.train.config_parts import ModelConfig
from hotset.train.model.shapes import choose_model, recorded_name


@pytest.mark.parametrize(
    ("fields", "dim", "bottom", "top"),
    [
        ({}, 16, (512, 256, 64), (512, 256)),
        ({"model": "dlrm"}, 64, (512, 256), (512, 512, 256)),
        ({"model": "small"}, 16, (64,), (64,)),
        ({"bottom_mlp": (9, 8)}, 4, (9, 8), (64,)),
        ({"model": "kaggle", "top_mlp": ()}, 16, (512, 256, 64), ()),
        ({"model": "dcnv2"}, 16, (), (512, 256)),
        ({"model": "dcnv2", "bottom_mlp": (8,), "top_mlp": (7,)}, 16, (8,), (7,)),
    ],
)
def test_widths_are_those_given_else_those_of_the_preset(
    fields: dict[str, Any], dim: int, bottom: tuple[int, ...], top: tuple[int, ...]
) -> None:
    found = choose_model(TrainConfig(**fields), dim)
    assert (found.bottom_widths, found.top_widths) == (bottom, top)


def test_the_cross_network_has_its_options() -> None:
    assert choose_model(TrainConfig(model="dcnv2"), 4).cross_layers == 3
    arguments = '{"structure": "parallel"}'
    fields: dict[str, Any] = {"cross_layers": 2, "cross_rank": 8, "model_args": arguments}
    found = choose_model(TrainConfig(model="dcnv2", **fields), 4)
    assert (found.cross_layers, found.cross_rank, found.structure) == (2, 8, "parallel")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cross_rank": 3}, "--cross-rank is no option of the model auto"),
        ({"model": "nets:Net", "top_mlp": (3,)}, "--top-mlp is no option of the model nets:Net"),
        ({"model": "kaggle", "model_args": "{}"}, "--model-args is no option of the model kaggle"),
        ({"model": "tbsm", "model_args": '{"last": 3}'}, "--model-args has 'last', and the model tbsm takes"),
        ({"model": "tbsm", "model_args": '{"history_length": 0}'}, "--model-args: history_length is 0"),
        ({"model": "tbsm", "model_args": '{"last_widths": 6}'}, "--model-args: last_widths is 6"),
        ({"model": "kaggle"}, "model kaggle has embedding_dim 16, the shards have 4"),
    ],
)
def test_an_option_that_the_model_does_not_have_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_model(TrainConfig(**fields), 4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "dcnv3"}, r"model must be one of auto, .* or your own class .*, got 'dcnv3'"),
        ({"model": "nets"}, "model must be one of"),
        ({"model": "nets:"}, "model must be one of"),
        ({"model": "a b:Net"}, "model must be one of"),
        ({"model": "../nets:Net"}, "model must be one of"),
        ({"model_args": "[1]"}, "model_args must be a JSON object"),
        ({"model_args": "{"}, "model_args must be a JSON object"),
        ({"top_mlp": (4, 0)}, "top_mlp must be 1 or more, got 0"),
        ({"top_mlp": (2**30,)}, "top_mlp must be at most"),
        ({"bottom_mlp": (1,) * 65}, "the number of layers of bottom_mlp must be at most 64"),
        ({"cross_layers": 0}, "cross_layers must be 1 or more"),
        ({"cross_rank": 0}, "cross_rank must be 1 or more"),
    ],
)
def test_options_of_models_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**fields)


def test_the_nearest_model_is_the_hint() -> None:
    with pytest.raises(ConfigError) as refused:
        TrainConfig(model="kagle")
    assert refused.value.hint == "did you mean 'kaggle'?"


@pytest.mark.parametrize("model", ["auto", "dcnv2", "nets:Net"])
def test_a_recorded_model_is_read_again(model: str) -> None:
    chosen = choose_model(TrainConfig(model=model), 4)
    assert ModelConfig.from_json(chosen.to_json()) == chosen
    assert recorded_name(TrainConfig(model=model), 4) == {"auto": "small"}.get(model, model)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"kind": "mlp"}, "kind"),
        ({"kind": "module"}, "class_name"),
        ({"kind": "module", "class_name": "os"}, "class_name"),
        ({"kind": "dlrm", "class_name": "a:B"}, "class_name"),
        ({"kind": "dlrm", "top_widths": [0]}, "top_widths"),
        ({"kind": "dlrm", "top_widths": [2**40]}, "top_widths"),
        ({"kind": "dlrm", "top_widths": [1] * 1000}, "top_widths"),
        ({"kind": "dcnv2", "cross_layers": 10**6}, "cross_layers"),
        ({"kind": "dcnv2", "cross_rank": 2**40}, "cross_rank"),
        ({"kind": "module", "class_name": "a:B", "arguments": "3"}, "arguments"),
    ],
)
def test_a_model_that_no_run_records_is_refused(fields: dict[str, Any], key: str) -> None:
    with pytest.raises(RecordError, match=key):
        ModelConfig.from_json(fields)
