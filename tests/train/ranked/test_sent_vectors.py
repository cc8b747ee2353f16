"""Vectors that are sent a step early have the bits of those that are not; tests `moved_rows`, too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.pipeline.stages.schedule_ranks import RankScheduleConfig, schedule_ranks
from hotset.stats.batches.epoch_order import epoch_order
from hotset.stats.exchange.count_exchange import count_exchange
from hotset.stats.exchange.home_moves import NO_HOME
from hotset.stats.exchange.homes_name import HomesName
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.exchange import width_exchange
from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.exchange.rank_reader import RankReader, read_epoch
from hotset.train.ranked import ranked_embeddings
from hotset.train.ranked.moved_rows import read_ahead, read_newest
from hotset.train.ranked.ranked_embeddings import RankedEmbeddings
from hotset.train.ranked.ranked_width import RankedWidth
from hotset.train.ranked.sent_vectors import early_of
from hotset.train.ranks.ranks import OneRank, Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.trainer import Trainer, run_steps
from hotset.train.trainer_building.build_trainer import build_trainer

SPEC = ShardSpec(num_rows=(60, 90), num_hot=(3, 5), num_hot_only=26, num_mixed=70, skew=1.2, batch_size=16)
STAGED = ("lookahead", "cache")


@dataclass(frozen=True)
class Result:
    """What a rank has of a run: losses, at rank 0 the tables, and the bytes that it sent."""

    losses: list[float]
    tables: list[bytes]
    vector_bytes: int
    early_bytes: int


def result(
    shards: Shards,
    ranks: Ranks,
    fields: dict[str, Any],
    *,
    homes: HomesName = "by-use",
    exchange: ChosenExchange | None = None,
    after_step: Callable[[Trainer], None] = lambda _: None,
    changes: Callable[[RankedEmbeddings], None] = lambda _: None,
) -> Result:
    torch.set_num_threads(1)
    defaults: dict[str, Any] = {"placement": "all-fast", "shares": 4, "embedding_optimizer": "adagrad"}
    config = TrainConfig(threads=1, **defaults | fields)
    trainer = build_trainer(shards, config, ranks=ranks, homes=homes, exchange=exchange)
    if isinstance(trainer.embeddings, RankedEmbeddings):
        changes(trainer.embeddings)
    losses: list[float] = []

    def note(trainer: Trainer, _: Any, loss: torch.Tensor) -> None:
        losses.append(float(loss))
        after_step(trainer)

    run_steps(trainer, note)
    tables = [
        trainer.embeddings.table(number, state=state).numpy().tobytes()
        for number in range(len(shards.tables))
        for state in (False, True)
    ]
    counts = trainer.coded.counts
    return Result(losses, tables, counts.sent_bytes["vectors"], counts.early_bytes)


def on_ranks(
    shards: Shards, num_ranks: int, fields: dict[str, Any] | None = None, **options: Any
) -> list[Result]:
    if num_ranks == 1:
        return [result(shards, OneRank(), fields or {}, **options)]
    return run_thread_ranks(num_ranks, lambda ranks: result(shards, ranks, fields or {}, **options), 60)


def send_none_early(embeddings: RankedEmbeddings) -> None:
    for width in embeddings.widths:
        assert isinstance(width, RankedWidth)
        width.exchange.sends_early = False


def embeddings_of(trainer: Trainer) -> RankedEmbeddings:
    assert isinstance(trainer.embeddings, RankedEmbeddings)
    return trainer.embeddings


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards.open(write_shards(tmp_path_factory.mktemp("early") / "shards", SPEC))


@pytest.fixture(scope="module")
def wanted(shards: Shards) -> list[bytes]:
    return on_ranks(shards, 1)[0].tables


def staging(placement: str) -> dict[str, Any]:
    return {"placement": placement, "staging_bytes": 1_000 if placement in STAGED else None}


@pytest.mark.parametrize("homes", ["by-use", "moving"])
@pytest.mark.parametrize("placement", ["all-fast", "lookahead", "cache", "hybrid-dedup"])
@pytest.mark.diagonal(2)
def test_early_vectors_change_neither_bits_nor_the_number_of_bytes(
    placement: str, homes: HomesName, shards: Shards
) -> None:
    fields = staging(placement) | {"epochs": 2}
    found = on_ranks(shards, 4, fields, homes=homes)
    late = on_ranks(shards, 4, fields, homes=homes, changes=send_none_early)
    assert [each.early_bytes for each in late] == [0] * 4
    num_early = sum(each.early_bytes for each in found)
    assert 0 < num_early < sum(each.vector_bytes for each in found)
    assert [each.vector_bytes for each in found] == [each.vector_bytes for each in late]
    assert found[0].tables == late[0].tables == on_ranks(shards, 1, fields)[0].tables
    assert [each.losses for each in found] == [each.losses for each in late]


@pytest.mark.parametrize("is_scheduled", [False, True])
def test_as_many_bytes_are_early_as_the_plan_says(is_scheduled: bool, tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPEC))
    if is_scheduled:
        schedule_ranks(RankScheduleConfig(ranks=4), shards.manifest, tmp_path / "exchange")
    found = on_ranks(shards, 4)
    order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped)
    dim = shards.embedding_dim
    plan = count_exchange(read_epoch(RankReader(shards, [0, 1], 4), order.tolist()), dim, dim).by_use
    assert sum(each.early_bytes for each in found) == 4 * dim * plan.early > 0
    assert sum(each.vector_bytes for each in found) == 4 * dim * plan.vectors


def mark_all(keys: NDArray[np.int32], before: NDArray[np.uint8], earlier: Any) -> NDArray[np.bool_]:
    is_early: NDArray[np.bool_] = before != NO_HOME
    return is_early


@pytest.mark.parametrize("placement", ["all-fast", "lookahead"])
def test_a_vector_sent_before_its_update_is_found(
    placement: str, shards: Shards, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = staging(placement)
    assert on_ranks(shards, 2, fields)[0].tables == wanted
    monkeypatch.setattr(width_exchange, "early_rows", mark_all)
    assert on_ranks(shards, 2, fields)[0].tables != wanted


@pytest.mark.parametrize("placement", ["all-fast", "lookahead"])
def test_evaluations_between_steps_change_nothing(
    placement: str, shards: Shards, wanted: list[bytes]
) -> None:
    def evaluate(trainer: Trainer) -> None:
        if trainer.step % 2:
            trainer.predictor.score()

    assert on_ranks(shards, 4, staging(placement), after_step=evaluate)[0].tables == wanted


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("placement", STAGED)
def test_rows_are_read_ahead_where_they_are(
    placement: str, prefetch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan as if all transfers were held back and each row was looked for."""
    # Little skew and little room, so that rows which stay away for a step are evicted and fetched again.
    spec = replace(SPEC, skew=1.1, batch_size=8, num_mixed=160)
    shards = Shards.open(write_shards(tmp_path / "shards", spec))
    by_plan: list[int] = []
    send_ahead = RankedEmbeddings.send_ahead

    def read_and_note(executor: Any, step: Any, positions_N: Any) -> Any:
        by_plan.append(positions_N.size)
        return read_ahead(executor, step, positions_N)

    def send_and_check(self: RankedEmbeddings, step: Any) -> None:
        send_ahead(self, step)
        if step is not None:
            (width,), (part,), (each,) = self.widths, step.parts, early_of(step)
            with self.transfers.paused():
                newest_ND = read_newest(width.executor, part, each.sent)
            under_way = self._vectors._ahead
            assert under_way is not None
            assert under_way.rows._sent.data.numpy().tobytes() == newest_ND.tobytes()

    monkeypatch.setattr(ranked_embeddings, "read_ahead", read_and_note)
    monkeypatch.setattr(RankedEmbeddings, "send_ahead", send_and_check)
    on_ranks(shards, 2, {"placement": placement, "staging_bytes": 700, "prefetch": prefetch, "epochs": 2})
    assert sum(by_plan) > 0


@given(
    placement=st.sampled_from(["all-fast", "hybrid", "cache", "lookahead"]),
    num_ranks=st.sampled_from([2, 4]),
    staging_bytes=st.sampled_from([100, 400, 2_000, 20_000]),
    prefetch=st.sampled_from([0, 1, 3]),
    plan=st.sampled_from(["epoch", "online"]),
    homes=st.sampled_from(["striped", "by-use", "moving"]),
    seed=st.integers(0, 100),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_drawn_runs_have_the_bits_of_one_process(
    shards: Shards,
    placement: str,
    num_ranks: int,
    staging_bytes: int,
    prefetch: int,
    plan: str,
    homes: HomesName,
    seed: int,
) -> None:
    is_staged = placement in STAGED
    fields = {
        "placement": placement,
        "staging_bytes": staging_bytes if is_staged else None,
        "prefetch": prefetch if is_staged else None,
        "plan": plan if placement == "lookahead" else "auto",
        "epochs": 2,
        "seed": seed,
    }
    found = on_ranks(shards, num_ranks, fields, homes=homes)
    assert found[0].tables == on_ranks(shards, 1, fields)[0].tables


def test_codecs_that_take_rows_alone_send_them_early(shards: Shards) -> None:
    for name, is_alone in (("int8", True), ("bf16", True), ("bounded:0.03", False)):
        exchange = ChosenExchange(name, "int8")
        found = on_ranks(shards, 2, exchange=exchange)
        late = on_ranks(shards, 2, exchange=exchange, changes=send_none_early)
        assert all((each.early_bytes > 0) == is_alone for each in found)
        assert found[0].tables == late[0].tables and found[0].losses == late[0].losses


def test_a_codec_that_decays_is_that_of_the_step_of_the_vectors(shards: Shards) -> None:
    # Nothing of a codec that takes rows alone decays: both messages of a step have its own factor.
    exchange = ChosenExchange("int8", "bounded:0.05", decay="linear", early_steps=3)
    late = on_ranks(shards, 2, exchange=exchange, changes=send_none_early)
    assert on_ranks(shards, 2, exchange=exchange)[0].tables == late[0].tables


def test_an_order_that_is_decided_as_it_goes_sends_nothing_early(shards: Shards) -> None:
    found = on_ranks(shards, 4, {"placement": "fae"})
    assert [each.early_bytes for each in found] == [0] * 4


def test_what_was_sent_for_a_step_that_does_not_come_is_taken(shards: Shards) -> None:
    """The run goes on with other messages, whose bytes must not be mixed up with those under way."""

    def work(ranks: Ranks) -> tuple[bool, bool, list[int]]:
        torch.set_num_threads(1)
        trainer = build_trainer(shards, TrainConfig(threads=1, placement="all-fast", shares=2), ranks=ranks)
        steps = list(trainer.steps())
        assert steps[-1].following is None and steps[0].following is steps[1].step
        trainer.runner.train(steps[0], 0, trainer.rates.of_step(0))
        is_ahead = embeddings_of(trainer).has_sent_ahead
        trainer.embeddings.stop()
        is_left = embeddings_of(trainer).has_sent_ahead
        gathered = ranks.gather(torch.tensor([ranks.rank]))
        return is_ahead, is_left, [int(each) for each in gathered]

    assert run_thread_ranks(2, work, 20) == [(True, False, [0, 1])] * 2


def test_steps_in_another_order_than_announced_get_their_own_vectors(shards: Shards) -> None:
    def work(ranks: Ranks, *, is_announced: bool) -> list[bytes]:
        torch.set_num_threads(1)
        trainer = build_trainer(shards, TrainConfig(threads=1, placement="all-fast", shares=2), ranks=ranks)
        if not is_announced:
            send_none_early(embeddings_of(trainer))
        steps = list(trainer.steps())
        # Vectors of the third step are on their way when the second one comes.
        for number, step in enumerate(steps):
            if is_announced:
                trainer.embeddings.wait_for_rows(step.step)
                skipped = steps[number + 2].step if number + 2 < len(steps) else None
                step = type(step)(step.step, following=skipped)
            trainer.runner.train(step, number, trainer.rates.of_step(number))
        trainer.embeddings.stop()
        return [trainer.embeddings.table(n).numpy().tobytes() for n in range(2)]

    found = run_thread_ranks(2, lambda ranks: work(ranks, is_announced=True), 20)
    assert found[0] == run_thread_ranks(2, lambda ranks: work(ranks, is_announced=False), 20)[0]
