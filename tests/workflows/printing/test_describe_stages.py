"""Lines about finished stages: numbers that people can check against the manifests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.sizes import ByteSize, format_byte_size
from hotset.pipeline.stages.map_ids import map_ids
from hotset.pipeline.stages.preprocess import StageReport
from hotset.pipeline.stages.schedule import ScheduleConfig, schedule
from hotset.pipeline.stages.transpose import TransposeConfig, transpose
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.workflows.printing.describe_stages import (
    describe_id_map,
    describe_lookups,
    describe_schedule,
    describe_shards,
    describe_stage,
    explain_all_hot,
)


def scheduled(folder: Path, staging_bytes: int, **settings: Any) -> Manifest:
    spec = ShardSpec(batch_size=8, num_mixed=200, skew=1.2)
    shards = Manifest.read(write_shards(folder / "shards", spec))
    config = ScheduleConfig(staging_bytes=ByteSize(staging_bytes), split_batches=True, **settings)
    return schedule(config, shards, folder / "schedule")


def test_a_stage_is_a_line_with_its_bytes_and_its_speed(data: Path) -> None:
    counts = Manifest.read(data / "counts")
    report = StageReport("count", counts, 0.5, 3_000_000, was_sealed=False)
    num_bytes = format_byte_size(sum((counts.folder / entry.path).stat().st_size for entry in counts.files))
    assert describe_stage(report) == f"count    {counts.folder}: {num_bytes} in 0.5 s, 6.00 M samples/s"
    assert describe_stage(replace(report, was_sealed=True)) == f"count    {counts.folder}: already done"


@pytest.mark.parametrize("was_sealed", [False, True])
def test_a_long_folder_is_cut_before_a_number_is(data: Path, was_sealed: bool) -> None:
    report = StageReport("encode", Manifest.read(data / "samples"), 2.0, 1500, was_sealed)
    whole = describe_stage(report)
    assert describe_stage(report, len(whole)) == whole
    shorter = describe_stage(report, len(whole) - 1)
    assert shorter == whole.replace(str(data / "samples"), "samples")


def test_a_stage_within_the_resolution_of_the_clock_has_a_speed(data: Path) -> None:
    line = describe_stage(StageReport("rank", Manifest.read(data / "vocabulary"), 0.0, 0, was_sealed=False))
    assert line.endswith("in 0.0 s, 0 samples/s")


def test_shards_are_told_by_kind(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    assert describe_shards(shards) == (
        "70 samples in 3 hot-only batches, 150 in 5 mixed batches, 90 for evaluation; 35 of 345 rows are hot"
    )


@pytest.mark.parametrize(("num_rows", "num_hot"), [(10, 9), (10, 0), (1, 0)])
def test_nothing_is_explained_where_a_row_is_cold(num_rows: int, num_hot: int) -> None:
    assert explain_all_hot(num_rows, num_hot) is None


def test_that_every_row_is_hot_is_explained_with_what_to_do() -> None:
    said = explain_all_hot(12_345, 12_345)
    assert said and said.startswith("All 12,345 rows fit in --hot-bytes") and "lower --hot-bytes" in said


def test_a_schedule_tells_its_rows_and_their_bytes(tmp_path: Path) -> None:
    made = scheduled(tmp_path, 310 * 16, prefetch=0)
    totals = made.totals
    assert describe_schedule(made) == (
        f"25 steps: 0 rows are loaded (0 B), {totals['rows_made']:,} are initialized on first use, "
        f"{totals['rows_to_slow']:,} are written back ({format_byte_size(totals['bytes_to_slow'])})"
    )


def test_steps_that_load_later_or_run_in_passes_are_told_where_there_are_some(tmp_path: Path) -> None:
    crowded = scheduled(tmp_path / "crowded", 16 * 24, prefetch=6)
    number = crowded.totals["shortened"]
    assert number and describe_schedule(crowded).endswith(
        f"; {number:,} steps load later than --prefetch asks for"
    )
    split = scheduled(tmp_path / "split", 16 * 5, prefetch=0)
    number = split.totals["split"]
    assert number and describe_schedule(split).endswith(f"; {number:,} steps run in several passes")


def test_a_schedule_counts_the_steps_of_all_epochs(tmp_path: Path) -> None:
    made = scheduled(tmp_path, 16 * 64, prefetch=0, epochs=2)
    totals = made.totals
    up, down = (format_byte_size(totals[f"bytes_to_{tier}"]) for tier in ("fast", "slow"))
    assert totals["rows_to_fast"] and up != down
    assert describe_schedule(made).startswith(
        f"50 steps: {totals['rows_to_fast']:,} rows are loaded ({up}), {totals['rows_made']:,} are "
        f"initialized on first use, {totals['rows_to_slow']:,} are written back ({down})"
    )


def test_stored_lookups_are_told_by_sample(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec()))
    made = transpose(TransposeConfig(), shards, tmp_path / "lookups")
    totals = made.totals
    num_bytes = sum(entry.num_bytes for entry in made.files)
    assert totals["samples"] == 220 and totals["rows"] < totals["lookups"]
    assert describe_lookups(made) == (
        f"8 batches: {totals['lookups'] / 220:.1f} lookups of {totals['rows'] / 220:.1f} distinct rows per "
        f"sample; the folder takes {num_bytes / 220:.0f} bytes per sample"
    )


def test_an_id_map_tells_what_is_new(data: Path, tmp_path: Path) -> None:
    vocabulary = Manifest.read(data / "vocabulary")
    made = map_ids(vocabulary, vocabulary, tmp_path / "map")
    parts = json.loads((made.folder / "manifest.json").read_text())
    parts["totals"] |= {"num_old_rows": 900, "num_new_rows": 1500, "num_kept": 600}
    parts["totals"] |= {"kept_lookups": 3000, "new_lookups": 4000}
    write_manifest(made.folder, parts)
    assert describe_id_map(Manifest.read(made.folder)) == (
        f"{made.folder}: 600 of 900 old rows are kept; they serve 75.0% of the lookups counted for the new "
        "vocabulary. 900 rows start fresh"
    )


def test_an_id_map_tells_what_is_kept(data: Path, tmp_path: Path) -> None:
    """A vocabulary mapped to itself keeps every row."""
    vocabulary = Manifest.read(data / "vocabulary")
    made = map_ids(vocabulary, vocabulary, tmp_path / "map")
    rows = f"{vocabulary.totals['num_rows']:,}"
    assert describe_id_map(made) == (
        f"{made.folder}: {rows} of {rows} old rows are kept; they serve 100.0% of the lookups counted for "
        "the new vocabulary. 0 rows start fresh"
    )
