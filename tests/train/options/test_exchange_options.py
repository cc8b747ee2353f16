"""Codecs are read from options, and what is none is refused by its option."""

from __future__ import annotations

from typing import Any

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.stats.codecs import CODEC_NAMES
from hotset.train.options.exchange_options import FIXED_CODECS, CodecChoice, ExchangeOptions, parse_codec


def test_codecs_are_read() -> None:
    assert sorted(FIXED_CODECS) == sorted(CODEC_NAMES)
    for name in (*FIXED_CODECS, "auto"):
        assert parse_codec("exchange", name) == CodecChoice(name)
    assert parse_codec("exchange", "bounded:0.03") == CodecChoice("bounded", 0.03)
    tables = (("C3", 0.01), ("C7", 0.05))
    assert parse_codec("exchange", "bounded:sizes,C3=0.01,C7=5e-2") == CodecChoice("bounded", None, tables)
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
