"""Room under a cap, and arrays that lie on disk where they have none."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError, ManifestError
from hotset.pipeline.folders.output import Output
from hotset.pipeline.runtime.memory import (
    FIXED_BYTES,
    anonymous_bytes,
    array_in,
    default_memory_bytes,
    give_back,
    room_for,
)
from hotset.pipeline.sizes import MIB


@dataclass(frozen=True)
class NoConfig:
    """Nothing to vary."""


def output_in(folder: Path) -> Output:
    output = Output.begin("count", 1, NoConfig(), [], folder)
    assert isinstance(output, Output)
    return output


def test_the_room_is_what_the_process_leaves_of_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    assert room_for("count", FIXED_BYTES + 50 * MIB, 8 * MIB) == 50 * MIB
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: FIXED_BYTES)
    assert room_for("count", FIXED_BYTES + 50 * MIB, 8 * MIB) == 18 * MIB
    assert room_for("count", FIXED_BYTES + 50 * MIB, 40 * MIB) == 40 * MIB
    assert room_for("count", None, 1) == default_memory_bytes() - FIXED_BYTES - 32 * MIB


def test_a_cap_given_is_refused_where_it_cannot_be_kept_and_the_default_never_is() -> None:
    with pytest.raises(ConfigError, match="pack cannot keep within 170 MiB of memory") as caught:
        room_for("pack", 170 * MIB, 10 * MIB + 1)
    assert caught.value.hint == "--memory 171MiB would do; fewer --workers need less"
    room_for("pack", 171 * MIB, 10 * MIB + 1)
    assert room_for("pack", None, 1 << 50) == 1 << 50


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
    with pytest.raises(
        ManifestError, match="has no room for what does not fit in memory: No space left"
    ) as caught:
        array_in(0, output, (10,), np.int64)
    assert "--memory" in str(caught.value.hint)
