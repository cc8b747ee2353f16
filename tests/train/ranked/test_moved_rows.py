"""Rows that move between ranks by plan; tests `moving_homes`, `step_homes` and `build_homes`, too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.stages.transpose import TransposeConfig, transpose
from hotset.stats.batches.epoch_order import epoch_order
from hotset.stats.exchange.count_exchange import count_exchange
from hotset.stats.exchange.home_moves import NO_HOME, move_costs
from hotset.stats.exchange.homes_name import HomesName
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.exchange.rank_reader import RankReader, read_epoch
from hotset.train.placements.moving_homes import MovingHomes
from hotset.train.ranked import ranked_embeddings, sent_vectors
from hotset.train.ranked.moved_rows import read_states
from hotset.train.ranked.ranked_embeddings import RankedEmbeddings
from hotset.train.ranks.ranks import OneRank, RankError, Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.trainer import run_steps
from hotset.train.trainer_building import build_homes
from hotset.train.trainer_building.build_trainer import build_trainer

SPEC = ShardSpec(num_rows=(60, 90), num_hot=(3, 5), num_hot_only=26, num_mixed=70, skew=1.2, batch_size=16)
FIELDS: dict[str, Any] = {"placement": "all-fast", "shares": 4, "embedding_optimizer": "adagrad"}


@dataclass(frozen=True)
class Result:
    """What a rank has of a run: losses, at rank 0 the tables, and the bytes that it sent."""

    losses: list[float]
    tables: list[bytes]
    sent_bytes: dict[str, int]


def result(
    shards: Shards, fields: dict[str, Any], ranks: Ranks, homes: HomesName, exchange: ChosenExchange | None
) -> Result:
    torch.set_num_threads(1)
    config = TrainConfig(threads=1, **fields)
    trainer = build_trainer(shards, config, ranks=ranks, homes=homes, exchange=exchange)
    losses: list[float] = []
    run_steps(trainer, lambda _, __, loss: losses.append(float(loss)))
    tables = [
        trainer.embeddings.table(number, state=state).numpy().tobytes()
        for number in range(len(shards.tables))
        for state in (False, True)
    ]
    return Result(losses, tables, {str(kind): n for kind, n in trainer.coded.counts.sent_bytes.items()})


def on_ranks(
    shards: Shards,
    num_ranks: int,
    exchange: ChosenExchange | None = None,
    homes: HomesName = "moving",
    **fields: Any,
) -> list[Result]:
    if num_ranks == 1:
        return [result(shards, FIELDS | fields, OneRank(), homes, exchange)]
    return run_thread_ranks(
        num_ranks, lambda ranks: result(shards, FIELDS | fields, ranks, homes, exchange), 60
    )


def tables_of(found: list[Result]) -> list[bytes]:
    return found[0].tables


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Shards:
    return Shards.open(write_shards(tmp_path_factory.mktemp("moved") / "shards", SPEC))


@pytest.fixture(scope="module")
def wanted(shards: Shards) -> list[bytes]:
    return tables_of(on_ranks(shards, 1))


def test_ranks_send_the_bytes_of_the_plan(shards: Shards, wanted: list[bytes]) -> None:
    found = on_ranks(shards, 4)
    assert tables_of(found) == wanted
    # The same epoch, counted without a row or a message.
    order = epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped)
    epoch = read_epoch(RankReader(shards, [0, 1], 4), order.tolist())
    dim = shards.embedding_dim
    plan = count_exchange(epoch, dim, dim).moving
    assert plan.moves > 0
    sent = {kind: sum(each.sent_bytes[kind] for each in found) for kind in ("vectors", "moves", "gradients")}
    assert sent == {
        "vectors": 4 * dim * (plan.vectors - plan.moves),
        "moves": 4 * (dim + dim) * plan.moves,
        "gradients": 4 * dim * plan.gradients,
    }
    # Rows that stay send more.
    by_use = on_ranks(shards, 4, homes="by-use")
    assert tables_of(by_use) == wanted
    assert sum(sent.values()) < sum(
        each.sent_bytes["vectors"] + each.sent_bytes["gradients"] for each in by_use
    )
    assert all(each.sent_bytes["moves"] == 0 for each in by_use)


@pytest.mark.parametrize("placement", ["all-fast", "fae"])
def test_homes_go_on_from_epoch_to_epoch(placement: str, shards: Shards) -> None:
    fields: dict[str, Any] = {"placement": placement, "epochs": 3}
    found = on_ranks(shards, 4, **fields)
    assert tables_of(found) == tables_of(on_ranks(shards, 1, **fields))
    assert sum(each.sent_bytes["moves"] for each in found) > 0


@pytest.mark.parametrize("placement", ["lookahead", "cache", "hybrid"])
def test_rows_move_into_passes_and_out_of_them(placement: str, shards: Shards) -> None:
    # One staging slot: batches run in passes, whose rows lie on the slow tier in between. Less state to move
    # along lets cold rows move, too.
    staged = None if placement == "hybrid" else 20
    fields: dict[str, Any] = {"placement": placement, "embedding_optimizer": "rowwise-adagrad"}
    found = on_ranks(shards, 4, staging_bytes=staged, **fields)
    assert tables_of(found) == tables_of(on_ranks(shards, 1, **fields))
    assert sum(each.sent_bytes["moves"] for each in found) > 0


def test_rows_too_wide_for_a_plan_are_refused(shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_homes, "move_costs", lambda *_: move_costs(30_000, 30_000))
    with pytest.raises(ConfigError, match="homes cannot move: cannot plan rows of 30000 numbers with 30000"):
        on_ranks(shards, 2)


def test_a_home_that_moves_too_early_is_found(
    shards: Shards, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    take = MovingHomes.take

    def take_early(self: MovingHomes, number: int, keys_U: NDArray[np.int32]) -> Any:
        # The row is said to live already where the step will update it.
        before_U, after_U = take(self, number, keys_U)
        return np.where(before_U == NO_HOME, before_U, after_U).astype(np.uint8), after_U

    monkeypatch.setattr(MovingHomes, "take", take_early)
    assert tables_of(on_ranks(shards, 4)) != wanted


@pytest.mark.parametrize("fault", ["a state left behind", "a row left behind", "a home forgotten"])
def test_rows_that_move_in_part_are_found(
    fault: str, shards: Shards, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "a state left behind":
        monkeypatch.setattr(sent_vectors, "read_states", lambda *args: np.zeros_like(read_states(*args)))
    elif fault == "a row left behind":
        monkeypatch.setattr(ranked_embeddings, "write_rows", lambda *args: None)
    else:
        monkeypatch.setattr(RankedEmbeddings, "_change_homes", lambda *args: None)
    assert tables_of(on_ranks(shards, 4)) != wanted


def test_moved_rows_keep_their_bits_where_vectors_are_coded(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    int8 = ChosenExchange("int8", "int8")
    found = on_ranks(shards, 4, int8)
    staged = on_ranks(shards, 4, int8, placement="lookahead", staging_bytes=1_000)
    assert tables_of(found) == tables_of(staged)
    # As many rows move as without a codec, as large as they are.
    moves = [each.sent_bytes["moves"] for each in found]
    assert moves == [each.sent_bytes["moves"] for each in on_ranks(shards, 4)] and sum(moves) > 0


def test_ranks_plan_from_stored_lookups(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards", SPEC)
    drawn = Shards.open(folder)
    fields: dict[str, Any] = {"placement": "lookahead", "staging_bytes": 1_000, "epochs": 2}
    plain = tables_of(on_ranks(drawn, 1, **fields))
    transpose(TransposeConfig(), Manifest.read(folder), tmp_path / "lookups")
    assert tables_of(on_ranks(drawn, 4, **fields)) == plain
    assert tables_of(on_ranks(drawn, 2, homes="by-use", **fields)) == plain


def test_ranks_with_other_plans_are_refused(shards: Shards) -> None:
    def work(ranks: Ranks) -> Result:
        # The seed decides the order of batches, and so the plan.
        fields = FIELDS | {"seed": ranks.rank}
        return result(shards, fields, ranks, "moving", None)

    with pytest.raises(RankError, match="rank 1 differs from rank 0 in the plan of the exchange"):
        run_thread_ranks(2, work, 60)
