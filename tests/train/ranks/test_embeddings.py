"""Training on several ranks ends with the bits of one process with as many shares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import HotsetError, ShardError
from hotset.stats.codecs import codec_of
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train import ranked_run
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.config_parts import ChosenExchange
from hotset.train.data.batch import Batch, MicroBatches
from hotset.train.data.shards import Part, ShardSet
from hotset.train.loop import run_steps
from hotset.train.metrics import Quality
from hotset.train.ranks import embeddings as ranked_embeddings
from hotset.train.ranks.exchange import HeldRows, Node
from hotset.train.ranks.messages import Coding
from hotset.train.ranks.ranks import OneRank, RankError, Ranks

PLACEMENTS = ("all-fast", "hybrid", "hybrid-dedup", "fae", "cache", "lookahead")
SPEC = ShardSpec(
    num_rows=(60, 1, 90), num_hot=(3, 1, 5), num_hot_only=26, num_mixed=110, skew=1.2, batch_size=20
)
Result = tuple[list[float], float | None, dict[str, bytes]]


def result(
    shards: ShardSet, fields: dict[str, Any], ranks: Ranks, exchange: ChosenExchange | None = None
) -> Result:
    """Losses, AUC, and the bytes of weights and states."""
    torch.set_num_threads(1)
    config = TrainConfig(threads=1, **fields)
    trainer = build_trainer(shards, config, ranks=ranks, exchange=exchange)
    losses: list[float] = []
    run_steps(trainer, lambda _, __, loss: losses.append(float(loss)))
    quality = trainer.predictor.score_run()
    weights = trainer.weights()
    found = {name: weights[name].numpy().tobytes() for name in sorted(weights)}
    for number, table in enumerate(shards.tables):
        found[f"{table.name} state"] = trainer.embeddings.table(number, state=True).numpy().tobytes()
    assert trainer.num_samples == shards.num_training_samples * config.epochs
    return losses, quality.auc, found


def on_ranks(
    shards: ShardSet, fields: dict[str, Any], num_ranks: int, exchange: ChosenExchange | None = None
) -> list[Result]:
    return run_thread_ranks(num_ranks, lambda ranks: result(shards, fields, ranks, exchange), 20)


def fields_of(placement: str, num_shares: int) -> dict[str, Any]:
    return {
        "placement": placement,
        "micro_batches": num_shares,
        "embedding_optimizer": "adagrad",
        "staging_bytes": 2_000 if placement in ("cache", "lookahead") else None,
    }


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("ranks") / "shards", SPEC))


@pytest.mark.parametrize(
    ("placement", "num_ranks"),
    [
        # Each placement with two or four ranks, and in the slow run with the other number.
        pytest.param(placement, num_ranks, marks=[] if number % 2 == half else pytest.mark.slow)
        for number, placement in enumerate(PLACEMENTS)
        for half, num_ranks in enumerate((2, 4))
    ],
)
def test_ranks_end_with_the_bits_of_one_process(placement: str, num_ranks: int, shards: ShardSet) -> None:
    fields = fields_of(placement, 4)
    wanted = result(shards, fields, OneRank())
    found = on_ranks(shards, fields, num_ranks)
    assert found[0] == wanted
    # All ranks know losses and scores; only rank 0 has the tables.
    assert all(each[:2] == wanted[:2] for each in found)


def check_drawn(placement: str, num_ranks: int, per_rank: int, seed: int, path: Path) -> None:
    """Compare a drawn run: tables, skew, widths, optimizers, bags, capacities, prefetch, short batches."""
    rng = np.random.default_rng(seed)

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    num_tables = int(rng.integers(1, 5))
    num_rows = tuple(rng.integers(1, 80, num_tables).tolist())
    multi_hot = tuple(n for n in range(num_tables) if rng.random() < 0.3)
    spec = ShardSpec(
        num_rows=num_rows,
        num_hot=tuple(int(rng.integers(1, rows + 1)) for rows in num_rows),
        batch_size=num_ranks * per_rank + int(rng.integers(0, 30)),
        num_hot_only=int(rng.integers(0, 50)),
        num_mixed=int(rng.integers(1, 120)),
        num_evaluation=int(rng.integers(1, 70)),
        num_dense=2 if num_tables == 1 else one_of(0, 2),
        skew=1.2 if multi_hot else one_of(0, 1.2, 2.0),
        seed=seed,
        multi_hot=multi_hot,
        table_dims=one_of(None, tuple(int(one_of(2, 4)) for _ in num_rows)),
        order=one_of("grouped", "original"),
    )
    if num_tables > 1 and one_of(False, True):
        shared: dict[str, Any] = {
            "num_rows": (num_rows[0], *spec.num_rows[:-1]),
            "num_hot": (spec.num_hot[0], *spec.num_hot[:-1]),
        }
        spec = replace(spec, same_table=(1,), **shared)
    drawn = ShardSet.open(write_shards(path, spec))
    staged = placement in ("cache", "lookahead")
    fields = {
        "placement": placement,
        "micro_batches": num_ranks * per_rank,
        "embedding_optimizer": one_of("sgd", "momentum", "adagrad", "rowwise-adagrad", "adam"),
        "epochs": one_of(1, 2),
        "staging_bytes": one_of(100, 1_000, 20_000) if staged else None,
        "prefetch": one_of(0, 1, 3) if staged else None,
    }
    assert on_ranks(drawn, fields, num_ranks)[0] == result(drawn, fields, OneRank())


DRAWN = {
    "placement": st.sampled_from(PLACEMENTS),
    "num_ranks": st.sampled_from([2, 3, 4, 6, 8]),
    "per_rank": st.sampled_from([1, 2, 4]),
    "seed": st.integers(0, 10_000),
}


@given(**DRAWN)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_drawn_runs_end_with_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, placement: str, num_ranks: int, per_rank: int, seed: int
) -> None:
    check_drawn(placement, num_ranks, per_rank, seed, tmp_path_factory.mktemp("drawn") / "shards")


@pytest.mark.slow
@given(**DRAWN)
@settings(max_examples=24, deadline=None, derandomize=True)
def test_many_drawn_runs_end_with_the_same_bits(
    tmp_path_factory: pytest.TempPathFactory, placement: str, num_ranks: int, per_rank: int, seed: int
) -> None:
    check_drawn(placement, num_ranks, per_rank, seed, tmp_path_factory.mktemp("drawn") / "shards")


INT8 = ChosenExchange("int8", "int8", "bf16")


def test_a_coded_run_is_repeatable_under_every_placement(shards: ShardSet) -> None:
    wanted = result(shards, fields_of("all-fast", 2), OneRank())
    found = on_ranks(shards, fields_of("all-fast", 2), 2, exchange=INT8)
    # Rounded, but near.
    assert found[0] != wanted
    assert found[0][0] == pytest.approx(wanted[0], rel=0.02)
    assert all(each[:2] == found[0][:2] for each in found)
    for placement in ("lookahead", "hybrid-dedup"):
        assert on_ranks(shards, fields_of(placement, 2), 2, exchange=INT8)[0] == found[0]
    # Each way by itself is rounded, too.
    for exchange in (ChosenExchange("int8"), ChosenExchange(gradients="int8"), ChosenExchange(dense="bf16")):
        assert on_ranks(shards, fields_of("all-fast", 2), 2, exchange=exchange)[0] not in (wanted, found[0])


def test_evaluation_reads_rows_as_they_are(shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(threads=1, micro_batches=2, placement="all-fast")

    def scored(ranks: Ranks) -> tuple[float | None, int]:
        trainer = build_trainer(shards, config, ranks=ranks, exchange=INT8)
        assert trainer.rank_codecs is not None
        return trainer.predictor.score_run().auc, sum(trainer.rank_codecs.counts.sent_bytes.values())

    exact = build_trainer(
        shards, TrainConfig(threads=1, micro_batches=2, placement="all-fast")
    ).predictor.score_run()
    # Evaluations are not counted as training, either.
    assert run_thread_ranks(2, scored, 20) == [(exact.auc, 0)] * 2
    monkeypatch.setattr(ranked_embeddings, "EXACT", Coding([codec_of("int8")], [None]))
    assert run_thread_ranks(2, scored, 20) != [(exact.auc, 0)] * 2


def test_ranks_predict_both_parts_with_the_bits_of_one_process(tmp_path: Path) -> None:
    """Also where a stored batch has samples of both, and where the last round has no batch for a rank."""
    spec = replace(SPEC, num_evaluation=90, num_validation=33, multi_hot=(2,))
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))

    def logits(ranks: Ranks) -> tuple[dict[Part, list[tuple[int, bytes, bytes]]], Quality]:
        torch.set_num_threads(1)
        config = TrainConfig(threads=1, micro_batches=4, placement="lookahead")
        predictor = build_trainer(shards, config, ranks=ranks).predictor
        # Scores of the first samples end within a round.
        first = predictor.score(30)
        return {
            part: [
                (batch.num_samples, batch.label_B.numpy().tobytes(), logit_B.tobytes())
                for batch, logit_B in predictor.logits(part)
            ]
            for part in ("validation", "test")
        }, first

    wanted, first = logits(OneRank())
    assert first.num_samples == 30
    assert [num_samples for num_samples, _, _ in wanted["validation"]] == [20, 13]
    assert [num_samples for num_samples, _, _ in wanted["test"]] == [20, 20, 17]
    for num_ranks in (2, 4):
        found = run_thread_ranks(num_ranks, logits, 20)
        assert all(each == first for _, each in found)
        for part, batches in wanted.items():
            # One batch of each rank in turn.
            rounds = zip(*(each[part] for each, _ in found), strict=True)
            own = [batch for each in rounds for batch in each]
            assert own == batches + [(0, b"", b"")] * (-len(batches) % num_ranks)


def test_an_evaluation_batch_that_one_rank_cannot_read_is_an_error_of_all(
    shards: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation_samples = ShardSet.evaluation_samples

    def read(shards: ShardSet, number: int, *others: Any) -> Batch:
        if number == 1:
            raise ShardError("damaged")
        return evaluation_samples(shards, number, *others)

    monkeypatch.setattr(ShardSet, "evaluation_samples", read)

    def work(ranks: Ranks) -> str:
        predictor = build_trainer(shards, TrainConfig(threads=1, micro_batches=2), ranks=ranks).predictor
        with pytest.raises(HotsetError) as refused:
            predictor.score()
        return str(refused.value)

    assert run_thread_ranks(2, work) == ["rank 1 cannot go on", "damaged"]


def test_ranks_with_other_owners_are_refused(shards: ShardSet, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_rows = ranked_run._hold_rows

    def hold_others(shards: ShardSet, micro_batches: MicroBatches, node: Node) -> dict[int, HeldRows]:
        held = hold_rows(shards, micro_batches, node)
        for rows in held.values():
            rows.owners_K[:1] = micro_batches.rank
        return held

    monkeypatch.setattr(ranked_run, "_hold_rows", hold_others)
    with pytest.raises(RankError, match="rank 1 differs from rank 0 in the plan of the exchange"):
        on_ranks(shards, fields_of("all-fast", 2), 2)
