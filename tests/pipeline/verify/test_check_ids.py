"""Ids, tags and batches that are not what other folders or the manifest say are found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.preprocess import preprocess
from hotset.pipeline.verify.check_ids import check_samples, check_shards, check_tags
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.preprocess_runs import CONFIG, copy_of
from hotset.tests.support.resealed import reseal

Change = Callable[[dict[str, Any]], None]
CHECKS = {"samples": check_samples, "plan": check_tags, "shards": check_shards}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log of grouped batches; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "log").write_bytes(text_of(draw_samples(180, np.random.default_rng(10))))
    preprocess([folder / "log"], CONFIG, folder / "dir", Resources(workers=1))
    return folder / "dir"


@pytest.fixture(scope="module")
def made_of_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log with lists, of batches in the shuffled order; not to be changed."""
    folder = tmp_path_factory.mktemp("lists")
    log = draw_log(60, KINDS, np.random.default_rng(7))
    config = recipe(log, "csv", order="original")
    preprocess([write_csv(folder / "log", log)], config, folder / "dir", Resources(workers=1))
    return folder / "dir"


def manifests_in(folder: Path) -> dict[str, Manifest]:
    return {name: Manifest.read(folder / name) for name in ("columns", "samples", "plan", "shards")}


def faults_of(folder: Path, stage: str, name: str) -> list[str]:
    manifests = manifests_in(folder)
    return list(CHECKS[stage](manifests[stage].entry(name), manifests[stage], manifests))


def faults_after(made: Path, out: Path, stage: str, name: str, change: Change) -> list[str]:
    """Return the faults that a stage's check finds in a file that was changed and sealed again."""
    copy_of(made, out)
    reseal(out / stage, change, name)
    return faults_of(out, stage, name)


def first_file(folder: Path, stage: str, **facts: Any) -> str:
    """The first file with samples and these facts."""
    return next(
        entry.path
        for entry in Manifest.read(folder / stage).files
        if entry.num_samples > 3 and facts.items() <= entry.facts.items()
    )


def with_value(column: str, row: int, value: Any) -> Change:
    """Put a value in place of another."""

    def change(columns: dict[str, Any]) -> None:
        columns[column][row] = value

    return change


def test_files_as_they_were_written_have_no_fault(made: Path, made_of_lists: Path) -> None:
    for folder in (made, made_of_lists):
        for stage in CHECKS:
            for entry in Manifest.read(folder / stage).files:
                assert faults_of(folder, stage, entry.path) == []


@pytest.mark.parametrize("wrong", [-1, 10**9])
@pytest.mark.parametrize("stage", ["samples", "shards"])
def test_an_id_outside_its_table_is_found_and_the_table_named(
    made: Path, tmp_path: Path, stage: str, wrong: int
) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["ids"][2][4] = wrong

    found = faults_after(made, tmp_path, stage, first_file(made, stage), change)
    rows = Manifest.read(made / "samples").totals["tables"][4]["num_rows"]
    assert any(fault.endswith(f"an id of C5 is outside its {rows} rows") for fault in found)


def test_an_id_of_a_list_outside_its_table_is_found(made_of_lists: Path, tmp_path: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        row = next(i for i, tags in enumerate(columns["tags"]) if tags)
        columns["tags"][row][0] = 10**6

    (found,) = faults_after(made_of_lists, tmp_path, "samples", first_file(made_of_lists, "samples"), change)
    assert found.startswith("an id of tags is outside its ")


def test_a_lookup_moved_from_one_list_to_the_next_is_found(made_of_lists: Path, tmp_path: Path) -> None:
    """The sum of the lengths stays what the manifest says: only the columns tell."""

    def change(columns: dict[str, Any]) -> None:
        lists = columns["tags"]
        row = next(i for i in range(len(lists) - 1) if lists[i])
        lists[row + 1] = [lists[row].pop(), *lists[row + 1]]

    found = faults_after(made_of_lists, tmp_path, "samples", first_file(made_of_lists, "samples"), change)
    assert found == ["its lists of tags are not as long as those of columns"]


def test_a_part_that_columns_do_not_have_is_found(made: Path) -> None:
    manifests = manifests_in(made)
    entry = manifests["samples"].files[0]
    del manifests["columns"].entries[entry.path]
    found = list(check_samples(entry, manifests["samples"], manifests))
    assert found == [f"it has {entry.num_samples} samples, columns has None"]
    assert list(check_samples(entry, manifests["samples"], {})) == []
    tags = manifests["plan"].files[0]
    del manifests["samples"].entries[tags.path]
    assert list(check_tags(tags, manifests["plan"], manifests)) == [
        "samples has no such file, or one of another length"
    ]
    assert list(check_tags(tags, manifests["plan"], {})) == []


def test_a_tag_that_is_not_that_of_the_ids_is_found(made: Path, tmp_path: Path) -> None:
    name = first_file(made, "plan")

    def flip(columns: dict[str, Any]) -> None:
        columns["is_hot"][1] = 1 - columns["is_hot"][1]

    assert faults_after(made, tmp_path / "plan", "plan", name, flip) == ["its tags do not agree with the ids"]
    name = first_file(made, "shards", kind="evaluation")
    assert faults_after(made, tmp_path / "shards", "shards", name, flip) == [
        "batch 0: its tags do not agree with the ids"
    ]


def test_a_cold_row_in_a_hot_only_batch_and_a_hot_sample_in_a_mixed_one_are_found(
    made: Path, tmp_path: Path
) -> None:
    hot = first_file(made, "shards", kind="hot_only")
    tables = Manifest.read(made / "shards").totals["tables"]
    number = next(i for i, table in enumerate(tables) if table["num_hot"] < table["num_rows"])

    def cool(columns: dict[str, Any]) -> None:
        columns["ids"][0][number] = tables[number]["num_hot"]

    assert faults_after(made, tmp_path / "hot", "shards", hot, cool) == [
        "batch 0: a lookup of a hot-only batch hits a cold row"
    ]
    mixed = first_file(made, "shards", kind="mixed")

    def heat(columns: dict[str, Any]) -> None:
        columns["ids"][0] = [0] * len(tables)

    assert all(table["num_hot"] for table in tables)
    assert faults_after(made, tmp_path / "mixed", "shards", mixed, heat) == [
        "batch 0: a fully hot sample is in a mixed batch"
    ]


def test_a_label_and_a_batch_of_another_length_are_found(made: Path, tmp_path: Path) -> None:
    name = first_file(made, "shards", kind="mixed")
    found = faults_after(made, tmp_path / "label", "shards", name, with_value("label", 0, 0.5))
    assert found == ["batch 0: a label is neither 0 nor 1"]

    def drop(columns: dict[str, Any]) -> None:
        for values in columns.values():
            values.pop()

    num_samples = Manifest.read(made / "shards").entry(name).num_samples
    assert faults_after(made, tmp_path / "short", "shards", name, drop) == [
        "a batch before the last has not 16 samples",
        f"its batches have not {num_samples} samples",
    ]


def test_lists_with_a_lookup_less_are_found(made_of_lists: Path, tmp_path: Path) -> None:
    name = first_file(made_of_lists, "shards", kind="mixed")

    def change(columns: dict[str, Any]) -> None:
        next(tags for tags in columns["tags"] if tags).pop()

    found = faults_after(made_of_lists, tmp_path, "shards", name, change)
    assert found and found[-1].startswith("its lists have {")
