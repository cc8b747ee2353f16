"""Folders on disk: their bytes, their names, and the space that is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.disk import bytes_in, folder_exists, free_bytes, paths_in, rename_folder


def test_bytes_are_those_of_the_files_of_a_folder_alone(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(bytes(5))
    (tmp_path / "a").write_bytes(bytes(7))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c").write_bytes(bytes(100))
    assert bytes_in(tmp_path) == 12
    assert bytes_in(tmp_path / "none") == 0
    assert [path.name for path in paths_in(tmp_path)] == ["a", "b", "below"]
    assert folder_exists(tmp_path / "below") and not folder_exists(tmp_path / "a")


def test_space_is_that_of_the_first_folder_that_exists(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b" / "c") > 0


def test_a_folder_is_renamed_in_place_or_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "vocabulary").mkdir()
    rename_folder(tmp_path / "vocabulary", "old_vocabulary")
    assert [path.name for path in paths_in(tmp_path)] == ["old_vocabulary"]
    with pytest.raises(ManifestError, match="vocabulary cannot be written: No such file"):
        rename_folder(tmp_path / "none", "vocabulary")
