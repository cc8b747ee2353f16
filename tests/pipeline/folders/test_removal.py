"""Folders are removed together or not at all, and a kill in between leaves marks that the next run obeys.

Tests `disk`, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.disk import empty_folder, remove_folders
from hotset.pipeline.folders.manifest import MANIFEST
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.partial import BEGUN, LOCK, PARTIAL, REMOVED
from hotset.pipeline.folders.resume import FolderState
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.processes.kills import Killed, killed, start_holder
from hotset.tests.support.shard_factory import PackConfig

NAMES = ("shards", "plan")


def make(root: Path, name: str) -> Path:
    """A sealed folder of one file."""
    output = Output.begin("pack", 1, PackConfig(batch_size=8), [], root / name)
    if output.sealed is None:
        with output.writing("a.arrow", 1) as path:
            path.write_bytes(name.encode())
        output.seal(AnyRecord(samples=1))
    return root / name


def test_folders_go_whether_finished_begun_or_strange(tmp_path: Path) -> None:
    sealed = make(tmp_path, "shards")
    begun = tmp_path / "plan"
    output = Output.begin("pack", 1, PackConfig(batch_size=8), [], begun)
    with output.writing("a.arrow", 1) as path:
        path.write_bytes(b"a")
    strange = tmp_path / "notes"
    strange.mkdir()
    (strange / "note").touch()
    remove_folders([sealed, begun, strange])
    assert list(tmp_path.iterdir()) == []


def test_killed_at_any_moment_a_new_run_ends_in_the_bytes_of_a_fresh_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tree_of(make(tmp_path, "fresh").parent)
    for after in range(1, 40):
        root = tmp_path / f"kill{after}"
        folders = [make(root, name) for name in NAMES]
        with killed(after, monkeypatch) as calls:
            try:
                remove_folders(folders)
            except Killed:
                pass
        # Never is the first folder whole while the one it was made from is marked or gone.
        states = [FolderState.read(folder) for folder in folders]
        assert states[0].sealed is None or states[1].sealed is not None
        for folder in folders:
            found = tree_of(make(root, folder.name))
            assert found.keys() == {name.removeprefix("fresh/") for name in wanted}
            assert found["a.arrow"] == folder.name.encode()
        if calls[0] < after:
            break
    else:
        pytest.fail("removing takes more changes than were tried")


def test_one_folder_in_use_refuses_the_removal_of_all(tmp_path: Path) -> None:
    folders = [make(tmp_path, name) for name in NAMES]
    (folders[1] / PARTIAL).mkdir()
    holder = start_holder(folders[1] / PARTIAL / LOCK)
    with pytest.raises(ManifestError, match=f"plan is being written by process {holder.pid}"):
        remove_folders(folders)
    assert all((folder / MANIFEST).exists() for folder in folders)
    holder.communicate("")
    remove_folders(folders)
    assert not any(folder.exists() for folder in folders)


def test_emptying_leaves_the_locks_and_no_mark(tmp_path: Path) -> None:
    partial = tmp_path / PARTIAL
    partial.mkdir()
    for name in (LOCK, REMOVED, BEGUN):
        (partial / name).touch()
    (tmp_path / "a.arrow").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path.parent)
    empty_folder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [PARTIAL]
    assert [path.name for path in partial.iterdir()] == [LOCK]
