"""Codecs are read from options, and what is none is refused by its option."""

from __future__ import annotations

from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.stats.codecs.codec_names import CODEC_NAMES
from hotset.train.options.exchange_options import FIXED_CODECS, CodecChoice, ExchangeOptions, parse_codec


def test_codecs_are_read() -> None:
    assert sorted(FIXED_CODECS) == sorted(CODEC_NAMES)
    for name in (*FIXED_CODECS, "auto"):
        assert parse_codec("exchange", name) == CodecChoice(name)
    assert parse_codec("exchange", "bounded:0.03") == CodecChoice("bounded", 0.03)
    tables = (("C3", 0.01), ("C7", 0.05))
    assert parse_codec("exchange", "bounded:sizes,C3=0.01,C7=5e-2") == CodecChoice("bounded", None, tables)
    assert parse_codec("exchange", "bounded:budget=0.15") == CodecChoice("bounded", budget=0.15)
    assert parse_codec("exchange", "bounded:budget=64KiB") == CodecChoice("bounded", budget=65_536)
    kaggle = parse_codec("exchange", "bounded:kaggle,C1=0.2")
    assert kaggle.bound == 0.03 and len(kaggle.of_tables) == 27
    bounds = dict(kaggle.of_tables)
    # The published lists count tables from 0.
    assert bounds["C3"] == bounds["C24"] == 0.01 and bounds["C9"] == 0.05 and bounds["C2"] == 0.03
    assert bounds["C1"] == 0.2
    assert dict(parse_codec("exchange", "bounded:terabyte").of_tables)["C1"] == 0.01


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"exchange": "int7"}, "exchange must be none, fp16, .* got 'int7'"),
        ({"exchange": "int8:3"}, "exchange must be .* got 'int8:3'"),
        ({"exchange": "bounded:"}, "got 'bounded:'"),
        ({"exchange": "bounded:0.5"}, "from 2\\*\\*-16 to below 0.5, got '0.5'"),
        ({"exchange": "bounded:nan"}, "got 'nan'"),
        ({"exchange_back": "bounded:0.1,C3"}, "exchange_back: want TABLE=BOUND, got 'C3'"),
        ({"exchange": "bounded:budget=0"}, "a budget is a share above 0 or a size, got '0'"),
        ({"exchange": "bounded:budget=-3"}, "a budget is a share above 0 or a size, got '-3'"),
        ({"exchange": "bounded:budget=nan"}, "a share such as 0.2 or a size such as 64KiB, got 'nan'"),
        ({"exchange": "bounded:budget=0KiB"}, "got '0KiB'"),
        ({"exchange": "bounded:budget="}, "got ''"),
        ({"exchange": "bounded:budget=0.2,C1=0.1"}, "follow from its bytes, got 'C1=0.1' too"),
        (
            {"exchange": "bounded:budget=0.2", "exchange_decay": "log"},
            "those of exchange bounded:budget=0.2 follow from bytes: leave one of them out",
        ),
        ({"exchange_dense": "bounded:budget=0.2"}, "exchange_dense must be one of none, fp16"),
        (
            {"exchange_feedback": True},
            "exchange_feedback keeps the errors of gradients, which have none here",
        ),
        (
            {"exchange": "int8", "exchange_back": "none", "exchange_feedback": True},
            "give --exchange int8, too",
        ),
        ({"sync_rows": 5}, "--sync-rows is given without --sync-every"),
        ({"sync_every": 5}, "--sync-every is given without --sync-rows"),
        ({"sync_rows": 0, "sync_every": 4}, "sync_rows must be 1 or more, got 0"),
        ({"sync_rows": 9, "sync_every": 1}, "sync_every must be 2 or more, got 1"),
        ({"exchange_back": "auto"}, "exchange_back cannot be auto"),
        ({"exchange_dense": "auto"}, "exchange_dense cannot be auto"),
        ({"exchange_dense": "bounded:0.1"}, "exchange_dense must be one of none, fp16"),
        ({"exchange_early": 0.0}, "exchange_early must be above 0"),
    ],
)
def test_what_is_no_codec_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ExchangeOptions(**fields)
