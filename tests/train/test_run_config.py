"""The settings of a run read back from its config.json."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from hotset.pipeline.errors import ByteSize, HotsetError
from hotset.train.config import TrainConfig
from hotset.train.recipe_options import RecipeOptions
from hotset.train.run_config import read_settings

SETTINGS = TrainConfig(
    placement="cache",
    hot_bytes=ByteSize(4096),
    bottom_mlp=(16, 8),
    dropout=0.5,
    epochs=3,
    recipe=RecipeOptions(lr_schedule="cosine", max_steps=7, max_time="3min", clip_gradient=1.0),
)


def write(path: Path, settings: object) -> Path:
    path.write_text(json.dumps({"config": settings}))
    return path


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = read_settings(write(tmp_path / "config.json", asdict(SETTINGS)))
    assert found == SETTINGS and type(found.hot_bytes) is ByteSize
    # Another version may have other settings, too.
    other = {"epochs": 2, "unheard_of": 1, "recipe": {"warmth": 3}}
    assert read_settings(write(tmp_path / "config.json", other)) == TrainConfig(epochs=2)


@pytest.mark.parametrize("name", sorted(asdict(SETTINGS)))
@pytest.mark.parametrize("value", [{}, 1e308, -(2**70)])
def test_a_value_that_no_run_has_is_refused_with_the_name_of_the_setting(
    name: str, value: object, tmp_path: Path
) -> None:
    path = write(tmp_path / "config.json", asdict(SETTINGS) | {name: value})
    # An absent recipe has its defaults, and a rate may be any number above 0.
    if (name, value) == ("recipe", {}) or (name.endswith("_lr") and value == 1e308):
        read_settings(path)
        return
    with pytest.raises(HotsetError, match=f"^{path} is damaged: .*{name}"):
        read_settings(path)


def test_what_is_no_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="cannot be read: it is not a plain file"):
        read_settings(tmp_path)
    for text in ("{", "[]", "{}", '{"config": 3}', '{"config": {"recipe": []}}', "[" * 200_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(HotsetError, match="is damaged"):
            read_settings(tmp_path / "config.json")
