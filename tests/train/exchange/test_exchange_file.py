"""Ranks that follow a schedule on disk have the bits, and send the bytes, of those that plan themselves.

Tests `exchange_fit` and `homes_name`, too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.pipeline.errors import HotsetError, ManifestError
from hotset.pipeline.stages.schedule_ranks import RankScheduleConfig, schedule_ranks
from hotset.stats.exchange.homes_name import HomesName
from hotset.tests.support.resealed import reseal, write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.exchange import exchange_file
from hotset.train.exchange.chosen_exchange import ChosenExchange
from hotset.train.exchange.exchange_file import ExchangeSchedule
from hotset.train.exchange.exchange_fit import RunOnRanks
from hotset.train.exchange.rank_reader import RankReader
from hotset.train.exchange.width_exchange import ExchangeReader
from hotset.train.options.rank_options import RankOptions
from hotset.train.ranks.ranks import OneRank, RankError, Ranks, agree
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.trainer import run_steps
from hotset.train.trainer_building.build_trainer import build_trainer

SPEC = ShardSpec(
    num_rows=(60, 1, 90),
    num_hot=(3, 1, 5),
    num_hot_only=26,
    num_mixed=70,
    skew=1.2,
    batch_size=16,
    table_dims=(4, 2, 4),
    multi_hot=(2,),
    embedding_optimizer="rowwise-adagrad",
)
FIELDS: dict[str, Any] = {"shares": 4, "embedding_optimizer": "rowwise-adagrad", "epochs": 2}
Result = tuple[list[float], list[bytes], dict[str, int]]
"""Losses of a rank, at rank 0 the tables, and the bytes that the rank sent."""


def result(shards: Shards, fields: dict[str, Any], ranks: Ranks, options: dict[str, Any]) -> Result:
    torch.set_num_threads(1)
    trainer = build_trainer(shards, TrainConfig(threads=1, **fields), ranks=ranks, **options)
    losses: list[float] = []
    run_steps(trainer, lambda _, __, loss: losses.append(float(loss)))
    tables = [
        trainer.embeddings.table(number, state=state).numpy().tobytes()
        for number in range(len(shards.tables))
        for state in (False, True)
    ]
    counts = trainer.coded.counts
    sent = {str(kind): n for kind, n in counts.sent_bytes.items()}
    return losses, tables, sent | {"early": counts.early_bytes}


def on_ranks(
    shards: Shards, num_ranks: int, fields: dict[str, Any] | None = None, **options: Any
) -> list[Result]:
    fields = FIELDS | (fields or {})
    if num_ranks == 1:
        return [result(shards, fields, OneRank(), options)]
    return run_thread_ranks(num_ranks, lambda ranks: result(shards, fields, ranks, options), 60)


def scheduled(shards: Shards, **config: Any) -> Path:
    """Write the schedule of four ranks beside the shards."""
    settings = {"ranks": 4, "epochs": 2} | config
    return schedule_ranks(
        RankScheduleConfig(**settings), shards.manifest, shards.manifest.folder.parent / "exchange"
    ).folder


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    return Shards.open(write_shards(tmp_path / "shards", SPEC))


def refuse_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a rank fail that finds rows in whole batches."""

    def found(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows are found in whole batches")

    monkeypatch.setattr(RankReader, "read", found)
    monkeypatch.setattr(ExchangeReader, "read", found)
    monkeypatch.setattr(ExchangeReader, "expected", found)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("homes", ["striped", "by-use", "moving"])
@pytest.mark.parametrize("placement", ["all-fast", "lookahead", "cache", "hybrid"])
def test_a_schedule_changes_neither_bits_nor_bytes(
    placement: str, homes: HomesName, shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"placement": placement, "staging_bytes": 400 if placement in ("lookahead", "cache") else None}
    wanted = on_ranks(shards, 4, fields, homes=homes)
    scheduled(shards, homes=homes)
    refuse_reading(monkeypatch)
    assert on_ranks(shards, 4, fields, homes=homes) == wanted
    assert wanted[0][1] == on_ranks(shards, 1, fields)[0][1]


def test_with_codecs_the_weights_are_those_of_ranks_that_plan(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"placement": "all-fast", "epochs": 1}
    coded = ChosenExchange("int8", "int8", feedback=True)
    wanted = on_ranks(shards, 4, fields, homes="moving", exchange=coded)
    # A longer schedule fits a shorter run.
    scheduled(shards, homes="moving")
    refuse_reading(monkeypatch)
    assert on_ranks(shards, 4, fields, homes="moving", exchange=coded) == wanted


@pytest.mark.parametrize(
    ("config", "fields", "options", "reason"),
    [
        ({"ranks": 2}, {}, {}, "it has ranks 2, the run 4"),
        ({"homes": "striped"}, {}, {}, "it has homes striped, the run by-use"),
        ({"seed": 3}, {}, {}, "it has seed 3, the run 0"),
        ({"epochs": 1}, {}, {}, "it has 1 epochs, the run 2"),
        ({}, {"placement": "fae"}, {}, "the run decides the order of its batches as it goes"),
        ({}, {"placement": "lookahead", "plan": "epoch"}, {}, "the run was given --plan epoch"),
        (
            {},
            {},
            {"exchange": ChosenExchange(sync_rows=3, sync_every=2)},
            "the run holds copies of rows on all ranks",
        ),
        (
            {"homes": "moving"},
            {"embedding_optimizer": "sgd"},
            {"homes": "moving"},
            "its rows move with the state of rowwise-adagrad, the run uses sgd",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_is_left_aside_with_a_line(
    config: dict[str, Any],
    fields: dict[str, Any],
    options: dict[str, Any],
    reason: str,
    shards: Shards,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fields = {"placement": "all-fast"} | fields
    wanted = on_ranks(shards, 4, fields, **options)
    folder = scheduled(shards, **config)
    with caplog.at_level(logging.INFO, exchange_file.__name__):
        assert on_ranks(shards, 4, fields, **options) == wanted
    line = f"{folder} does not fit this run ({reason}): ranks plan during training"
    assert caplog.messages.count(line) == 4


def test_a_schedule_of_other_shards_is_left_aside(
    shards: Shards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Shards.open(write_shards(tmp_path / "other" / "shards", ShardSpec(seed=9)))
    scheduled(other).rename(tmp_path / "exchange")
    with caplog.at_level(logging.INFO, exchange_file.__name__):
        on_ranks(shards, 4, {"placement": "all-fast"})
    assert any("it was written for other shards" in message for message in caplog.messages)


def test_a_flipped_byte_is_refused_before_the_first_step(shards: Shards) -> None:
    path = scheduled(shards) / "epoch-00001.width-00002.rank-00003-00000.arrow"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    # The rank whose file it is says so; the others know that one does.
    errors: dict[int, str] = {}

    def work(ranks: Ranks) -> None:
        build = partial(result, shards, FIELDS | {"placement": "all-fast"}, ranks, {})
        try:
            agree(ranks, build)
        except HotsetError as error:
            errors[ranks.rank] = str(error)

    run_thread_ranks(4, work, 20)
    assert f"exchange is damaged: the checksum of {path.name} is" in errors.pop(3)
    assert errors == dict.fromkeys(range(3), "rank 3 cannot start")


def test_a_rank_with_another_schedule_is_refused(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled(shards)
    find = ExchangeSchedule.find.__func__  # type: ignore[attr-defined]

    def find_at_some(cls: Any, shards: Shards, config: TrainConfig, run: Any) -> Any:
        return None if run.rank == 2 else find(cls, shards, config, run)

    monkeypatch.setattr(ExchangeSchedule, "find", classmethod(find_at_some))
    with pytest.raises(RankError, match="rank 2 differs from rank 0 in the plan of the exchange"):
        on_ranks(shards, 4, {"placement": "all-fast"})


def other_row(columns: dict[str, Any]) -> None:
    """Let rank 1 receive another row than is sent, with all counts right."""
    rows, users, before = (columns[name][3] for name in ("rows", "users", "before"))
    place = next(
        i
        for i, key in enumerate(rows[:-1])
        if users[i] >> 1 & 1 and before[i] not in (1, 255) and key + 1 < rows[i + 1]
    )
    rows[place] += 1


def other_batches(columns: dict[str, Any]) -> None:
    columns["batch"][1:3] = columns["batch"][2:0:-1]


def other_mark(columns: dict[str, Any]) -> None:
    """Let rank 1 wait for a vector that is sent a step early in its step, or the other way round."""
    users, before, marks = (columns[name][3] for name in ("users", "before", "is_early"))
    place = next(i for i, home in enumerate(before) if users[i] >> 1 & 1 and home not in (1, 255))
    marks[place] = 1 - marks[place]


@pytest.mark.parametrize("change", [other_row, other_batches, other_mark])
def test_ranks_whose_steps_do_not_fit_together_are_refused_before_the_first(
    change: Callable[[dict[str, Any]], None], shards: Shards
) -> None:
    folder = scheduled(shards, homes="striped")
    reseal(folder, change, "epoch-00000.width-00004.rank-00001-00000.arrow")
    with pytest.raises(ManifestError, match=r"exchange is damaged: the steps of ranks \d and \d do not fit"):
        on_ranks(shards, 4, {"placement": "all-fast"}, homes="striped")


def test_a_vector_that_would_cross_before_its_update_is_refused(shards: Shards) -> None:
    folder = scheduled(shards, homes="striped")

    def mark_all(columns: dict[str, Any]) -> None:
        columns["is_early"] = [[int(home != 255) for home in homes] for homes in columns["before"]]

    # Also between two epochs, at the first step of the second one.
    for epoch in (1, 0):
        for rank in range(4):
            reseal(folder, mark_all, f"epoch-{epoch:05}.width-00004.rank-{rank:05}-00000.arrow")
        with pytest.raises(ManifestError, match=rf"of epoch {epoch} would send a vector before its update"):
            on_ranks(shards, 4, {"placement": "all-fast"}, homes="striped")


@pytest.mark.parametrize("homes", ["by-use", "moving"])
def test_homes_that_are_not_those_of_the_steps_are_refused(homes: HomesName, shards: Shards) -> None:
    folder = scheduled(shards, homes=homes)

    def change(columns: dict[str, Any]) -> None:
        # A rank has a place for a row that it ever uses, or where the row lives all the time.
        columns["users"] = [0b1000] * len(columns["users"]) if homes == "moving" else columns["users"]
        columns["home"] = [3] * len(columns["home"])

    reseal(folder, change, "homes.width-00004.arrow")
    with pytest.raises(ManifestError, match="a row of epoch 0 does not live where the homes of width 4 say"):
        on_ranks(shards, 4, {"placement": "all-fast"}, homes=homes)


@pytest.mark.parametrize("placement", ["all-fast", "lookahead"])
def test_rows_of_other_batches_are_refused_though_all_ranks_have_them(placement: str, shards: Shards) -> None:
    folder = scheduled(shards, homes="striped")
    for rank in range(4):
        for dim in (2, 4):
            reseal(folder, other_batches, f"epoch-00000.width-{dim:05}.rank-{rank:05}-00000.arrow")
    with pytest.raises(ManifestError, match="its rows are not those that batch"):
        on_ranks(shards, 4, {"placement": placement}, homes="striped")


def test_a_schedule_that_lacks_a_file_or_a_width_is_refused(shards: Shards) -> None:
    folder = scheduled(shards)
    whole = json.loads((folder / "manifest.json").read_text())

    def refusal(change: Callable[[Any], None]) -> str:
        parts = json.loads(json.dumps(whole))
        change(parts)
        write_manifest(folder, parts)
        with pytest.raises(ManifestError) as caught:
            on_ranks(shards, 4, {"placement": "all-fast"})
        return str(caught.value)

    def drop(kind: str) -> Callable[[Any], None]:
        def change(parts: Any) -> None:
            parts["files"] = [entry for entry in parts["files"] if entry["kind"] != kind]

        return change

    assert "epoch 0 has 0 steps, want 7" in refusal(drop("steps"))
    assert "it does not have the homes of the 150 rows of width 4" in refusal(drop("homes"))

    def rename(parts: Any) -> None:
        parts["version"] = 9

    assert "holds 'schedule-ranks' of version 9" in refusal(rename)


@pytest.mark.parametrize("homes", ["by-use", "moving"])
@pytest.mark.parametrize("stop_after", [3, 7, 9])
def test_homes_are_those_of_the_unbroken_run_where_a_run_goes_on(
    stop_after: int, homes: HomesName, shards: Shards
) -> None:
    scheduled(shards, homes=homes)
    config = TrainConfig(threads=1, placement="all-fast", **FIELDS)
    for rank in range(4):
        unbroken = ExchangeSchedule.find(shards, config, RunOnRanks(rank, 4, homes))
        resumed = ExchangeSchedule.find(shards, config, RunOnRanks(rank, 4, homes, num_done=stop_after))
        assert unbroken is not None and resumed is not None
        whole, later = (each.width(4, 150) for each in (unbroken, resumed))
        numbers = [n for epoch in range(2) for part in unbroken.parts(4, epoch, 150) for n in part.batches]
        homes_K = whole.homes_K.copy()
        for step, number in enumerate(numbers):
            if step % 7 == 0:
                whole.begin_epoch()
            if step == stop_after:
                assert later.homes_K.tolist() == homes_K.tolist()
            if step == stop_after or (step > stop_after and step % 7 == 0):
                later.begin_epoch()
            rows = whole.take(number)
            homes_K[rows.keys_R] = rows.after_R
            homes_K[rows.passed[0]] = rows.passed[1]
            if step >= stop_after:
                again = later.take(number)
                assert [each.tolist() for each in again[:4]] == [each.tolist() for each in rows[:4]]
        # After its last step an epoch has no other.
        with pytest.raises(ManifestError, match=f"its rows are not those that batch {numbers[0]} looks up"):
            whole.take(numbers[0])


def test_options_name_the_homes_that_a_schedule_takes() -> None:
    assert RankOptions().homes == RankScheduleConfig(ranks=2).homes == "by-use"
