"""Small files are written whole or not at all, and system errors become one line with a way out."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.partial_folder import (
    PARTIAL,
    durable_files,
    is_durable,
    num_recorded,
    write_errors_explained,
    write_synced,
)
from hotset.tests.support.processes.kills import Killed, killed


def test_durable_files_nest_and_end_even_after_an_error() -> None:
    assert not is_durable()
    with durable_files():
        with durable_files(False):
            assert not is_durable()
        assert is_durable()
    with pytest.raises(KeyError), durable_files():
        raise KeyError
    assert not is_durable()


def test_killed_before_the_rename_the_old_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "begun.json"
    write_synced(path, b"old", sync=False)
    with killed(1, monkeypatch), pytest.raises(Killed):
        write_synced(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    write_synced(path, b"newer", aside=tmp_path / "aside", sync=True)
    assert path.read_bytes() == b"newer" and not (tmp_path / "aside").exists()


def test_a_system_error_is_explained_and_others_pass(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"out cannot be written: No space left") as caught:
        with write_errors_explained(tmp_path / "out"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.hint == "make room or fix the cause, and run the same command again"
    with pytest.raises(ManifestError, match="out cannot be written: by hand"):
        with write_errors_explained(tmp_path / "out"):
            raise OSError("by hand")
    with pytest.raises(KeyError), write_errors_explained(tmp_path):
        raise KeyError


def test_only_records_of_data_files_are_counted(tmp_path: Path) -> None:
    assert num_recorded(tmp_path) == 0
    (tmp_path / PARTIAL).mkdir()
    for name in ("a.arrow.json", "b.arrow.json", "begun.json", "c.arrow"):
        (tmp_path / PARTIAL / name).touch()
    assert num_recorded(tmp_path) == 2
