"""Arrays on disk while a stage runs: zeros, appended values, runs, and files that processes share."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import MIB, ManifestError
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.temporary_files import (
    ArrayFile,
    RunsFile,
    array_in,
    read_shared_arrays,
    remove_shared,
    write_shared_arrays,
)
from hotset.pipeline.runtime.memory import anonymous_bytes, give_back


@dataclass(frozen=True)
class NoConfig:
    """Nothing to vary."""


def output_in(folder: Path) -> Output:
    output = Output.begin("count", 1, NoConfig(), [], folder)
    return output


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_arrays_are_zeros_in_memory_or_in_a_file_without_a_name(tmp_path: Path) -> None:
    output = output_in(tmp_path / "counts")
    before = sorted(path.name for path in (tmp_path / "counts").rglob("*"))
    for room in (0, 8 * 6000):
        array = array_in(room, output, (3, 2000), np.int64)
        assert array.shape == (3, 2000) and array.dtype == np.int64 and not array.any()
        array[:] = np.arange(6000).reshape(3, 2000)
        assert array.sum() == 5999 * 3000
        assert sorted(path.name for path in (tmp_path / "counts").rglob("*")) == before
    assert array_in(0, output, (0,), np.uint32).shape == (0,)


@pytest.mark.skipif(anonymous_bytes() == 0, reason="this system does not say")
def test_a_mapped_array_is_no_anonymous_memory(tmp_path: Path) -> None:
    output = output_in(tmp_path / "counts")
    give_back()
    before = anonymous_bytes()
    array_in(0, output, (64 * MIB,), np.uint8)[:] = 1
    mapped = anonymous_bytes()
    held = array_in(64 * MIB, output, (64 * MIB,), np.uint8)
    held[:] = 1
    assert mapped - before < 32 * MIB < anonymous_bytes() - before


def test_a_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    output = output_in(tmp_path / "counts")
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ManifestError, match="has no space for spill files: No space left") as caught:
        array_in(0, output, (10,), np.int64)
    assert "--memory" in str(caught.value.hint)


def test_runs_overwrite_what_a_killed_run_left_and_outlive_their_file(tmp_path: Path) -> None:
    output = output_in(tmp_path / "counts")
    output.temporary_path("C1.runs").write_bytes(b"left by a kill")
    runs = RunsFile(output, "C1.runs")
    runs.append(np.array([1, 2], np.uint64), np.array([7, 8], np.int64))
    runs.append(np.array([3], np.uint64), np.array([9], np.int64))
    mapped = runs.map(np.uint64)
    runs.remove()
    assert mapped.tolist() == [1, 2, 7, 8, 3, 9]
    assert "C1.runs" not in names_in(tmp_path / "counts")


def test_shared_arrays_come_back_by_their_lengths(tmp_path: Path) -> None:
    output = output_in(tmp_path / "counts")
    written = [np.arange(length, dtype=np.int32) for length in (3, 0, 5)]
    write_shared_arrays(output, "part.ids0", iter(written))
    read = list(read_shared_arrays(output, "part.ids0", np.int32, [3, 0, 5]))
    assert [array.tolist() for array in read] == [array.tolist() for array in written]
    remove_shared(output, "part.ids0")
    assert "part.ids0" not in names_in(tmp_path / "counts")


def test_an_array_file_is_mapped_once_as_long_as_it_exists(tmp_path: Path) -> None:
    output = output_in(tmp_path / "counts")
    file = ArrayFile.write(np.arange(6).reshape(2, 3), output, "table")
    assert file.open() is file.open()
    assert file.open().tolist() == [[0, 1, 2], [3, 4, 5]]
    file.remove()
    other = ArrayFile.write(np.zeros(2), output, "other")
    assert other.open().tolist() == [0, 0]
