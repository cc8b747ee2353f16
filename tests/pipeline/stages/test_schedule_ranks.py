"""The schedule of several ranks: what it says of each rank is what the trainer finds in the whole batches.

Tests `ranked_batches`, `exchange_files`, `exchange_plans` and `check_exchange`, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError, HotsetError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.stage_totals import ExchangeTotals
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.scheduling import exchange_files, exchange_plans
from hotset.pipeline.scheduling.exchange_files import RankOf, StepsPart, read_homes, read_steps
from hotset.pipeline.stages import schedule_ranks as module
from hotset.pipeline.stages.schedule_ranks import RankScheduleConfig, schedule_ranks
from hotset.pipeline.verify.verify import verify
from hotset.stats.batches.epoch_order import epoch_order
from hotset.stats.exchange.count_exchange import count_exchange
from hotset.stats.exchange.home_moves import NO_HOME
from hotset.stats.exchange.homes_name import HomesName
from hotset.tests.support.resealed import reseal, write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.shards import Shards
from hotset.train.exchange.choose_homes import choose_homes
from hotset.train.exchange.rank_reader import RankReader, read_epoch
from hotset.workflows.cli import main

SPECS = {
    "one-hot": ShardSpec(),
    "original": ShardSpec(order="original", batch_size=8),
    "multi-hot": ShardSpec(multi_hot=(1, 2), batch_size=8),
    "widths": ShardSpec(
        num_rows=(5, 40, 300, 90), num_hot=(5, 10, 20, 8), table_dims=(4, 8, 4, 8), multi_hot=(3,)
    ),
    "all hot": ShardSpec(num_rows=(5, 4), num_hot=(5, 4), num_mixed=0),
}
CONFIG = RankScheduleConfig(ranks=3, epochs=2, seed=5)


def parts_of(made: Manifest, epoch: int, dim: int, rank: int) -> list[StepsPart]:
    width = {each.embedding_dim: each for each in ExchangeTotals.of(made).widths}[dim]
    of = RankOf(rank, len(width.rows_of_ranks), width.num_rows)
    wanted = {"kind": "steps", "epoch": epoch, "embedding_dim": dim, "rank": rank}
    return [
        part
        for entry in made.files
        if {name: entry.facts.get(name) for name in wanted} == wanted
        for part in read_steps(made, entry, of)
    ]


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("homes", ["striped", "by-use", "moving"])
def test_each_rank_has_the_rows_that_batches_look_up(homes: HomesName, name: str, tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPECS[name]))
    made = schedule_ranks(replace(CONFIG, homes=homes), shards.manifest, tmp_path / "exchange")
    dims = [table.embedding_dim for table in shards.tables]
    for width in ExchangeTotals.of(made).widths:
        dim = width.embedding_dim
        tables = [table for table, found in enumerate(dims) if found == dim]
        entry = next(e for e in made.files if (e.facts["kind"], e.facts["embedding_dim"]) == ("homes", dim))
        homes_K, _ = read_homes(made, entry, width.num_rows, 3)
        fixed: HomesName = "by-use" if homes == "moving" else homes
        np.testing.assert_array_equal(homes_K, choose_homes(fixed, shards, tables, 3, 3))
        reader = RankReader(shards, tables, 3)
        for epoch, totals in enumerate(width.epochs):
            order = epoch_order(shards.is_hot_only, CONFIG.seed, epoch, spread=shards.is_grouped)
            for rank in range(3):
                parts = parts_of(made, epoch, dim, rank)
                assert [n for part in parts for n in part.batches.tolist()] == order.tolist()
                found = np.concatenate([np.empty(0, np.int32), *(part.steps.keys_N for part in parts)])
                masks = np.concatenate([np.empty(0, np.uint8), *(part.steps.masks_N for part in parts)])
                batches = [reader.read(number) for number in order.tolist()]
                own = [each.keys_U[each.masks_U >> rank & 1 == 1] for each in batches]
                wanted = np.concatenate([np.empty(0, np.int32), *own])
                np.testing.assert_array_equal(found[masks >> rank & 1 == 1], wanted)
            if epoch == 0 and homes == "moving":
                counted = count_exchange(read_epoch(reader, order.tolist()), dim, 0).moving
                crossed = (totals.vectors, totals.moves, totals.early, totals.gradients)
                assert crossed == (counted.vectors, counted.moves, counted.early, counted.gradients)
    assert [fault for fault in verify(tmp_path) if "exchange" in fault] == []


def test_the_bytes_depend_neither_on_workers_nor_on_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["multi-hot"]))
    config = replace(CONFIG, homes="moving")
    schedule_ranks(config, shards, tmp_path / "one", Resources(workers=1))
    # Plans of an epoch in files without a name instead of memory.
    monkeypatch.setattr(module, "room_for", lambda _, __, needed: needed)
    schedule_ranks(config, shards, tmp_path / "three", Resources(workers=3))
    one, three = bytes_in(tmp_path / "one"), bytes_in(tmp_path / "three")
    assert one == three


def test_stopped_half_way_it_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange_plans, "CHUNK_ENTRIES", 60)
    monkeypatch.setattr(exchange_plans, "FILE_BYTES", 400)
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    config = replace(CONFIG, homes="moving")
    made = schedule_ranks(config, shards, tmp_path / "whole")
    assert len(made.files) > 12
    num_opened = 0

    def stop(*arguments: Any) -> Any:
        nonlocal num_opened
        if num_opened == 8:
            raise KeyboardInterrupt
        num_opened += 1
        return opened(*arguments)

    opened = exchange_files.open_steps
    monkeypatch.setattr(exchange_plans, "open_steps", stop)
    with pytest.raises(KeyboardInterrupt):
        schedule_ranks(config, shards, tmp_path / "exchange")
    # Of eight files some are finished, and those of the other ranks are not.
    finished = [path.name for path in (tmp_path / "exchange").glob("epoch-*")]
    assert 0 < len(finished) < num_opened
    monkeypatch.setattr(exchange_plans, "open_steps", opened)
    schedule_ranks(config, shards, tmp_path / "exchange")
    assert bytes_in(tmp_path / "exchange") == bytes_in(tmp_path / "whole")
    assert [fault for fault in verify(tmp_path / "exchange") if "exchange" in fault] == []


def test_what_cannot_be_planned_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(batch_size=4, embedding_dim=40_000)))
    with pytest.raises(ConfigError, match="a batch of 4 samples cannot be divided among 5 ranks"):
        schedule_ranks(replace(CONFIG, ranks=5), shards, tmp_path / "exchange")
    with pytest.raises(ConfigError, match="homes cannot move: cannot plan rows of 40000 numbers"):
        schedule_ranks(replace(CONFIG, homes="moving"), shards, tmp_path / "exchange")
    with pytest.raises(HotsetError, match="cannot stay within 1 MiB of memory"):
        schedule_ranks(CONFIG, shards, tmp_path / "exchange", Resources(memory_bytes=1 << 20))
    assert not (tmp_path / "exchange").exists()
    for changed in ({"ranks": 1}, {"ranks": 65}, {"epochs": 0}, {"seed": -1}):
        with pytest.raises(ConfigError):
            replace(CONFIG, **changed)  # type: ignore[arg-type]
    schedule_ranks(CONFIG, shards, tmp_path / "exchange")
    with pytest.raises(ManifestError, match="was written with ranks = 3, now 4"):
        schedule_ranks(replace(CONFIG, ranks=4), shards, tmp_path / "exchange")


def test_damaged_shards_are_refused_by_name(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", SPECS["one-hot"])

    def change(columns: dict[str, Any]) -> None:
        columns["ids"][3][1] = 40

    path = reseal(tmp_path / "shards", change, "mixed-00000.arrow")
    with pytest.raises(ManifestError, match=r"mixed-00000\.arrow is damaged: id 40 in table C2 of 40 rows"):
        schedule_ranks(CONFIG, Manifest.read(tmp_path / "shards"), tmp_path / "exchange")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(ManifestError, match=r"mixed-00000\.arrow is damaged: its checksum"):
        schedule_ranks(CONFIG, Manifest.read(tmp_path / "shards"), tmp_path / "exchange")
    assert not (tmp_path / "exchange").exists()


def change_first(name: str, value: int) -> Callable[[dict[str, Any]], None]:
    """Change the first number of a column that has any."""

    def change(columns: dict[str, Any]) -> None:
        first = next(row for row in columns[name] if row) if isinstance(columns[name][0], list) else None
        if first is None:
            columns[name][0] = value
        else:
            first[0] = value

    return change


STEPS = "epoch-00000.width-00004.rank-00001-00000.arrow"


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("rows", -1, "step 0: its rows are not those of its rank"),
        ("rows", 345, "step 0: its rows are not those of its rank"),
        ("users", 8, "step 0: its rows are not those of its rank"),
        ("after", 3, "step 0: its rows are not those of its rank"),
        ("passed_homes", 255, "its rows are not those of its rank"),
        ("gradients_sent", 77, "step 0: its gradients_sent are not those of its rows"),
        ("step", 9, "its steps are not consecutive"),
    ],
)
def test_a_number_that_kernels_must_not_see_is_found_in_its_file(
    name: str, value: int, fault: str, tmp_path: Path
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    schedule_ranks(CONFIG, shards, tmp_path / "exchange")
    path = reseal(tmp_path / "exchange", change_first(name, value), STEPS)
    with pytest.raises(ManifestError, match=fault):
        parts_of(Manifest.read(tmp_path / "exchange"), 0, 4, 1)
    faults = verify(tmp_path / "exchange")
    assert len(faults) == 1 and str(path) in faults[0] and fault in faults[0]


def test_a_home_file_of_others_is_found(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    schedule_ranks(CONFIG, shards, tmp_path / "exchange")
    name = "homes.width-00004.arrow"

    def set_home(home: int) -> list[str]:
        def change(columns: dict[str, Any]) -> None:
            columns["home"] = [home] * len(columns["home"])

        reseal(tmp_path / "exchange", change, name)
        return verify(tmp_path / "exchange")

    assert "its ranks have other numbers of rows" in set_home(2)[0]
    assert "a row lives at a rank, or is used by one, beyond its 3 ranks" in set_home(3)[0]


def test_ranks_that_contradict_each_other_are_found(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    config = replace(CONFIG, homes="moving")
    folder = schedule_ranks(config, shards, tmp_path / "exchange").folder
    text = (folder / "manifest.json").read_text()
    content = (folder / STEPS).read_bytes()

    def faults(change: Callable[[dict[str, Any]], None]) -> list[str]:
        (folder / "manifest.json").write_text(text)
        (folder / STEPS).write_bytes(content)
        reseal(folder, change, STEPS)
        return verify(folder)

    def mark_late(columns: dict[str, Any]) -> None:
        columns["is_early"] = [[0] * len(row) for row in columns["is_early"]]

    def mark_early(columns: dict[str, Any]) -> None:
        columns["is_early"] = [[int(home != NO_HOME) for home in row] for row in columns["before"]]

    def expect_in_step(columns: dict[str, Any]) -> None:
        """Let rank 1 expect a vector in its step that is sent early."""
        steps = zip(columns["is_early"], columns["before"], columns["users"], strict=True)
        marks, place = next(
            (marks, i)
            for marks, homes, users in steps
            for i, home in enumerate(homes)
            if home not in (1, NO_HOME) and users[i] >> 1 & marks[i]
        )
        marks[place] = 0

    def forget_passed(columns: dict[str, Any]) -> None:
        columns["passed_rows"] = [[] for _ in columns["passed_rows"]]
        columns["passed_homes"] = [[] for _ in columns["passed_homes"]]

    def leave_out_rows(columns: dict[str, Any]) -> None:
        for name in ("rows", "users", "before", "after", "is_early"):
            columns[name][-1] = []
        for name in ("vectors_sent", "vectors_received", "gradients_sent", "gradients_received"):
            columns[name][-1] = [0, 0, 0]

    assert "what crosses in epoch 0 is not what the manifest says" in faults(mark_late)[0]
    assert "a vector would cross before its update" in faults(mark_early)[0]
    assert re.search(
        r"the steps of ranks \d and \d do not fit together in epoch 0", faults(expect_in_step)[0]
    )
    assert "a row does not live where it is said to" in faults(forget_passed)[0]
    # A rank has no place for a row that it never uses, as its homes say, and that moves there.
    homes = "homes.width-00004.arrow"
    whole = (folder / homes).read_bytes()
    reseal(folder, lambda columns: columns.update(users=[0] * len(columns["users"])), homes)
    assert "a row does not live where the homes say" in verify(folder)[0]
    (folder / homes).write_bytes(whole)
    found = faults(leave_out_rows)[0]
    assert "ranks know other homes" in found or "ranks send other rows than are received" in found


def test_a_manifest_that_does_not_fit_its_files_is_found(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    folder = schedule_ranks(CONFIG, shards, tmp_path / "exchange").folder
    whole = json.loads((folder / "manifest.json").read_text())

    def faults(change: Callable[[Any], None]) -> list[str]:
        parts = json.loads(json.dumps(whole))
        change(parts)
        write_manifest(folder, parts)
        return verify(folder)

    def steps_file(parts: Any) -> Any:
        return next(entry for entry in parts["files"] if entry["kind"] == "steps")

    assert any("want 9" in fault for fault in faults(lambda parts: steps_file(parts).update(steps=9)))
    assert "rows_of_ranks is of" in faults(lambda parts: parts["totals"]["widths"][0].update(num_rows=9))[0]
    moved = faults(lambda parts: parts["totals"]["widths"][0]["epochs"][1].update(moves=9))
    assert "what crosses in epoch 1 is not what the manifest says" in moved[0]


def test_the_command_says_what_crosses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path / "shards", ShardSpec(batch_size=8))
    command = ["schedule", str(tmp_path), "--workers", "1"]
    assert main([*command, "--ranks", "4", "--homes", "moving", "--epochs", "2"]) == 0
    said = capsys.readouterr().out
    totals = ExchangeTotals.of(Manifest.read(tmp_path / "exchange"))
    epochs = totals.widths[0].epochs
    assert f"4 ranks send {sum(epoch.vectors for epoch in epochs):,} vectors, " in said
    assert f"{sum(epoch.moves for epoch in epochs):,} rows move. Planned " in said
    assert "samples/s per core" in said
    assert main([*command, "--ranks", "2"]) == 1
    said = capsys.readouterr().err
    assert "was written with" in said and "or give --redo schedule-ranks" in said
    assert main([*command, "--ranks", "2", "--redo", "schedule-ranks"]) == 0
    assert main([*command, "--ranks", "2"]) == 0
    # The schedule of one process stands beside it, and has options of its own.
    assert main([*command, "--staging-bytes", "1KiB"]) == 0
    capsys.readouterr()
    assert main([*command, "--ranks", "4", "--prefetch", "2"]) == 1
    assert "--prefetch is of a schedule of one process" in capsys.readouterr().err
    assert main([*command, "--homes", "striped"]) == 1
    assert "--homes is of a schedule of several ranks" in capsys.readouterr().err
    assert main([*command, "--ranks", "2", "--redo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stage"], found["samples"], len(found["widths"][0]["rows_of_ranks"])) == (
        "schedule-ranks",
        220,
        2,
    )
