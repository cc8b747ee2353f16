"""Arrays in nameless files: zeros, and arrays appended and mapped."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.errors import HotsetError
from hotset.train.spill.mapped_arrays import SpooledArrays, mapped_zeros


@pytest.mark.parametrize("count", [0, 1, 5000])
@pytest.mark.parametrize("room", [0, 1 << 20])
def test_mapped_zeros_may_be_written(count: int, room: int, tmp_path: Path) -> None:
    zeros = mapped_zeros(tmp_path, count, np.int32, room)
    assert zeros.shape == (count,) and not zeros.any()
    zeros[:] = 7
    assert (zeros == 7).all() and zeros.dtype == np.int32 and list(tmp_path.iterdir()) == []


def test_spooled_arrays_come_back_in_order(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays: list[NDArray[Any]] = [
        rng.integers(0, 9, 17),
        np.empty(0, np.float32),
        rng.random(1000) < 0.5,
        rng.integers(0, 9, 3).astype(np.int32),
        rng.integers(0, 100, 20)[::3],
    ]
    spooled = SpooledArrays(tmp_path)
    for array in arrays:
        spooled.append(array)
    found = spooled.map()
    for array, mapped in zip(arrays, found, strict=True):
        assert mapped.dtype == array.dtype
        np.testing.assert_array_equal(mapped, array)
    assert list(tmp_path.iterdir()) == []


def test_nothing_spooled_is_nothing(tmp_path: Path) -> None:
    spooled = SpooledArrays(tmp_path)
    spooled.append(np.empty(0, np.int64))
    assert [array.size for array in spooled.map()] == [0]


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HotsetError, match="no room for 40 B of step plans: No space left"):
        mapped_zeros(tmp_path, 10, np.int32)


def test_a_file_cut_short_is_noticed(tmp_path: Path) -> None:
    spooled = SpooledArrays(tmp_path)
    spooled.append(np.arange(100_000))
    os.ftruncate(spooled._file.fileno(), 10)
    with pytest.raises(HotsetError, match="does not keep 800000 bytes"):
        spooled.map()
