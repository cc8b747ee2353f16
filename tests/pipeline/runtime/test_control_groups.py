"""The control groups of a process: found in both versions, as far out as a container sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.runtime.control_groups import ControlGroup, control_groups
from hotset.tests.support.processes.made_up_groups import write_groups


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("root", "own", "wanted"),
    [
        ("/", "/a/b", ["a/b", "a", ""]),
        ("/", "/", [""]),
        # A container that sees its own part of the host's tree, with the path on the host.
        ("/docker/c1", "/docker/c1/a", ["a", ""]),
        ("/docker/c1", "/docker/c1", [""]),
        # Groups that are not seen: the outermost one that is stands for them.
        ("/", "/docker/c1", [""]),
        ("/docker/c2", "/docker/c1/a", [""]),
        ("/", "/../sibling", [""]),
        ("/", "/a/../b", [""]),
    ],
)
def test_the_groups_around_a_process_are_found(
    version: int, root: str, own: str, wanted: list[str], tmp_path: Path
) -> None:
    tree = tmp_path / "a tree"
    (tree / "a" / "b").mkdir(parents=True)
    process = write_groups(tmp_path / "process", tree, own, version=version, root=root)
    assert control_groups("memory", process) == [ControlGroup(tree / path, version) for path in wanted]


def test_a_tree_of_other_controllers_says_nothing(tmp_path: Path) -> None:
    process = write_groups(tmp_path / "process", tmp_path / "tree", "/", version=1)
    assert control_groups("memory", process) and control_groups("cpu", process)
    assert control_groups("pids", process) == []


def test_of_two_versions_at_once_both_are_looked_at(tmp_path: Path) -> None:
    first = write_groups(tmp_path / "first", tmp_path / "tree", "/", version=1)
    second = write_groups(tmp_path / "second", tmp_path / "unified", "/", version=2)
    for name in ("mountinfo", "cgroup"):
        (first / name).write_text((first / name).read_text() + (second / name).read_text())
    found = control_groups("memory", first)
    assert [(group.folder.name, group.version) for group in found] == [("tree", 1), ("unified", 2)]


@pytest.mark.parametrize("name", ["mountinfo", "cgroup"])
@pytest.mark.parametrize("text", ["", "\n", "nonsense", "a - cgroup", ":", "35 31 0:32 / / - cgroup2"])
def test_what_no_system_says_means_no_group(name: str, text: str, tmp_path: Path) -> None:
    process = write_groups(tmp_path / "process", tmp_path / "tree", "/", version=2)
    (process / name).write_text(text)
    assert control_groups("memory", process) == []
    (process / name).unlink()
    assert control_groups("memory", process) == []


def test_files_of_a_group_are_read_as_far_as_there_are_any(tmp_path: Path) -> None:
    group = ControlGroup(tmp_path, 2)
    (tmp_path / "memory.stat").write_text("anon 5\nfile 7\nodd\nnone x\n")
    assert group.numbers("memory.stat") == {"anon": 5, "file": 7}
    assert group.read("memory.max") == "" and group.numbers("memory.max") == {}
