"""The cores that a process may use: those of the machine, less what it is bound to and its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotset.pipeline.runtime.usable_cores import usable_cores
from hotset.tests.support.processes.made_up_groups import write_groups


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))


def a_process(tmp_path: Path, version: int, own: str, **files: str) -> Path:
    return write_groups(tmp_path / "process", tmp_path / "tree", own, version=version, **files)


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [("250000 100000", 3), ("100000 100000", 1), ("10 100000", 1), ("900000 100000", 6), ("max 100000", 6)],
)
def test_a_container_of_version_2_counts_in_whole_cores(tmp_path: Path, limit: str, wanted: int) -> None:
    assert usable_cores(a_process(tmp_path, 2, "/", cpu_of_max=f"{limit}\n")) == wanted


@pytest.mark.parametrize(("share", "wanted"), [("150000", 2), ("-1", 6)])
def test_a_container_of_version_1_does_too(tmp_path: Path, share: str, wanted: int) -> None:
    files = {"cpu_of_cfs_quota_us": f"{share}\n", "cpu_of_cfs_period_us": "100000\n"}
    assert usable_cores(a_process(tmp_path, 1, "/", **files)) == wanted


def test_the_least_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {"a__cpu_of_max": "200000 100000", "a__b__cpu_of_max": "400000 100000"}
    assert usable_cores(a_process(tmp_path, 2, "/a/b", **files)) == 2
    assert usable_cores(a_process(tmp_path, 2, "/", **files)) == 6


def test_files_that_say_nothing_set_no_limit(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "missing") == 6
    assert usable_cores(a_process(tmp_path, 2, "/", cpu_of_max="")) == 6
    assert usable_cores(a_process(tmp_path, 2, "/", cpu_of_max="100000 0")) == 6


def test_a_system_that_binds_no_process_has_all_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path) == 8


def test_this_machine_has_as_many_as_joblib_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    joblib = pytest.importorskip("joblib")
    monkeypatch.undo()
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    assert usable_cores() == joblib.cpu_count()
