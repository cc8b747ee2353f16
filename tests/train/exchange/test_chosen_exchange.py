"""Options become the codecs of each step; tests `coded_exchange`, too."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.stats.codecs.bounded_codec import BoundedCodec
from hotset.train.data.batch import EmbeddingTable
from hotset.train.exchange.chosen_exchange import (
    ChosenExchange,
    WidthCodec,
    chosen_by,
    factor_at,
    refuse_unknown_tables,
)
from hotset.train.exchange.coded_exchange import CodedExchange
from hotset.train.options.exchange_options import ExchangeOptions

TABLES = [EmbeddingTable(f"C{n}", rows, 1, 4) for n, rows in enumerate((999, 1_000, 400_000, 400_001))]


def test_what_is_left_open_follows_from_the_options() -> None:
    assert chosen_by(ExchangeOptions(), 100).is_exact
    assert chosen_by(ExchangeOptions(exchange="auto"), 100) == ChosenExchange()
    assert chosen_by(ExchangeOptions(exchange="int4"), 100) == ChosenExchange("int4", "int4")
    bounded = chosen_by(ExchangeOptions(exchange="bounded:0.03", exchange_decay="step"), 100)
    assert bounded == ChosenExchange("bounded:0.03", "int8", "none", "step", 20)
    assert ChosenExchange.of_json(bounded.to_json() | {"ranks": 2}) == bounded
    steps = ExchangeOptions(exchange_decay="log", exchange_early=65_536, exchange_dense="bf16")
    assert chosen_by(steps, 100) == ChosenExchange("none", "none", "bf16", "log", 65_536)
    assert not chosen_by(steps, 100).is_exact


def test_bounds_go_by_table_and_step() -> None:
    by_size = WidthCodec("exchange", "bounded:sizes,C1=0.2", TABLES).at(1.0)
    assert isinstance(by_size, BoundedCodec) and by_size.of_tables == {0: 0.05, 1: 0.2, 2: 0.03, 3: 0.01}
    codec = WidthCodec("exchange", "bounded:0.3,C2=0.01", TABLES)
    looser = codec.at(factor_at(ChosenExchange(decay="linear", early_steps=10), 5))
    assert isinstance(looser, BoundedCodec)
    # A bound of half the range would say nothing.
    assert looser.of_tables == pytest.approx({0: 0.45, 1: 0.45, 2: 0.015, 3: 0.45})
    assert codec.at(2.0).num_bytes is not None
    assert WidthCodec("exchange", "int8", TABLES).at(2.0).name == "int8"


def test_a_bound_of_no_table_is_refused() -> None:
    refuse_unknown_tables(ChosenExchange("bounded:0.1,C2=0.2"), TABLES)
    with pytest.raises(ConfigError, match="exchange_back: there is no table 'C9'"):
        refuse_unknown_tables(ChosenExchange(gradients="bounded:0.1,C9=0.2"), TABLES)


def test_random_bits_change_with_seed_step_rank_and_width() -> None:
    def streams(rank: int, seed: int, step: int) -> list[int | None]:
        coded = CodedExchange(rank, seed, [TABLES[:2], TABLES[2:]], step)
        coded.use(ChosenExchange("int8", "int8"))
        assert list(coded.vectors().streams) == [None, None]
        return [*coded.gradients().streams, coded.dense("partials")[1], coded.dense("sums")[1]]

    found = [streams(*each) for each in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({stream for each in found for stream in each}) == 16
    assert streams(0, 0, 0) == found[0]
