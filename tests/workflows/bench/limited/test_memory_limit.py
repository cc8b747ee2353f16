"""Limits of memory by control groups: made, joined and removed, or absent where the system has none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.runtime.control_groups import ControlGroup
from hotset.pipeline.sizes import MIB
from hotset.workflows.bench.limited import memory_limit as module
from hotset.workflows.bench.limited.memory_limit import MemoryLimit, memory_limit


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_is_made_and_removed(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_places", lambda: iter([(version, tmp_path, "limit")]))
    # A plain folder is not removed by rmdir while it holds files; the files of a real group do not count.
    monkeypatch.setattr(module, "_remove", lambda folder: None)
    with memory_limit(64 * MIB) as limit:
        assert limit is not None and (limit.folder / "limit").read_text() == str(64 * MIB)
        limit.join()
        assert (limit.folder / "cgroup.procs").read_text().isdigit()
        assert limit.peak_bytes() is None
        name = "memory.max_usage_in_bytes" if version == 1 else "memory.peak"
        (limit.folder / name).write_text("123\n")
        assert limit.peak_bytes() == 123


def test_where_no_group_may_be_made_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_places", lambda: iter([(2, tmp_path / "missing", "memory.max")]))
    with memory_limit(MIB) as limit:
        assert limit is None


def test_a_group_without_a_limit_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_places", lambda: iter([(2, tmp_path, "no/memory.max")]))
    with memory_limit(MIB) as limit:
        assert limit is None
    assert list(tmp_path.iterdir()) == []


def test_places_are_the_groups_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [ControlGroup(Path("/own"), 1), ControlGroup(Path("/around"), 2)]
    monkeypatch.setattr(module, "control_groups", lambda controller: groups if controller == "memory" else [])
    assert list(module._places()) == [
        (1, Path("/own"), "memory.limit_in_bytes"),
        (2, Path("/around"), "memory.max"),
    ]


_TAKE = """
import sys
from pathlib import Path
from hotset.workflows.bench.limited.memory_limit import MemoryLimit
MemoryLimit(Path(sys.argv[1]), int(sys.argv[2])).join()
taken = bytearray(200 * 2**20)
"""


@pytest.mark.slow
def test_the_system_keeps_to_a_real_limit() -> None:
    with memory_limit(100 * MIB) as limit:
        if limit is None:
            pytest.skip("this system lets no control group be made")
        arguments: list[Any] = [sys.executable, "-c", _TAKE, str(limit.folder), str(limit.version)]
        assert subprocess.run(arguments, check=False).returncode < 0
        assert isinstance(limit, MemoryLimit)


_SEE = """
import sys
from pathlib import Path
from hotset.pipeline.runtime.memory import available_bytes, default_memory_bytes
from hotset.workflows.bench.limited.memory_limit import MemoryLimit
MemoryLimit(Path(sys.argv[1]), int(sys.argv[2])).join()
print(available_bytes(), default_memory_bytes())
"""


@pytest.mark.slow
def test_a_process_sees_the_real_limit_that_it_is_in() -> None:
    with memory_limit(320 * MIB) as limit:
        if limit is None:
            pytest.skip("this system lets no control group be made")
        arguments = [sys.executable, "-c", _SEE, str(limit.folder), str(limit.version)]
        ran = subprocess.run(arguments, check=True, capture_output=True, text=True)
        available, default = map(int, ran.stdout.split())
        assert 0 < available <= 320 * MIB and default == 80 * MIB
