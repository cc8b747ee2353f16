"""Options become the codecs of each step; tests `coded_exchange`, too."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.stats.codecs import BoundedCodec, codec_of
from hotset.train.data.batch import EmbeddingTable
from hotset.train.exchange.chosen_exchange import (
    ChosenExchange,
    WidthCodec,
    chosen_by,
    factor_at,
    refuse_unknown_tables,
)
from hotset.train.exchange.coded_exchange import EXACT, CodedExchange, Coding
from hotset.train.options.exchange_options import ExchangeOptions

TABLES = [EmbeddingTable(f"C{n}", rows, 1, 4) for n, rows in enumerate((999, 1_000, 400_000, 400_001))]


def test_what_is_left_open_follows_from_the_options() -> None:
    assert chosen_by(ExchangeOptions(), 100).is_exact
    assert chosen_by(ExchangeOptions(exchange="auto"), 100) == ChosenExchange()
    bounded = chosen_by(ExchangeOptions(exchange="bounded:0.03"), 100)
    assert bounded == ChosenExchange("bounded:0.03", "int8", "bf16", 20)
    # Runs of earlier versions recorded more.
    assert ChosenExchange.of_json(bounded.to_json() | {"ranks": 2, "decay": "linear"}) == bounded
    assert chosen_by(ExchangeOptions(exchange="int8", exchange_feedback=True), 9).feedback


def test_bounds_go_by_table_and_step() -> None:
    by_size = WidthCodec("exchange", "bounded:sizes,C1=0.2", TABLES).at(1.0)
    assert isinstance(by_size, BoundedCodec) and by_size.of_tables == {0: 0.05, 1: 0.2, 2: 0.03, 3: 0.01}
    codec = WidthCodec("exchange", "bounded:0.3,C2=0.01", TABLES)
    looser = codec.at(factor_at(ChosenExchange(early_steps=10), 5))
    assert isinstance(looser, BoundedCodec)
    # A bound of half the range would say nothing.
    assert looser.of_tables == pytest.approx({0: 0.45, 1: 0.45, 2: 0.015, 3: 0.45})
    twice = codec.at(2.0)
    assert isinstance(twice, BoundedCodec) and twice.bound == 0.49 == twice.of_tables[0]
    assert WidthCodec("exchange", "int8", TABLES).at(2.0).name == "int8"


def test_a_bound_of_no_table_is_refused() -> None:
    refuse_unknown_tables(ChosenExchange("bounded:0.1,C2=0.2"), TABLES)
    with pytest.raises(ConfigError, match="exchange: there is no table 'C4'"):
        refuse_unknown_tables(ChosenExchange("bounded:kaggle"), TABLES)


def test_random_bits_change_with_seed_step_rank_and_width() -> None:
    def streams(rank: int, seed: int, step: int) -> list[int | None]:
        coded = CodedExchange(rank, seed, [TABLES[:2], TABLES[2:]], step)
        coded.use(ChosenExchange("int8", "int8"))
        assert list(coded.vectors().streams) == [None, None]
        return [*coded.gradients().streams, coded.dense("partials")[1], coded.dense("sums")[1]]

    found = [streams(*each) for each in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({stream for each in found for stream in each}) == 16
    assert streams(0, 0, 0) == found[0]


def test_bounds_tighten_as_steps_are_done() -> None:
    coded = CodedExchange(0, 0, [TABLES[:1], TABLES[1:]])
    coded.use(ChosenExchange("bounded:0.1", "bounded:sizes", "none", 20))
    bounds = []
    for _ in range(22):
        vectors, gradients = coded.vectors().codecs, coded.gradients().codecs
        assert all(isinstance(codec, BoundedCodec) for codec in (*vectors, *gradients))
        first, second = vectors[0], gradients[1]
        assert isinstance(first, BoundedCodec) and isinstance(second, BoundedCodec)
        bounds.append(first.bound)
        # Each table by the same factor.
        factor = first.bound / 0.1
        assert second.of_tables == pytest.approx({0: 0.03 * factor, 1: 0.03 * factor, 2: 0.01 * factor})
        coded.note_step()
    # A twentieth less every step, and the bound itself from then on.
    assert bounds == pytest.approx([0.1 * (2 - step / 20) for step in range(20)] + [0.1, 0.1])
    assert coded.step == coded.counts.num_steps == 22
    # A run that is resumed goes on where it was.
    resumed = CodedExchange(0, 0, [TABLES[:1], TABLES[1:]], step=7)
    resumed.use(coded.chosen)
    (codec, _) = resumed.vectors().codecs
    assert isinstance(codec, BoundedCodec) and codec.bound == bounds[7]


def test_rows_cross_as_they_are_only_where_every_width_does() -> None:
    exact, coarse = codec_of("none"), codec_of("int8")
    assert EXACT.is_exact and Coding([exact, exact], [None, 5]).is_exact
    assert not Coding([exact, coarse], [None, None]).is_exact
    coded = CodedExchange(1, 2, [TABLES])
    assert coded.vectors().is_exact and coded.gradients().is_exact and coded.dense("sums")[0].is_exact
    coded.use(ChosenExchange(gradients="bf16"))
    assert coded.vectors().is_exact and not coded.gradients().is_exact
    assert not coded.chosen.is_exact and coded.prediction is None
    with coded.clocked("gradients"):
        pass
    assert coded.counts.seconds == coded.counts.seconds_of["gradients"] > 0
    assert set(coded.counts.sent_bytes.values()) == {0}


@pytest.mark.parametrize(
    ("exchange", "wanted"),
    [
        ("none", ("none", "none", "none", 0)),
        ("fp16", ("fp16", "fp16", "fp16", 0)),
        ("bf16", ("bf16", "bf16", "bf16", 0)),
        ("int8", ("int8", "int8", "bf16", 0)),
        ("bounded:sizes", ("bounded:sizes", "int8", "bf16", 2)),
    ],
)
def test_codecs_of_each_way_follow_from_the_option(exchange: str, wanted: tuple[str | int, ...]) -> None:
    chosen = chosen_by(ExchangeOptions(exchange=exchange), 10)
    assert (chosen.vectors, chosen.gradients, chosen.dense, chosen.early_steps) == wanted
