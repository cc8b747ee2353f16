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
from hotset.stats.staging.step_plans import Residents, StepPlans
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


def test_the_chunks_of_a_file_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    made = schedule(CONFIG, shards, tmp_path / "schedule")
    (plans, batches), *_ = read_plans(made, plans_of(made))

    def faults(second_step: int) -> list[str]:
        chunks = [(plans, batches), (replace(plans, first_step=second_step), batches)]
        monkeypatch.setattr(module, "read_plans", lambda *_: iter(chunks))
        return list(check_schedule_file(plans_of(made), made))

    assert faults(5) == ["it has 10 steps, want 5"]
    assert faults(0) == ["its step 0 does not follow the one before", "it has 10 steps, want 5"]


def list_of(*lists: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the lists of steps as offsets and what stands in them."""
    offsets = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return offsets, np.array([one for part in lists for one in part], np.int32)


def small_plan() -> StepPlans:
    """Five steps over rows 0, 1 and 2 and slots 0 and 1; the fourth runs in passes, alone."""
    offsets, slots = list_of([0, 1], [0], [1, 0], [0], [0])
    fetch_offsets, fetch_rows = list_of([0, 1], [2], [0], [1], [1])
    write_back_offsets, write_back_rows = list_of([], [0], [1], [2, 0], [])
    return StepPlans(
        first_step=0,
        offsets=offsets,
        slots=slots,
        fetch_offsets=fetch_offsets,
        fetch_rows=fetch_rows,
        fetch_slots=list_of([0, 1], [0], [1], [0], [0])[1],
        fetch_is_first=np.zeros(fetch_rows.size, np.bool_),
        write_back_offsets=write_back_offsets,
        write_back_rows=write_back_rows,
        write_back_slots=list_of([], [0], [1], [0, 1], [])[1],
        after=np.array([-1, 0, 1, 2, -1]),
        waits_for=np.array([-1, -1, 1, 2, 3]),
        is_shortened=np.zeros(5, np.bool_),
        is_split=np.array([False, False, False, True, False]),
        num_hits=np.zeros(5, np.int64),
        num_misses=np.zeros(5, np.int64),
    )


def put(values: NDArray[Any], position: int, value: int) -> NDArray[Any]:
    changed = values.copy()
    changed[position] = value
    return changed


LEFT = "the rows left in the slots are not those written back at the end"
EARLY = "it waits for a step that is not before it"
UNREAD = "a slot is read that holds no row, or another lookup's"


@pytest.mark.parametrize(
    ("changes", "left", "fault"),
    [
        ({}, ([1], [0]), "what it moves is not what the manifest says"),
        ({"after": (1, 1)}, ([1], [0]), f"step 1: {EARLY}"),
        ({"after": (2, -2)}, ([1], [0]), f"step 2: {EARLY}"),
        ({"waits_for": (2, 2)}, ([1], [0]), f"step 2: {EARLY}"),
        ({"waits_for": (0, -2)}, ([1], [0]), f"step 0: {EARLY}"),
        ({"after": (1, -1)}, ([1], [0]), "step 1: a row is written back that a batch may still use"),
        ({"write_back_rows": (0, 1)}, ([1], [0]), "step 1: a row is written back from a slot that does not"),
        ({"waits_for": (2, 0)}, ([1], [0]), "step 2: a row is loaded before it is written back"),
        ({"waits_for": (4, 2)}, ([1], [0]), "step 4: a row is loaded before it is written back"),
        ({"write_back_offsets": (4, 3)}, ([1], [0]), "step 3: it runs in passes, but not over its own rows"),
        ({"fetch_slots": (1, 0)}, ([1], [0]), "step 0: a row is loaded into a slot that is taken"),
        ({"fetch_slots": (2, 1)}, ([1], [0]), "step 1: a row is loaded into a slot that is taken"),
        ({"slots": (6, 1)}, ([1], [0]), f"step 4: {UNREAD}"),
        ({"slots": (1, 0)}, ([1], [0]), f"step 0: {UNREAD}"),
        ({}, ([1], [1]), LEFT),
        ({}, ([2], [0]), LEFT),
        ({}, ([], []), LEFT),
    ],
)
def test_each_rule_of_a_plan_is_checked(
    changes: dict[str, tuple[int, int]],
    left: tuple[list[int], list[int]],
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One number of a plan that keeps all rules is changed; the manifest is that of another plan."""
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    made = schedule(CONFIG, shards, tmp_path / "schedule")
    plan = small_plan()
    changed: Any = {name: put(getattr(plan, name), *change) for name, change in changes.items()}
    plans = replace(plan, **changed)
    residents = Residents(*(np.array(one, np.int32) for one in left))
    monkeypatch.setattr(module, "read_plans", lambda *_: iter([(plans, np.arange(5, dtype=np.int32))]))
    monkeypatch.setattr(module, "read_residents", lambda *_: residents)
    assert f"epoch 0 of width 4: {fault}" in next(check_schedule(made, None))


def test_the_schedule_of_another_log_is_found(tmp_path: Path) -> None:
    """Equally many batches and rows: only the rows that are looked up tell the two apart."""
    first, second = (
        Manifest.read(write_shards(tmp_path / f"shards{seed}", ShardSpec(seed=seed))) for seed in (0, 1)
    )
    made = schedule(CONFIG, first, tmp_path / "schedule")
    assert list(check_schedule(made, None)) == []
    faults = list(check_schedule(made, second))
    assert len(faults) == 2 and all("its slots do not hold the rows that batch" in fault for fault in faults)
