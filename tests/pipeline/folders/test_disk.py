"""Folders on disk: their bytes, their names, and the space that is left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.disk import (
    bytes_in,
    folder_exists,
    free_bytes,
    paths_in,
    rename_folder,
    temporary_folder,
)


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


def test_a_temporary_folder_is_removed_even_after_a_kill(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from hotset.pipeline.folders.disk import temporary_folder\n"
        "with temporary_folder('verify', pathlib.Path(sys.argv[1])) as folder:\n"
        "    (folder / 'counts').mkdir()\n"
        "    (folder / 'counts' / 'C1.arrow').write_bytes(b'x')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    (tmp_path / "hotset-other-1").mkdir()
    assert len(paths_in(tmp_path)) == 2
    with temporary_folder("verify", tmp_path) as first, temporary_folder("verify", tmp_path) as second:
        # Folders in use stay, that of the killed process is gone, those for other purposes are left alone.
        assert set(paths_in(tmp_path)) == {first, second, tmp_path / "hotset-other-1"}
    assert paths_in(tmp_path) == [tmp_path / "hotset-other-1"]
