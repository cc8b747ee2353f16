"""Each check of one file finds its faults, on a folder whose checksums all fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import FileEntry, Manifest
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.preprocess import preprocess
from hotset.pipeline.verify.check_files import (
    check_columns,
    check_counts,
    check_texts,
    check_vocabulary,
    faults_of_plan,
    is_sum,
)
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.preprocess_runs import CONFIG, copy_of
from hotset.tests.support.resealed import reseal, write_manifest

Check = Callable[[FileEntry, Manifest, dict[str, Manifest]], Iterator[str]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log in Criteo's format; not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "log").write_bytes(text_of(draw_samples(120, np.random.default_rng(6))))
    preprocess([folder / "log"], CONFIG, folder / "dir", Resources(workers=1))
    return folder / "dir"


@pytest.fixture(scope="module")
def made_of_lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log with lists, floats and texts; not to be changed."""
    folder = tmp_path_factory.mktemp("lists")
    log = draw_log(60, KINDS, np.random.default_rng(7))
    preprocess([write_csv(folder / "log", log)], recipe(log, "csv"), folder / "dir", Resources(workers=1))
    return folder / "dir"


def faults_after(
    check: Check, made: Path, out: Path, stage: str, change: Callable[[dict[str, Any]], None], name: str
) -> list[str]:
    """Return the faults that ``check`` finds in a file whose columns were changed and sealed again."""
    copy_of(made, out)
    reseal(out / stage, change, name)
    manifest = Manifest.read(out / stage)
    return list(check(manifest.entry(name), manifest, {}))


def test_files_as_they_were_written_have_no_fault(made: Path, made_of_lists: Path) -> None:
    checks: dict[str, Check] = {
        "columns": check_columns,
        "counts": check_counts,
        "vocabulary": check_vocabulary,
    }
    num_checked = 0
    for folder in (made, made_of_lists):
        for stage, check in checks.items():
            manifest = Manifest.read(folder / stage)
            for entry in manifest.files:
                assert list((check_texts if entry.is_texts else check)(entry, manifest, {})) == [], entry.path
                num_checked += 1
        assert list(faults_of_plan(Manifest.read(folder / "plan"))) == []
    assert num_checked > 60


def test_a_label_above_one_is_found(made: Path, tmp_path: Path) -> None:
    name = Manifest.read(made / "columns").files[0].path

    def change(columns: dict[str, Any]) -> None:
        columns["label"][-1] = 2

    found = faults_after(check_columns, made, tmp_path, "columns", change, name)
    assert found == ["a label is neither 0 nor 1"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_found(made_of_lists: Path, tmp_path: Path, value: float) -> None:
    columns = Manifest.read(made_of_lists / "columns")
    name = columns.totals["floats"][0]

    def change(values: dict[str, Any]) -> None:
        values[name][0] = value

    found = faults_after(check_columns, made_of_lists, tmp_path, "columns", change, columns.files[0].path)
    assert found == [f"a value of {name} is not finite"]


def test_lists_with_an_element_more_than_the_manifest_says_are_found(
    made_of_lists: Path, tmp_path: Path
) -> None:
    columns = Manifest.read(made_of_lists / "columns")
    name = columns.totals["lists"][0]

    def change(values: dict[str, Any]) -> None:
        values[name][0] = [*(values[name][0] or []), 7]

    (found,) = faults_after(check_columns, made_of_lists, tmp_path, "columns", change, columns.files[0].path)
    assert found.startswith(f"its lists of {name} have ")


def test_counts_that_do_not_ascend_or_add_up_are_found(made: Path, tmp_path: Path) -> None:
    def swap(columns: dict[str, Any]) -> None:
        categories = columns["category"]
        categories[0], categories[1] = categories[1], categories[0]

    def add_one(columns: dict[str, Any]) -> None:
        columns["count"][0] += 1

    assert faults_after(check_counts, made, tmp_path / "a", "counts", swap, "C3.arrow") == [
        "its categories are not ascending"
    ]
    assert faults_after(check_counts, made, tmp_path / "b", "counts", add_one, "C3.arrow") == [
        "it counts 85 lookups, want 84"
    ]


@pytest.mark.parametrize("num_parts", [1, 2, 5])
def test_a_sum_is_told_from_what_is_none(num_parts: int, rng: np.random.Generator) -> None:
    parts = []
    for _ in range(num_parts):
        categories = np.unique(rng.integers(0, 40, 20)).astype(np.uint32)
        parts.append((categories, rng.integers(1, 9, categories.size)))
    whole = np.unique(np.concatenate([categories for categories, _ in parts]))
    sums = np.array(
        [sum(int(counts[found == one].sum()) for found, counts in parts) for one in whole], np.int64
    )
    assert is_sum((whole, sums), parts)
    assert not is_sum((whole[:-1], sums[:-1]), parts)
    assert not is_sum((np.append(whole, np.uint32(99)), np.append(sums, 1)), parts)
    sums[3] += 1
    assert not is_sum((whole, sums), parts)


def test_each_column_of_a_vocabulary_is_checked(made: Path, tmp_path: Path) -> None:
    def rising(columns: dict[str, Any]) -> None:
        columns["count"].reverse()

    def lost(columns: dict[str, Any]) -> None:
        columns["count"][-1] -= 1

    def equal_places(columns: dict[str, Any]) -> None:
        columns["place"][1] = columns["place"][0]

    def place_outside(columns: dict[str, Any]) -> None:
        columns["place"][-1] = 10**9

    def repeated(columns: dict[str, Any]) -> None:
        first, second = [row for row, value in enumerate(columns["category"]) if value is not None][:2]
        columns["category"][second] = columns["category"][first]

    wanted = {
        rising: "its counts rise from one id to the next",
        lost: "its rows have 83 lookups, want 84",
        repeated: "it has a category twice",
        equal_places: "its places are no order over all tables",
    }
    for change, fault in wanted.items():
        out = tmp_path / change.__name__
        assert faults_after(check_vocabulary, made, out, "vocabulary", change, "C3.arrow") == [fault]
    # A place is an index, so that it is bounded by whoever reads the file.
    with pytest.raises(ManifestError, match=r"C3\.arrow is damaged: a place is outside its 131 rows"):
        faults_after(check_vocabulary, made, tmp_path / "out", "vocabulary", place_outside, "C3.arrow")


def test_a_text_that_has_another_hash_is_found_and_one_that_was_cut_is_not(
    made_of_lists: Path, tmp_path: Path
) -> None:
    vocabulary = Manifest.read(made_of_lists / "vocabulary")
    name = next(entry.path for entry in vocabulary.files if entry.is_texts)

    def change(to: str) -> Callable[[dict[str, Any]], None]:
        def changed(columns: dict[str, Any]) -> None:
            columns["text"][0] = to

        return changed

    def check(to: str) -> list[str]:
        return faults_after(check_texts, made_of_lists, tmp_path / to[:3], "vocabulary", change(to), name)

    assert check("other text") == ["the text 'other text' does not have the hash of its category"]
    assert check("repaired \ufffd") == []


def test_ids_of_texts_outside_the_table_are_found(made_of_lists: Path, tmp_path: Path) -> None:
    name = next(entry.path for entry in Manifest.read(made_of_lists / "vocabulary").files if entry.is_texts)

    def change(columns: dict[str, Any]) -> None:
        columns["id"][-1] = 10**6

    found = faults_after(check_texts, made_of_lists, tmp_path, "vocabulary", change, name)
    assert found == ["its ids are not ascending, or outside the table"]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"hot_bytes": 100}, "its hot rows take 2400 bytes, the budget is 100"),
        ({"hot_bytes": 100, "mode": "fae-paper"}, None),
        ({"embedding_optimizer": "sgd"}, "C1 has rows of 32 bytes, want 16"),
        ({"feature_dims": [["C2", 8]]}, "C2 has rows of 32 bytes, want 64"),
    ],
)
def test_a_plan_of_other_rows_than_its_settings_is_found(
    made: Path, tmp_path: Path, change: dict[str, Any], wanted: str | None
) -> None:
    plan = copy_of(made, tmp_path) / "plan"
    parts = json.loads((plan / "manifest.json").read_text())
    parts["config"] |= change
    write_manifest(plan, parts)
    found = list(faults_of_plan(Manifest.read(plan)))
    assert found == [] if wanted is None else found[0] == wanted
