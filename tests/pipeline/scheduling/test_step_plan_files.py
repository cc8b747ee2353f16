"""Step plans come back from their files as they were written, and a damaged file is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.scheduling.epoch_plans import EpochSums
from hotset.pipeline.scheduling.step_plan_files import (
    read_plans,
    read_residents,
    write_plans,
    write_residents,
)
from hotset.stats.staging.step_plans import Residents, StepPlans
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.shard_factory import PackConfig


def draw_plans(first_step: int, num_steps: int, rng: np.random.Generator) -> StepPlans:
    """Plans of the right shapes, and no meaning."""

    def offsets() -> np.ndarray:
        return np.concatenate([[0], np.cumsum(rng.integers(0, 4, num_steps))]).astype(np.int64)

    used, fetched, written = offsets(), offsets(), offsets()
    return StepPlans(
        first_step=first_step,
        offsets=used,
        slots=rng.integers(0, 9, used[-1]).astype(np.int32),
        fetch_offsets=fetched,
        fetch_rows=rng.integers(0, 99, fetched[-1]).astype(np.int32),
        fetch_slots=rng.integers(0, 9, fetched[-1]).astype(np.int32),
        fetch_is_first=rng.random(fetched[-1]) < 0.5,
        write_back_offsets=written,
        write_back_rows=rng.integers(0, 99, written[-1]).astype(np.int32),
        write_back_slots=rng.integers(0, 9, written[-1]).astype(np.int32),
        after=rng.integers(-1, 5, num_steps),
        waits_for=rng.integers(-1, 5, num_steps),
        is_shortened=rng.random(num_steps) < 0.5,
        is_split=rng.random(num_steps) < 0.2,
        num_hits=rng.integers(0, 9, num_steps),
        num_misses=rng.integers(0, 9, num_steps),
    )


def sealed_with(folder: Path, write: Callable[[Path], None]) -> Manifest:
    output = Output.begin("schedule", 1, PackConfig(batch_size=8), [], folder)
    with output.writing("a.arrow", 0) as path:
        write(path)
    return output.seal(AnyRecord(samples=0))


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (5, 3), (4, 0, 2)])
def test_plans_are_read_as_they_were_written(
    tmp_path: Path, sizes: tuple[int, ...], rng: np.random.Generator
) -> None:
    firsts = np.cumsum([0, *sizes]).tolist()
    plans = [draw_plans(first, size, rng) for first, size in zip(firsts, sizes, strict=False)]
    batches = [rng.integers(0, 99, size).astype(np.int32) for size in sizes]
    manifest = sealed_with(tmp_path / "out", lambda path: write_plans(path, plans, batches))
    found = list(read_plans(manifest, manifest.files[0]))
    assert len(found) == len(sizes)
    for (read, numbers), plan, wanted in zip(found, plans, batches, strict=True):
        np.testing.assert_array_equal(numbers, wanted)
        for field in fields(StepPlans):
            if field.name == "first_step" and not plan.num_steps:
                continue  # a chunk without steps has no number to keep
            np.testing.assert_array_equal(getattr(read, field.name), getattr(plan, field.name))


def test_residents_are_read_as_they_were_written(tmp_path: Path) -> None:
    residents = Residents(np.array([7, 3], np.int32), np.array([0, 4], np.int32))
    manifest = sealed_with(tmp_path / "out", lambda path: write_residents(path, residents))
    found = read_residents(manifest, manifest.files[0])
    assert found.rows.tolist() == [7, 3] and found.slots.tolist() == [0, 4]


def rewritten(path: Path, change: Callable[[dict[str, pa.Array]], None]) -> None:
    """Change columns of a file of plans."""
    batch = pa.ipc.open_file(path.read_bytes()).get_batch(0)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    change(columns)
    changed = pa.record_batch(list(columns.values()), schema=batch.schema)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(changed)


def leave_a_gap(columns: dict[str, pa.Array]) -> None:
    columns["step"] = pa.array([0, 2, 3], pa.int64())


def cut_otherwise(columns: dict[str, pa.Array]) -> None:
    values = columns["fetch_slots"].values
    offsets = pa.array([0, len(values), len(values), len(values)], pa.int64())
    columns["fetch_slots"] = pa.LargeListArray.from_arrays(offsets, values)


def go_back(columns: dict[str, pa.Array]) -> None:
    values = columns["slots"].values
    offsets = pa.array([0, len(values), 0, len(values)], pa.int64())
    columns["slots"] = pa.LargeListArray.from_arrays(offsets, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (go_back, "non-monotonic offset"),
        (leave_a_gap, "its steps are not consecutive"),
        (cut_otherwise, "its lists of fetch_slots are cut otherwise than those beside them"),
    ],
)
def test_plans_that_contradict_themselves_are_damage(
    tmp_path: Path,
    change: Callable[[dict[str, pa.Array]], None],
    message: str,
    rng: np.random.Generator,
) -> None:
    plans = draw_plans(0, 3, rng)
    while np.diff(plans.fetch_offsets)[1:].sum() == 0:
        plans = draw_plans(0, 3, rng)

    def write(path: Path) -> None:
        # Elsewhere first: the checksum of what was written here is noted.
        write_plans(tmp_path / "changed", [plans], [np.arange(3, dtype=np.int32)])
        rewritten(tmp_path / "changed", change)
        shutil.copyfile(tmp_path / "changed", path)

    manifest = sealed_with(tmp_path / "out", write)
    with pytest.raises(ManifestError, match=message) as caught:
        list(read_plans(manifest, manifest.files[0]))
    assert caught.value.hint is not None and "remove it and write it again" in caught.value.hint


def test_plans_that_were_read_outlive_their_file(tmp_path: Path, rng: np.random.Generator) -> None:
    plans = draw_plans(0, 40, rng)
    numbers = np.arange(40, dtype=np.int32)
    manifest = sealed_with(tmp_path / "out", lambda path: write_plans(path, [plans], [numbers]))
    ((found, batches),) = read_plans(manifest, manifest.files[0])
    # Where the file were mapped, the next access would end the process by SIGBUS.
    os.truncate(manifest.folder / manifest.files[0].path, 0)
    np.testing.assert_array_equal(batches, numbers)
    for name in ("slots", "fetch_rows", "write_back_slots", "after", "offsets"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plans, name))


@pytest.mark.parametrize("reader", ["plans", "residents"])
def test_a_flipped_bit_is_refused_where_the_file_is_read(
    reader: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    plans = draw_plans(0, 3, rng)
    residents = Residents(np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int32))

    def write(path: Path) -> None:
        if reader == "plans":
            write_plans(path, [plans], [np.arange(3, dtype=np.int32)])
        else:
            write_residents(path, residents)

    manifest = sealed_with(tmp_path / "out", write)
    path = manifest.folder / manifest.files[0].path
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(ManifestError, match="is damaged: its checksum is"):
        if reader == "plans":
            list(read_plans(manifest, manifest.files[0]))
        else:
            read_residents(manifest, manifest.files[0])


def test_a_file_of_other_columns_is_no_schedule(tmp_path: Path) -> None:
    residents = Residents(np.zeros(0, np.int32), np.zeros(0, np.int32))
    manifest = sealed_with(tmp_path / "out", lambda path: write_residents(path, residents))
    with pytest.raises(ManifestError, match="its columns are not those of a schedule"):
        list(read_plans(manifest, manifest.files[0]))


def test_the_sums_of_an_epoch_count_every_move_once(rng: np.random.Generator) -> None:
    sums = EpochSums()
    plans = [draw_plans(0, 6, rng), draw_plans(6, 4, rng)]
    assert all(sums.add(plan) is plan for plan in plans)
    sums.residents = Residents(np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int32))
    totals = sums.totals(row_bytes=20)
    # Step by step: a batch that is split moves its rows twice, and writes all of them back.
    to_fast = made = 0
    to_slow = 3
    for plan in plans:
        for step in range(plan.num_steps):
            fetched = plan.fetch_is_first[plan.fetch_offsets[step] : plan.fetch_offsets[step + 1]]
            times = 2 if plan.is_split[step] else 1
            to_fast += times * int((~fetched).sum())
            made += times * int(fetched.sum())
            to_slow += int(plan.write_back_offsets[step + 1] - plan.write_back_offsets[step])
            if plan.is_split[step]:
                to_slow += int(plan.offsets[step + 1] - plan.offsets[step])
    assert (totals.steps, totals.split) == (10, sum(int(plan.is_split.sum()) for plan in plans))
    assert (totals.rows_to_fast, totals.rows_made, totals.rows_to_slow) == (to_fast, made, to_slow)
    assert (totals.bytes_to_fast, totals.bytes_to_slow) == (20 * to_fast, 20 * to_slow)
