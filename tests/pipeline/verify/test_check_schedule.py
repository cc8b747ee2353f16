"""A schedule that cannot be run, or is not what its manifest says, is found though every checksum fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.scheduling.step_plan_files import read_plans
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.schedule import ScheduleConfig, schedule
from hotset.pipeline.verify import check_schedule as module
from hotset.pipeline.verify.check_schedule import check_schedule, check_schedule_file
from hotset.pipeline.verify.verify import verify
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards

CONFIG = ScheduleConfig(staging_bytes=ByteSize(3000), epochs=2, seed=5, split_batches=True)


FAULTS: dict[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = {
    "a row is written back that a batch may still use": ("after", lambda a: a - (a >= 0)),
    "a row is loaded before it is written back": ("waits_for", lambda a: a * 0 - 1),
    "a row is written back from a slot that does not hold it": ("write_back_rows", lambda a: a[::-1]),
    "its slots do not hold the rows": ("fetch_rows", lambda a: a[::-1]),
    "a slot is read that holds no row": ("slots", lambda a: a[::-1]),
    "what it moves is not what the manifest says": ("is_shortened", lambda a: ~a),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_verify_finds_a_plan_that_cannot_be_run(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(
        write_shards(tmp_path / "shards", ShardSpec(batch_size=4, num_mixed=300, skew=1.2))
    )
    config = replace(CONFIG, staging_bytes=ByteSize(300), prefetch=4)
    made = schedule(config, shards, tmp_path / "schedule")
    name, change = FAULTS[fault]

    def reading(*arguments: Any) -> Any:
        for plans, batches in read_plans(*arguments):
            changed: Any = {name: change(getattr(plans, name))}
            yield replace(plans, **changed), batches

    monkeypatch.setattr(module, "read_plans", reading)
    faults = list(check_schedule(made, shards))
    assert faults and fault in faults[0]


def drop_residents(parts: dict[str, Any]) -> None:
    parts["files"] = [entry for entry in parts["files"] if entry["kind"] != "residents"]


def change_width(parts: dict[str, Any]) -> None:
    parts["totals"]["widths"][0]["embedding_dim"] = 5
    for entry in parts["files"]:
        entry["embedding_dim"] = 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_residents, "epoch 0 of width 4: it has 0 files of residents, want 1"),
        (change_width, "epoch 0 of width 5: 5"),
    ],
)
def test_verify_names_a_schedule_that_lacks_something(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    made = schedule(CONFIG, shards, tmp_path / "schedule")
    parts = json.loads((made.folder / "manifest.json").read_text())
    change(parts)
    write_manifest(made.folder, parts)
    faults = list(check_schedule(Manifest.read(made.folder), shards))
    assert message in faults[0]


def test_verify_makes_no_area_of_more_slots_than_rows(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    made = schedule(CONFIG, shards, tmp_path / "schedule")
    parts = json.loads((made.folder / "manifest.json").read_text())
    parts["totals"]["widths"][0]["num_slots"] = 2**62
    write_manifest(made.folder, parts)
    message = f"totals.widths[0].num_slots is {2**62}, want 0 to 310"
    assert any(message in fault for fault in verify(made.folder))


def plans_of(made: Manifest) -> FileEntry:
    return next(entry for entry in made.files if entry.facts["kind"] == "plans")


def test_files_as_they_were_written_have_no_fault(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    made = schedule(CONFIG, shards, tmp_path / "schedule")
    assert [list(check_schedule_file(entry, made)) for entry in made.files] == [[]] * len(made.files)
    # Without the shards the rows are not compared, and everything else still is.
    assert list(check_schedule(made, shards)) == list(check_schedule(made, None)) == []


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("slots", -1, "a slot is outside its 187 slots"),
        ("fetch_slots", 187, "a slot is outside its 187 slots"),
        ("fetch_rows", 310, "a row is outside its 310 cold rows"),
        ("write_back_rows", -7, "a row is outside its 310 cold rows"),
        ("first_step", 3, "its step 3 does not follow the one before"),
        ("offsets", None, "it has 0 steps, want 5"),
    ],
)
def test_a_number_outside_is_found_in_the_file_alone(
    name: str, value: int | None, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    made = schedule(CONFIG, shards, tmp_path / "schedule")

    def reading(*arguments: Any) -> Any:
        for plans, batches in read_plans(*arguments):
            values = getattr(plans, name)
            changed: Any = value if name == "first_step" else np.full(max(1, np.size(values)), value or 0)
            if value is None:
                changed = np.zeros(1, np.int64)
            yield replace(plans, **{name: changed}), batches

    monkeypatch.setattr(module, "read_plans", reading)
    assert fault in list(check_schedule_file(plans_of(made), made))


def test_the_schedule_of_another_log_is_found(tmp_path: Path) -> None:
    """Equally many batches and rows: only the rows that are looked up tell the two apart."""
    first, second = (
        Manifest.read(write_shards(tmp_path / f"shards{seed}", ShardSpec(seed=seed))) for seed in (0, 1)
    )
    made = schedule(CONFIG, first, tmp_path / "schedule")
    assert list(check_schedule(made, None)) == []
    faults = list(check_schedule(made, second))
    assert len(faults) == 2 and all("its slots do not hold the rows that batch" in fault for fault in faults)
