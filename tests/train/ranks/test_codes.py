"""Options become the codecs of each step; tests `codes`, too.

Errors of hot rows come back with their next gradients, against a naive twin; tests `rank_checkpoints`, too.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ConfigError
from hotset.stats.codecs import BoundedCodec, RowMessage, codec_of, shape_of
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.checkpoints.rank_checkpoints import SavedErrors
from hotset.train.config import ChosenExchange, ExchangeOptions
from hotset.train.data.batch import EmbeddingTable
from hotset.train.ranks.codes import (
    EXACT,
    CodedExchange,
    Coding,
    GroupErrors,
    check_tables_of_bounds,
    chosen_by,
    codec_for,
    loosened,
)
from hotset.train.ranks.messages import Crossing, GroupLayout, RowMessages
from hotset.train.ranks.ranks import Ranks

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
    by_size = codec_for("bounded:sizes,C1=0.2", TABLES)
    assert isinstance(by_size, BoundedCodec) and by_size.of_tables == {0: 0.05, 1: 0.2, 2: 0.03, 3: 0.01}
    codec = codec_for("bounded:0.3,C2=0.01", TABLES)
    looser = loosened(codec, 1.5)
    assert isinstance(looser, BoundedCodec)
    # A bound of half the range would say nothing.
    assert looser.of_tables == pytest.approx({0: 0.45, 1: 0.45, 2: 0.015, 3: 0.45})
    twice = loosened(codec, 2.0)
    assert isinstance(twice, BoundedCodec) and twice.bound == 0.49 == twice.of_tables[0]
    assert loosened(codec_for("int8", TABLES), 2.0).name == "int8"


def test_a_bound_of_no_table_is_refused() -> None:
    check_tables_of_bounds(ChosenExchange("bounded:0.1,C2=0.2"), TABLES)
    with pytest.raises(ConfigError, match="exchange: there is no table 'C4'"):
        check_tables_of_bounds(ChosenExchange("bounded:kaggle"), TABLES)


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


DIM = 6
HOT_TABLES = [
    EmbeddingTable("C1", 20, 4, DIM),
    EmbeddingTable("C2", 1, 0, DIM),
    EmbeddingTable("C3", 30, 5, DIM),
]
HOT = {*range(4), *range(21, 26)}
"""Keys of hot rows, table after table."""
LAYOUT = [GroupLayout(DIM, np.array([0, 20, 21, 51]), ("C1", "C2", "C3"))]


def steps_of(num_steps: int) -> list[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    rng = np.random.default_rng(5)
    found = []
    for _ in range(num_steps):
        keys = np.flatnonzero(rng.random(51) < 0.5).astype(np.int32)
        found.append((keys, rng.normal(size=(keys.size, DIM)).astype(np.float32)))
    return found


def sent_to_first(ranks: Ranks, codec: str, errors: GroupErrors | None) -> list[NDArray[np.float32]]:
    """What rank 0 decodes of the gradients that rank 1 sends in each step."""
    messages = RowMessages(ranks, LAYOUT)
    none = Crossing((0, 0), np.empty(0, np.int32), np.empty(0, np.int32))
    arrived = []
    for step, (keys, rows) in enumerate(steps_of(12)):
        coding = Coding([codec_of(codec)], [step], None if errors is None else [errors])
        out = Crossing((keys.size, 0), keys, keys) if ranks.rank else none
        into = none if ranks.rank else Crossing((0, keys.size), keys, keys)
        given = rows.copy() if ranks.rank else rows[:0]
        (found,) = messages.send([given], [out], [into], coding)()
        assert given.tobytes() == (rows if ranks.rank else rows[:0]).tobytes()
        arrived.append(found)
    return arrived


@pytest.mark.parametrize("codec", ["int8", "bf16", "bounded:0.05"])
def test_gradients_carry_the_errors_of_those_before(codec: str) -> None:
    kept = [GroupErrors(HOT_TABLES) for _ in range(2)]
    arrived = run_thread_ranks(2, lambda ranks: sent_to_first(ranks, codec, kept[ranks.rank]), 20)[0]
    # The same row by row, with a dict of errors.
    errors: dict[int, NDArray[np.float32]] = {}
    given = np.zeros((51, DIM))
    received = np.zeros((51, DIM))
    for step, (keys, rows) in enumerate(steps_of(12)):
        with_errors = rows.copy()
        for row, key in enumerate(keys.tolist()):
            if key in errors:
                with_errors[row] = rows[row] + errors[key]
        starts = np.searchsorted(keys, [0, 20, 21, 51])
        message = RowMessage(with_errors, starts, keys.astype(np.int64), step)
        data = np.empty(codec_of(codec).num_bytes(shape_of(message)), np.uint8)
        codec_of(codec).encode(message, data)
        decoded = np.empty_like(rows)
        codec_of(codec).decode(data, shape_of(message), decoded)
        errors |= {key: with_errors[n] - decoded[n] for n, key in enumerate(keys.tolist()) if key in HOT}
        assert arrived[step].tobytes() == decoded.tobytes()
        given[keys] += rows
        received[keys] += decoded
    assert len(errors) == 9 and not kept[0].errors_HD.any()
    hot = sorted(HOT)
    assert kept[1].errors_HD.tobytes() == np.stack([errors[key] for key in hot]).tobytes()
    # Nothing is lost but the last error.
    assert (received + 0)[hot] == pytest.approx(given[hot] - kept[1].errors_HD, abs=1e-4)
    plain = run_thread_ranks(2, lambda ranks: sent_to_first(ranks, codec, None), 20)[0]
    lost = sum(
        np.abs(
            sum(
                np.where(keys[:, None] == key, each, 0).sum(axis=0)
                for (keys, _), each in zip(steps_of(12), plain, strict=True)
            )
            - given[key]
        ).sum()
        for key in hot
    )
    assert np.abs(received[hot] - given[hot]).sum() < lost


def test_errors_of_all_ranks_are_saved_at_the_first() -> None:
    def work(ranks: Ranks) -> GroupErrors:
        rng = np.random.default_rng(ranks.rank)
        widths = [GroupErrors(HOT_TABLES), GroupErrors([EmbeddingTable("C4", 7, 0, 2)])]
        widths[0].errors_HD[:] = rng.normal(size=(9, DIM))
        widths[0].errors_HD[3] = 0
        widths[0].errors_HD[4] = -0.0
        saved = SavedErrors(ranks, widths)
        saved.bring_together()
        states.append(dict(saved.state())) if ranks.rank == 0 else None
        assert ranks.rank == 0 or not saved.state()
        ranks.gather(torch.zeros(1))
        again = [GroupErrors(HOT_TABLES), GroupErrors([EmbeddingTable("C4", 7, 0, 2)])]
        SavedErrors(ranks, again).restore(states[0])
        assert again[0].errors_HD.tobytes() == widths[0].errors_HD.tobytes()
        # A damaged state is refused before a row is written.
        name = f"rank {ranks.rank} width 0 "
        for change in (
            {name + "rows": torch.full((8,), 9)},
            {name + "rows": torch.zeros(8)},
            {name + "errors": torch.zeros(8, 5)},
        ):
            with pytest.raises(ValueError, match=r"rows|row 9"):
                SavedErrors(ranks, again).restore({**states[0], **change})
        return again[0]

    states: list[dict[str, torch.Tensor]] = []
    found = run_thread_ranks(3, work, 20)
    assert len({each.errors_HD.tobytes() for each in found}) == 3
    assert states[0]["rank 2 width 0 rows"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8]
