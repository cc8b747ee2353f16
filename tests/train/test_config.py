"""Settings of a run: nonsense is refused by name, what is written is read back; tests `config_parts`, too."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError
from hotset.stats.codecs import CODEC_NAMES
from hotset.train.config import Optimizers, TrainConfig, read_settings
from hotset.train.config_parts import (
    FIXED_CODECS,
    PUBLISHED_LISTS,
    CheckpointSettings,
    CodecChoice,
    ExchangeOptions,
    RecipeOptions,
    bound_by_size,
    is_launched,
    parse_codec,
    parse_steps_or_time,
    parse_widths,
    published_bounds,
    rank_timeout,
    seconds_of,
)


def test_at_least_one_checkpoint_is_kept() -> None:
    with pytest.raises(ConfigError, match="keep_checkpoints must be 1 or more"):
        CheckpointSettings(keep_checkpoints=0)


def test_codecs_are_read() -> None:
    assert sorted(FIXED_CODECS) == sorted(CODEC_NAMES)
    for name in (*FIXED_CODECS, "auto"):
        assert parse_codec(name) == CodecChoice(name)
    assert parse_codec("bounded:0.03") == CodecChoice("bounded", 0.03)
    tables = (("C3", 0.01), ("C7", 0.05))
    assert parse_codec("bounded:sizes,C3=0.01,C7=5e-2") == CodecChoice("bounded", None, tables)
    kaggle = parse_codec("bounded:kaggle,C1=0.2")
    assert kaggle.bound == 0.03 and len(kaggle.of_tables) == 27
    bounds = dict(kaggle.of_tables)
    # The published lists count tables from 0.
    assert bounds["C3"] == bounds["C24"] == 0.01 and bounds["C9"] == 0.05 and bounds["C2"] == 0.03
    assert bounds["C1"] == 0.2
    assert dict(parse_codec("bounded:terabyte").of_tables)["C1"] == 0.01


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exchange": "int7"}, "exchange must be none, fp16, .* got 'int7'"),
        ({"exchange": "int8:3"}, "exchange must be .* got 'int8:3'"),
        ({"exchange": "bounded:"}, "got 'bounded:'"),
        ({"exchange": "bounded:0.5"}, "from 2\\*\\*-16 to below 0.5, got '0.5'"),
        ({"exchange": "bounded:nan"}, "got 'nan'"),
        ({"exchange": "bounded:0.1,C3"}, "exchange: want TABLE=BOUND, got 'C3'"),
        ({"exchange": "bounded:budget=0.2"}, "got 'budget=0.2'"),
        ({"exchange": "int4"}, "exchange must be none, fp16, .* got 'int4'"),
        (
            {"exchange_feedback": True},
            "exchange_feedback keeps the errors of gradients, which have none here",
        ),
    ],
)
def test_what_is_no_codec_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExchangeOptions(**fields)


@pytest.mark.parametrize("seconds", ["0", "-1", "1e9", "nan", "soon"])
def test_a_timeout_is_some_seconds(seconds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOTSET_RANK_TIMEOUT", raising=False)
    assert rank_timeout() == 60
    monkeypatch.setenv("HOTSET_RANK_TIMEOUT", "2.5")
    assert rank_timeout() == 2.5
    monkeypatch.setenv("HOTSET_RANK_TIMEOUT", seconds)
    with pytest.raises(ConfigError, match=f"HOTSET_RANK_TIMEOUT is '{seconds}', want seconds"):
        rank_timeout()


@pytest.mark.parametrize(("number", "wanted"), [("", False), ("0", False), ("1", False), ("2", True)])
def test_several_ranks_are_told_by_their_number(
    number: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", number)
    assert is_launched() == wanted


@pytest.mark.parametrize("number", ["abc", "-2", "1.5"])
def test_a_number_of_ranks_that_is_none_is_refused(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", number)
    with pytest.raises(ConfigError, match=f"WORLD_SIZE is '{number}', want the number of ranks"):
        is_launched()


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


@pytest.mark.parametrize("kind", [TrainConfig, RecipeOptions])
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
    assert TrainConfig(embedding_optimizer=None).embedding_optimizer is None
    settings: dict[str, Any] = {"placement": None}
    with pytest.raises(ConfigError, match=r"placement must be one of all-fast, hybrid, .*, got None"):
        TrainConfig(**settings)


@pytest.mark.parametrize(("log", "tight", "loose"), [("kaggle", 8, 6), ("terabyte", 7, 9)])
def test_every_table_of_a_log_has_a_bound(log: str, tight: int, loose: int) -> None:
    bounds = published_bounds(log)
    assert list(bounds) == [f"C{n}" for n in range(1, 27)]
    assert Counter(bounds.values()) == {0.01: tight, 0.05: loose, 0.03: 26 - tight - loose}
    assert set(PUBLISHED_LISTS) == {"kaggle", "terabyte"}


def test_sizes_stand_for_the_lists() -> None:
    assert [bound_by_size(rows) for rows in (1, 999, 1_000, 400_000, 400_001)] == [
        0.05,
        0.05,
        0.03,
        0.03,
        0.01,
    ]
    # Terabyte's table of 313,829 rows is base; Kaggle's of 3 rows is the ninth, counted from 1.
    assert published_bounds("terabyte")["C12"] == bound_by_size(313_829) == 0.03
    assert published_bounds("kaggle")["C9"] == bound_by_size(3) == 0.05


def test_batches_are_tagged_by_the_budget_of_hotsets_own_engine() -> None:
    assert TrainConfig(hot_bytes=ByteSize(1000)).tagging_hot_bytes == 1000
    assert TrainConfig(hot_bytes=ByteSize(1000), engine="torchrec").tagging_hot_bytes is None


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
def test_nonsense_in_a_recipe_is_refused_by_name(fields: dict[str, Any]) -> None:
    name = [*fields][-1]
    with pytest.raises(ConfigError, match=f"^{name} "):
        RecipeOptions(**fields)


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
