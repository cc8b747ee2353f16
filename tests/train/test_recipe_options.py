"""Intervals as people write them.

Options of a recipe: nonsense is refused by name, and so is what would change nothing.
"""

from __future__ import annotations

from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.recipe_options import RecipeOptions, parse_steps_or_time, parse_widths, seconds_of


@pytest.mark.parametrize(
    ("text", "wanted", "seconds"),
    [
        ("500", 500, None),
        ("10min", "10min", 600),
        ("30s", "30s", 30),
        ("1.5h", "1.5h", 5400),
        ("off", "off", None),
    ],
)
def test_an_interval_is_read(text: str, wanted: int | str, seconds: float | None) -> None:
    assert parse_steps_or_time(text) == wanted
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0min", "-5", "1.5", "10 years", "min", "nan", "1e3", "5MIN"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_steps_or_time(text)
    assert "10min" in str(caught.value.hint)


def test_widths_are_whole_numbers_with_commas() -> None:
    assert parse_widths("512,256") == (512, 256)
    assert parse_widths("none") == ()


@pytest.mark.parametrize("text", ["", "512,", "512, 256", "-1", "x", "1.5", "²"])
def test_what_is_no_list_of_widths_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_widths(text)
    assert repr(text) in str(caught.value) and "512,256" in str(caught.value.hint)


@pytest.mark.parametrize(
    "fields",
    [
        {"warmup_steps": -1},
        {"lr_schedule": "linear", "decay_steps": 0},
        {"final_lr": 1.5},
        {"clip_gradient": 0.0},
        {"clip_gradient": float("nan")},
        {"dense_decay": -0.1},
        {"embedding_decay": 1.0},
        {"embedding_decay": float("nan")},
        {"max_steps": 0},
        {"patience": 0},
        {"stop_at_auc": 0.0},
        {"stop_at_auc": 1.5},
        {"max_time": "500"},
        {"decay_steps": 5},
    ],
)
def test_nonsense_is_refused_by_name(fields: dict[str, Any]) -> None:
    name = [*fields][-1]
    with pytest.raises(ConfigError, match=f"^{name} "):
        RecipeOptions(**fields)
