"""A limit of addresses is told in a line before libraries end the process at it.

The control groups of a process: found in both versions, as far out as a container sees.

The cores that a process may use: those of the machine, less what it is bound to and its container.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.pipeline.errors import MIB, SystemFaultError
from hotset.pipeline.runtime import limits as module
from hotset.pipeline.runtime.limits import (
    ControlGroup,
    addresses_left,
    check_addresses,
    control_groups,
    lost_library,
    numbers_in,
    usable_cores,
)
from hotset.tests.support.processes.made_up_groups import write_groups


@pytest.fixture(autouse=True)
def _two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cores", lambda: 2)


def limit(monkeypatch: pytest.MonkeyPatch, most: int, taken: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    monkeypatch.setattr(module, "_addresses_taken", lambda: taken)


def test_without_a_limit_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, resource.RLIM_INFINITY, 1 << 50)
    assert addresses_left() is None and lost_library("hotset stats", OSError("lost")) is None
    check_addresses("hotset stats")


@pytest.mark.parametrize(("taken", "left"), [(0, 700 * MIB), (500 * MIB, 200 * MIB), (900 * MIB, 0)])
def test_what_is_left_is_what_is_not_taken(taken: int, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 700 * MIB, taken)
    assert addresses_left() == left


def test_the_limit_in_the_hint_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 600 * MIB, 490 * MIB)
    with pytest.raises(SystemFaultError) as caught:
        check_addresses("hotset verify")
    assert str(caught.value) == (
        "hotset verify: `ulimit -v` leaves 110 MiB of addresses next to the libraries, want 192 MiB"
    )
    assert caught.value.hint == "raise the limit: `ulimit -v 714752`"
    limit(monkeypatch, 714752 * 1024, 490 * MIB)
    check_addresses("hotset verify")
    with pytest.raises(SystemFaultError):
        check_addresses("training", more_bytes=32 * MIB)


def test_more_cores_want_more(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 700 * MIB, 490 * MIB)
    check_addresses("hotset verify")
    monkeypatch.setattr(module, "usable_cores", lambda: 4)
    with pytest.raises(SystemFaultError, match="want 224 MiB"):
        check_addresses("hotset verify")


def test_a_library_is_lost_to_the_limit_only_where_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 1000 * MIB, 100 * MIB)
    assert lost_library("hotset stats", OSError("lost")) is None
    limit(monkeypatch, 400 * MIB, 311 * MIB)
    fault = lost_library("hotset stats", OSError("libx.so is lost\nand more"))
    assert str(fault) == "hotset stats: a library cannot be loaded with 89 MiB of addresses: libx.so is lost"


def test_this_process_has_addresses() -> None:
    assert module._addresses_taken() > 10 * MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "mebibytes"),
    [("verify", 200), ("verify", 400), *(("train", limit) for limit in (400, 560, 620, 1000, 1350, 1550))],
)
def test_every_limit_leads_to_a_line_or_to_the_end(command: str, mebibytes: int, tmp_path: Path) -> None:
    arguments = [command, str(tmp_path), *(["--out", str(tmp_path / "run")] if command == "train" else [])]
    line = f"ulimit -v {mebibytes * 1024}; exec {sys.executable} -m hotset {' '.join(arguments)}"
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=os.environ, check=False)
    # The folder is empty, so that what has room enough ends with a line, too.
    assert ran.returncode == 1 and "Traceback" not in ran.stderr
    assert sum(each.startswith("error: ") for each in ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(("version", "tree"), [(1, "sys/fs/cgroup/memory"), (2, "sys/fs/cgroup")])
@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ("/a/b", ["a/b", "a", ""]),
        ("/", [""]),
        # A container that sees its own part of the host's tree, with the path on the host.
        ("/docker/c1/a", ["a", ""]),
        # Groups that are not seen: the outermost one that is stands for them.
        ("/docker/c1", [""]),
        ("/../sibling", [""]),
        ("/a/../b", [""]),
    ],
)
def test_the_groups_around_a_process_are_found(
    version: int, tree: str, own: str, wanted: list[str], tmp_path: Path
) -> None:
    write_groups(tmp_path, own, version=version)
    (tmp_path / tree / "a" / "b").mkdir(parents=True)
    assert control_groups("memory", tmp_path) == [
        ControlGroup(tmp_path / tree / path, version) for path in wanted
    ]


def test_a_tree_of_other_controllers_says_nothing(tmp_path: Path) -> None:
    write_groups(tmp_path, "/", version=1)
    assert control_groups("memory", tmp_path) and control_groups("cpu", tmp_path)
    assert control_groups("pids", tmp_path) == []


def test_of_two_versions_at_once_both_are_looked_at(tmp_path: Path) -> None:
    write_groups(tmp_path, "/", version=1)
    (tmp_path / "sys/fs/cgroup/unified").mkdir()
    with (tmp_path / "proc/self/cgroup").open("a") as file:
        file.write("0::/\n")
    found = control_groups("memory", tmp_path)
    assert [(group.folder.name, group.version) for group in found] == [("memory", 1), ("unified", 2)]


@pytest.mark.parametrize("text", ["", "\n", "nonsense", "a - cgroup", ":"])
def test_what_no_system_says_means_no_group(text: str, tmp_path: Path) -> None:
    assert control_groups("memory", tmp_path) == []
    write_groups(tmp_path, "/", version=2)
    (tmp_path / "proc/self/cgroup").write_text(text)
    assert control_groups("memory", tmp_path) == []


def test_files_of_a_group_are_read_as_far_as_there_are_any(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path, 2)
    (tmp_path / "memory.stat").write_text("anon 5\nfile 7\nodd\nnone x\n")
    assert numbers_in(tmp_path / "memory.stat") == {"anon": 5, "file": 7}
    assert group.read("memory.max") == "" and numbers_in(tmp_path / "memory.max") == {}


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(6)))


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [("250000 100000", 3), ("100000 100000", 1), ("10 100000", 1), ("900000 100000", 6), ("max 100000", 6)],
)
def test_a_container_of_version_2_counts_in_whole_cores(tmp_path: Path, limit: str, wanted: int) -> None:
    assert usable_cores(write_groups(tmp_path, "/", version=2, cpu_of_max=f"{limit}\n")) == wanted


@pytest.mark.parametrize(("share", "wanted"), [("150000", 2), ("-1", 6)])
def test_a_container_of_version_1_does_too(tmp_path: Path, share: str, wanted: int) -> None:
    files = {"cpu_of_cfs_quota_us": f"{share}\n", "cpu_of_cfs_period_us": "100000\n"}
    assert usable_cores(write_groups(tmp_path, "/", version=1, **files)) == wanted


def test_the_least_of_nested_groups_counts(tmp_path: Path) -> None:
    files = {"a__cpu_of_max": "200000 100000", "a__b__cpu_of_max": "400000 100000"}
    assert usable_cores(write_groups(tmp_path, "/a/b", version=2, **files)) == 2
    assert usable_cores(write_groups(tmp_path, "/", version=2, **files)) == 6


def test_files_that_say_nothing_set_no_limit(tmp_path: Path) -> None:
    assert usable_cores(tmp_path / "missing") == 6
    assert usable_cores(write_groups(tmp_path, "/", version=2, cpu_of_max="")) == 6
    assert usable_cores(write_groups(tmp_path, "/", version=2, cpu_of_max="100000 0")) == 6


def test_a_system_that_binds_no_process_has_all_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path) == 8
