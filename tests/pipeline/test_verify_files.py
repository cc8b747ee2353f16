"""The check of columns finds its faults, on a folder whose checksums all fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.preprocess import preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.verify_files import check_columns
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.preprocess_runs import CONFIG, copy_of
from hotset.tests.support.resealed import reseal


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


def faults_after(made: Path, out: Path, change: Callable[[dict[str, Any]], None], name: str) -> list[str]:
    """Return the faults found in a file of columns that was changed and sealed again."""
    copy_of(made, out)
    reseal(out / "columns", change, name)
    columns = Manifest.read(out / "columns")
    return list(check_columns(columns.entry(name), columns, {}))


def test_files_as_they_were_written_have_no_fault(made: Path, made_of_lists: Path) -> None:
    num_texts = 0
    for folder in (made, made_of_lists):
        columns = Manifest.read(folder / "columns")
        for entry in columns.files:
            assert list(check_columns(entry, columns, {})) == [], entry.path
            num_texts += entry.is_texts
    assert num_texts > 0


def test_a_label_above_one_is_found(made: Path, tmp_path: Path) -> None:
    name = Manifest.read(made / "columns").files[0].path

    def change(columns: dict[str, Any]) -> None:
        columns["label"][-1] = 2

    found = faults_after(made, tmp_path, change, name)
    assert found == ["a label is neither 0 nor 1"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_found(made_of_lists: Path, tmp_path: Path, value: float) -> None:
    columns = Manifest.read(made_of_lists / "columns")
    name = columns.totals["floats"][0]

    def change(values: dict[str, Any]) -> None:
        values[name][0] = value

    found = faults_after(made_of_lists, tmp_path, change, columns.files[0].path)
    assert found == [f"a value of {name} is not finite"]


def test_lists_with_an_element_more_than_the_manifest_says_are_found(
    made_of_lists: Path, tmp_path: Path
) -> None:
    columns = Manifest.read(made_of_lists / "columns")
    name = columns.totals["lists"][0]

    def change(values: dict[str, Any]) -> None:
        values[name][0] = [*(values[name][0] or []), 7]

    (found,) = faults_after(made_of_lists, tmp_path, change, columns.files[0].path)
    assert found.startswith(f"its lists of {name} have ")


def test_a_text_that_has_another_hash_is_found_and_one_that_was_cut_is_not(
    made_of_lists: Path, tmp_path: Path
) -> None:
    columns = Manifest.read(made_of_lists / "columns")
    name = next(entry.path for entry in columns.files if entry.is_texts)

    def change(to: str) -> Callable[[dict[str, Any]], None]:
        def changed(columns: dict[str, Any]) -> None:
            columns["text"][0] = to

        return changed

    def check(to: str) -> list[str]:
        return faults_after(made_of_lists, tmp_path / to[:3], change(to), name)

    assert check("other text") == ["the text 'other text' does not have the hash of its category"]
    assert check("repaired \ufffd") == []
