"""Maps of files: what they hold, for how long, and that none keeps a file open."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.formats.mapped_file import map_file
from hotset.tests.support.processes.descriptors import open_files


def test_a_map_holds_the_bytes_of_its_file_and_keeps_no_file_open(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xff")
    path.write_bytes(bytes(range(256)) * 40)
    maps = [map_file(path) for _ in range(50)]
    assert open_files(tmp_path) == []
    path.unlink()
    for found in maps:
        values = np.frombuffer(found, np.uint8)
        assert values.size == 256 * 40 and not values.flags.writeable
        assert values.sum(dtype=np.int64) == 40 * 255 * 128


def test_an_array_keeps_the_map_and_the_last_one_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 10_000)

    def is_mapped() -> bool:
        return str(path) in Path("/proc/self/maps").read_text()

    values = np.frombuffer(map_file(path), np.uint8)[5000:]
    assert is_mapped() and values[-1] == ord("x")
    del values
    assert not is_mapped()


def test_what_cannot_be_mapped_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="it is empty"):
        map_file(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "none")
    with pytest.raises(OSError, match=r"No such device|Is a directory"):
        map_file(tmp_path)
