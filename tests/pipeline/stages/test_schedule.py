"""The schedule stage: its plans run on the machine that finds a stale read, whatever it was stopped by.

Tests `cold_batches`, `stored_cold_batches` and `step_plan_files`, too.
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.errors import ConfigError, ManifestError, ShardError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.scheduling import cold_batches, epoch_plans
from hotset.pipeline.scheduling.step_plan_files import read_plans, read_residents, write_plans
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.schedule import ScheduleConfig, schedule
from hotset.pipeline.stages.transpose import TransposeConfig, transpose
from hotset.pipeline.verify.verify import verify
from hotset.stats.batches.epoch_order import epoch_order
from hotset.stats.staging.step_plans import Residents
from hotset.tests.support.naive.naive_plans import Parts, PlanMachine, parts_of
from hotset.tests.support.resealed import reseal
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.data.batch import IdReader
from hotset.train.data.shards import Shards
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
CONFIG = ScheduleConfig(staging_bytes=ByteSize(3000), epochs=2, seed=5, split_batches=True)


def cold_rows_of(shards: Shards, number: int, tables: list[int]) -> list[int]:
    """Distinct cold rows of a training batch by table and id, from its lookups as the trainer reads them."""
    ids = IdReader(shards.tables, tables).read(shards.training_batch(number))
    chosen = [shards.tables[table] for table in tables]
    bases = np.cumsum([0, *(table.num_rows - table.num_hot for table in chosen)])
    rows = []
    for i, row in enumerate(ids.ids_N.tolist()):
        feature = (i if ids.bags_N is None else int(ids.bags_N[i])) % len(tables)
        if row >= chosen[feature].num_hot:
            rows.append(int(bases[feature]) + row - chosen[feature].num_hot)
    return sorted(set(rows))


def epoch_of(made: Manifest, epoch: int, dim: int) -> tuple[list[Parts], list[int], Residents]:
    """Step plans of an epoch, its batches, and the rows written back at its end."""
    parts, batches, residents = list[Parts](), list[int](), None
    for entry in made.files:
        if (entry.facts["epoch"], entry.facts["embedding_dim"]) != (epoch, dim):
            continue
        if entry.facts["kind"] == "residents":
            residents = read_residents(made, entry)
            continue
        for plans, numbers in read_plans(made, entry):
            parts += parts_of(plans)
            batches += numbers.tolist()
    assert residents is not None
    return parts, batches, residents


def bytes_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("window", [None, 2])
def test_every_epoch_reads_the_rows_its_batches_look_up(
    name: str, window: int | None, tmp_path: Path
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", SPECS[name]))
    made = schedule(replace(CONFIG, window=window), shards.manifest, tmp_path / "schedule")
    dims = [table.embedding_dim for table in shards.tables]
    is_hot_only = shards.is_hot_only
    for width in made.totals["widths"]:
        tables = [table for table, dim in enumerate(dims) if dim == width["embedding_dim"]]
        used: set[int] = set()
        for epoch in range(2):
            parts, batches, residents = epoch_of(made, epoch, width["embedding_dim"])
            order = epoch_order(is_hot_only, CONFIG.seed, epoch, spread=shards.is_grouped)
            assert batches == [number for number in order if not is_hot_only[number]]
            rows = [cold_rows_of(shards, number, tables) for number in batches]
            PlanMachine(rows, parts, width["num_slots"], seed=0).run(residents)
            first = [row for part in parts for row, _, is_first in part.fetches if is_first]
            assert sorted(first) == sorted(set().union(*rows) - used) if rows else not first
            used |= set().union(*rows)
    assert [fault for fault in verify(tmp_path) if "schedule" in fault] == []


def test_the_totals_are_those_of_the_plans(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    made = schedule(replace(CONFIG, epochs=1), shards, tmp_path / "schedule")
    (width,) = made.totals["widths"]
    (epoch,) = width["epochs"]
    parts, _, residents = epoch_of(made, 0, 4)
    fetches = [is_first for part in parts for _, _, is_first in part.fetches]
    assert width["num_slots"] == 3000 // 16 and width["num_rows"] == 310
    assert (epoch["rows_to_fast"], epoch["rows_made"]) == (fetches.count(False), fetches.count(True))
    assert epoch["rows_to_slow"] == sum(len(part.write_backs) for part in parts) + residents.rows.size
    assert made.totals["bytes_to_fast"] == 16 * epoch["rows_to_fast"]
    assert made.totals["bytes_to_slow"] == 16 * epoch["rows_to_slow"]


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_schedule_cut_short_resumes_to_the_same_bytes(
    stop_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_plans, "CHUNK_ENTRIES", 40)
    monkeypatch.setattr(epoch_plans, "FILE_BYTES", 200)
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(batch_size=8)))
    whole = schedule(CONFIG, shards, tmp_path / "whole", Resources(workers=1))
    assert len(whole.files) > 5
    calls = 0

    def stopping(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > stop_after:
            raise KeyboardInterrupt
        write_plans(*arguments)

    monkeypatch.setattr(epoch_plans, "write_plans", stopping)
    with pytest.raises(KeyboardInterrupt):
        schedule(CONFIG, shards, tmp_path / "cut", Resources(workers=2))
    monkeypatch.setattr(epoch_plans, "write_plans", write_plans)
    schedule(CONFIG, shards, tmp_path / "cut", Resources(workers=2))
    assert bytes_in(tmp_path / "cut") == bytes_in(tmp_path / "whole")


def test_where_files_and_chunks_end_changes_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(batch_size=8)))
    whole = epoch_of(schedule(CONFIG, shards, tmp_path / "whole"), 1, 4)[0]
    monkeypatch.setattr(epoch_plans, "CHUNK_ENTRIES", 1)
    assert epoch_of(schedule(CONFIG, shards, tmp_path / "other"), 1, 4)[0] == whole


def test_other_settings_want_another_folder(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    schedule(CONFIG, shards, tmp_path / "schedule")
    with pytest.raises(ManifestError, match="was written with prefetch = 2, now 1"):
        schedule(replace(CONFIG, prefetch=1), shards, tmp_path / "schedule")


@pytest.mark.parametrize("name", ["one-hot", "widths"])
def test_too_few_slots_are_refused_with_the_bytes_that_do(name: str, tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS[name]))
    config = replace(CONFIG, split_batches=False, staging_bytes=ByteSize(100))
    for _ in shards.totals["tables"]:
        with pytest.raises(ConfigError, match=r"a batch looks up \d+ distinct cold rows") as refused:
            schedule(config, shards, tmp_path / "schedule")
        enough = int((refused.value.hint or "").split()[1].removesuffix("KiB"))
        config = replace(config, staging_bytes=ByteSize(enough * 1024))
        if name == "one-hot":
            break
        try:  # the same folder takes other settings: nothing was made of those refused
            schedule(config, shards, tmp_path / "schedule")
            return
        except ConfigError:
            continue
    schedule(config, shards, tmp_path / "schedule")


def test_a_cap_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    with pytest.raises(ConfigError, match="schedule cannot stay within 1 MiB"):
        schedule(CONFIG, shards, tmp_path / "schedule", Resources(memory_bytes=1 << 20))


@pytest.mark.parametrize("name", ["one-hot", "multi-hot"])
def test_an_id_outside_its_table_is_refused_by_name(name: str, tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS[name]))
    shards.totals["tables"][2] |= {"num_rows": 21, "oov_id": 20}
    shards.totals["num_rows"] = sum(table["num_rows"] for table in shards.totals["tables"])
    with pytest.raises(ShardError, match=r"mixed-00000.arrow: batch 0: id \d+ in table C3 of 21 rows"):
        schedule(CONFIG, shards, tmp_path / "schedule")


def test_a_config_refuses_nonsense() -> None:
    for setting in ({"prefetch": -1}, {"window": -1}, {"epochs": 0}, {"seed": -1}, {"staging_bytes": -1}):
        with pytest.raises(ConfigError, match=f"{next(iter(setting))} must be"):
            ScheduleConfig(**setting)  # type: ignore[arg-type]


def test_damage_that_names_no_file_gets_the_name_of_the_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))

    def read(*arguments: Any) -> Any:
        raise ManifestError("a column holds 0 values, want 32")

    monkeypatch.setattr("hotset.pipeline.scheduling.cold_batches.PartIds.read", read)
    with pytest.raises(ShardError, match=r"mixed-00000\.arrow cannot be read: a column holds 0"):
        schedule(CONFIG, shards, tmp_path / "schedule")


def test_a_refused_schedule_leaves_no_folder(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(batch_size=8)))
    config = ScheduleConfig(staging_bytes=ByteSize(16))
    with pytest.raises(ConfigError, match="distinct cold rows"):
        schedule(config, shards, tmp_path / "schedule")
    assert not (tmp_path / "schedule").exists()
    # What a run has finished stays for the next one.
    made = schedule(replace(CONFIG, epochs=1), shards, tmp_path / "schedule")
    assert made.files and (tmp_path / "schedule" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("stage", "config"),
    [(schedule, CONFIG), (transpose, TransposeConfig())],
)
def test_a_full_device_leaves_no_folder_where_no_file_is_finished(
    stage: Any, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))

    def full(path: Path) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr("hotset.pipeline.folders.output.checksum_of_written", full)
        with pytest.raises(ManifestError, match=r"\.arrow cannot be written: No space left on device"):
            stage(config, shards, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert stage(config, shards, tmp_path / "out").files


def test_an_array_of_negative_length_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))

    def read(*arguments: Any) -> Any:
        raise SystemError("error return without exception set")  # what len() of such an array raises

    monkeypatch.setattr("hotset.pipeline.scheduling.cold_batches.PartIds.read", read)
    with pytest.raises(ShardError, match=r"mixed-00000\.arrow cannot be read: error return"):
        schedule(CONFIG, shards, tmp_path / "schedule")


def test_verify_finds_a_flipped_byte(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", SPECS["one-hot"])
    made = schedule(CONFIG, Manifest.read(tmp_path / "shards"), tmp_path / "schedule")
    path = made.folder / made.files[0].path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert any(fault.startswith(f"{path} is damaged") for fault in verify(tmp_path))


def test_a_schedule_opens_as_a_table(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    made = schedule(CONFIG, shards, tmp_path / "schedule")
    table = pa.ipc.open_file(pa.memory_map(str(made.folder / made.files[0].path))).read_all()
    assert table.column("step").to_pylist() == list(range(table.num_rows))
    assert all(len(slots) == len(set(slots)) for slots in table.column("slots").to_pylist())


def test_the_command_says_what_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shards(tmp_path / "shards", ShardSpec(batch_size=8))
    command = ["schedule", str(tmp_path), "--staging-bytes", "1KiB", "--epochs", "2"]
    assert main([*command, "--workers", "1"]) == 0
    said = capsys.readouterr().out
    totals = Manifest.read(tmp_path / "schedule").totals
    assert f"38 steps: {totals['rows_to_fast']} rows are loaded" in said
    assert f"{totals['rows_made']} are initialized on first use" in said
    assert main([*command, "--prefetch", "9"]) == 1
    assert "was written with prefetch = 2, now 9" in capsys.readouterr().err
    assert main([*command, "--redo", "--json", "--staging-bytes", "16"]) == 1
    assert "distinct cold rows of width 4, staging holds 1" in capsys.readouterr().err


@pytest.mark.parametrize("name", SPECS)
def test_with_lookups_the_schedule_has_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS[name]))
    schedule(CONFIG, shards, tmp_path / "without")
    transpose(TransposeConfig(), shards, tmp_path / "lookups")

    def reading(*_: Any) -> None:
        raise AssertionError("the ids of shards are read")

    monkeypatch.setattr(cold_batches, "read_batches", reading)
    schedule(CONFIG, shards, tmp_path / "schedule")
    assert bytes_in(tmp_path / "schedule") == bytes_in(tmp_path / "without")


def test_lookups_of_other_shards_are_refused(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    other = Manifest.read(write_shards(tmp_path / "other" / "shards", ShardSpec(seed=1)))
    transpose(TransposeConfig(), other, tmp_path / "lookups")
    with pytest.raises(ManifestError, match="lookups was written for other shards than"):
        schedule(CONFIG, shards, tmp_path / "schedule")


def test_damaged_lookups_are_refused_by_name(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS["one-hot"]))
    transpose(TransposeConfig(), shards, tmp_path / "lookups")

    def change(columns: dict[str, Any]) -> None:
        columns["rows"][1][-1] += 40

    path = reseal(tmp_path / "lookups", change, "mixed-00000.arrow")
    with pytest.raises(ManifestError) as caught:
        schedule(CONFIG, shards, tmp_path / "schedule")
    assert str(caught.value) == (
        f"{path} is damaged: batch 0: its rows of C2 are not in order, or outside the table"
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ManifestError, match=r"mixed-00000\.arrow is damaged: its checksum"):
        schedule(CONFIG, shards, tmp_path / "schedule")


@pytest.mark.parametrize("name", ["one-hot", "widths"])
def test_progress_goes_on_while_epochs_are_planned(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", SPECS[name]))
    monkeypatch.setattr(epoch_plans, "CHUNK_ENTRIES", 8)
    told: list[tuple[str, int, int]] = []
    resources = Resources(workers=1, progress=lambda *words: told.append(words))
    made = schedule(CONFIG, shards, tmp_path / "schedule", resources)
    # One pass that reads the rows, and one for each width in both epochs.
    num_mixed = shards.totals["samples"]["mixed"]
    total = num_mixed * (1 + 2 * len(made.totals["widths"]))
    assert {words[::2] for words in told} == {("schedule", total)}
    done = [words[1] for words in told]
    assert done == sorted(done) and done[-1] == total
    assert sum(num_mixed < number < total for number in done) > 1
