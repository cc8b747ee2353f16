"""A folder appears whole and sealed, or not at all."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.whole_folder import whole_folder, write_json, write_text

INPUTS = [{"name": "run", "fingerprint": "0" * 32}]


def test_files_are_sealed_under_the_final_name(tmp_path: Path) -> None:
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial/half").write_text("of a killed run")
    with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS) as folder:
        write_text(folder / "b.txt", "naïve ☃\n")
        write_json(folder / "a.json", {"name": "☃"})
        assert not (tmp_path / "out").exists()
    manifest = Manifest.read(tmp_path / "out")
    assert (manifest.stage, manifest.version, manifest.inputs) == ("export", 2, INPUTS)
    assert [entry.path for entry in manifest.files] == ["a.json", "b.txt"]
    for entry in manifest.files:
        manifest.hashed_path(entry)
    assert (tmp_path / "out/b.txt").read_text() == "naïve ☃\n"
    assert json.loads((tmp_path / "out/a.json").read_text()) == {"name": "☃"}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS):
            raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(HotsetError, match="out"):
        with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS):
            pass
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_of_two_writers_the_second_is_refused(tmp_path: Path) -> None:
    """They would mix their files, and seal what the other one is still writing."""

    def write_second() -> None:
        with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS) as folder:
            write_text(folder / "b.txt", "second")

    with whole_folder(tmp_path / "out", stage="export", version=2, inputs=INPUTS) as folder:
        write_text(folder / "a.txt", "first")
        # A run of the same thread would take the place of one that failed.
        with ThreadPoolExecutor(1) as pool, pytest.raises(HotsetError, match="out is being written"):
            pool.submit(write_second).result()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["a.txt", "manifest.json"]
