"""Lines about finished stages: numbers that people can check against the manifests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.pipeline.errors import format_byte_size
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import StageReport
from hotset.pipeline.stages.other_vocabulary import map_ids
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.workflows.commands.describe_stages import (
    describe_id_map,
    describe_shards,
    describe_stage,
    explain_all_hot,
)


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
