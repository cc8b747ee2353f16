"""Blocks of a spill file: whole, at their places, with and without direct input and output."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import HotsetError
from hotset.train.spill.block_file import BlockFile, aligned_blocks

BYTES = 8192


@pytest.fixture(params=["direct", "cached"])
def file(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlockFile:
    if request.param == "cached":
        monkeypatch.setattr(BlockFile, "_use_direct", lambda _: False)
    return BlockFile(tmp_path, BYTES, 3)


def written(file: BlockFile, block: Any) -> int:
    number = file.allocate()
    file.write(number, block)
    return number


def filled(value: int) -> Any:
    block = aligned_blocks(1, BYTES)[0]
    block[:] = value
    return block


def test_blocks_come_back_and_their_places_are_used_again(file: BlockFile, tmp_path: Path) -> None:
    numbers = [written(file, filled(value)) for value in range(5)]
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    block = filled(9)
    for value in (3, 0, 4):
        file.read(numbers[value], block)
        assert (block == value).all()
    file.free(numbers[1])
    assert written(file, filled(7)) == numbers[1]
    file.read(numbers[1], block)
    assert (block == 7).all() and (file.reads, file.writes) == (4, 6)
    assert list(tmp_path.iterdir()) == []
    file.close()


def test_a_file_cut_short_is_noticed(file: BlockFile) -> None:
    number = written(file, filled(1))
    os.ftruncate(file._file.fileno(), 4096)
    with pytest.raises(HotsetError, match="cannot be read: it ends after 4096 of 8192 bytes"):
        file.read(number, filled(0))


def test_parts_of_a_block_are_put_together(file: BlockFile, monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: write(fd, view[:4096], at))
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: read(fd, [views[0][:4096]], at))
    source = aligned_blocks(1, BYTES)[0]
    source[:] = np.arange(BYTES) % 251
    block = filled(0)
    file.read(written(file, source), block)
    np.testing.assert_array_equal(block, source)


def test_a_disk_without_room_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HotsetError, match="has no room for 80 KiB of rows: No space left") as caught:
        BlockFile(tmp_path, BYTES, 10)
    assert "--slow-dir" in str(caught.value.hint)


def test_a_disk_that_fills_up_later_is_one_line(file: BlockFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(HotsetError, match="cannot be written: No space left on device"):
        written(file, filled(1))


def test_a_file_system_without_direct_access_is_used_through_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    control = fcntl.fcntl

    def refusing(file: Any, command: int, flags: int = 0) -> int:
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return int(control(file, command, flags))

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    file = BlockFile(tmp_path, BYTES, 1)
    block = filled(0)
    file.read(written(file, filled(5)), block)
    assert not file.is_direct and (block == 5).all()


def test_aligned_blocks_begin_with_a_page() -> None:
    assert aligned_blocks(0, BYTES).shape == (0, BYTES)
    assert aligned_blocks(3, BYTES).ctypes.data % 4096 == 0
