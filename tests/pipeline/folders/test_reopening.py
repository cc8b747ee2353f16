"""A reopened folder keeps what it was sealed with, whatever happens before it is sealed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotset.pipeline.folders.folder_lock import FolderLock
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.partial_folder import BEGUN, LOCK, PARTIAL, WORKERS
from hotset.pipeline.folders.reopening import (
    BEFORE,
    Continuation,
    clear_partial,
    drop_added,
    go_back,
    read_before,
    reopen,
    set_aside,
)
from hotset.pipeline.folders.run_identity import RunIdentity, starts_with
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.processes.kills import Killed, killed
from hotset.tests.support.shard_factory import PackConfig

LOGS = [{"name": f"day{number}", "bytes": 9} for number in range(3)]
NAMES = ("a.arrow", "b.arrow")
KEEPS = Continuation(starts_with, keeps_files=True, is_wanted=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two files, sealed, with the lock that a run holds before it reopens it."""
    out = tmp_path / "out"
    output = Output.begin("pack", 1, PackConfig(batch_size=8), LOGS[:1], out)
    for name in NAMES:
        with output.writing(name, 1) as path:
            path.write_bytes(name.encode())
    output.seal(AnyRecord(samples=2))
    (out / PARTIAL).mkdir()
    (out / PARTIAL / LOCK).touch()
    (out / PARTIAL / WORKERS).touch()
    return out


def files_of(folder: Path) -> set[str]:
    return {name for name in tree_of(folder) if not name.endswith((LOCK, WORKERS))}


def test_reopening_moves_the_manifest_and_nothing_else(folder: Path) -> None:
    (folder / PARTIAL / "a.arrow.json").write_text("left by an earlier run")
    sealed = Manifest.read(folder)
    reopen(folder, b"{}")
    assert files_of(folder) == {*NAMES, f"{PARTIAL}/{BEGUN}", f"{PARTIAL}/{BEFORE}"}
    before = read_before(folder)
    assert before is not None and before.fingerprint == sealed.fingerprint


def test_a_folder_that_was_not_reopened_has_no_before(folder: Path) -> None:
    assert read_before(folder) is None


@pytest.mark.parametrize("after", range(1, 6))
def test_killed_while_reopening_the_folder_is_sealed_as_it_was_or_reopened(
    folder: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / PARTIAL / "left.json").touch()
    wanted = {name: text for name, text in tree_of(folder).items() if not name.startswith(PARTIAL)}
    with killed(after, monkeypatch) as calls:
        try:
            reopen(folder, b"{}")
        except Killed:
            assert calls[0] == after
    if (folder / MANIFEST).exists():
        assert {name: (folder / name).read_bytes() for name in wanted} == wanted
    else:
        before = read_before(folder)
        assert before is not None
        go_back(folder, before)
        assert {name: (folder / name).read_bytes() for name in wanted} == wanted


@pytest.mark.parametrize("after", range(1, 4))
def test_files_are_set_aside_once_however_often_the_run_is_killed(
    folder: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reopen(folder, b"{}")
    before = read_before(folder)
    assert before is not None
    with killed(after, monkeypatch):
        try:
            set_aside(folder, before, lambda name: False)
        except Killed:
            pass
    # The run wrote one of the names again before it was resumed: that one is its own.
    (folder / "a.arrow").write_bytes(b"new")
    set_aside(folder, before, lambda name: name == "a.arrow")
    assert (folder / "a.arrow").read_bytes() == b"new"
    assert (before.folder / "b.arrow").read_bytes() == b"b.arrow"
    assert not (folder / "b.arrow").exists()


@pytest.mark.parametrize("is_aside", [False, True])
def test_going_back_seals_the_same_bytes_and_drops_what_was_added(folder: Path, is_aside: bool) -> None:
    wanted = {name: text for name, text in tree_of(folder).items() if not name.startswith(PARTIAL)}
    reopen(folder, b"{}")
    before = read_before(folder)
    assert before is not None
    if is_aside:
        set_aside(folder, before, lambda name: False)
    (folder / "c.arrow").write_bytes(b"added")
    (folder / PARTIAL / "c.arrow.json").write_text("its record")
    go_back(folder, before)
    assert {name: text for name, text in tree_of(folder).items() if not name.startswith(PARTIAL)} == wanted


def test_no_record_outlives_the_file_it_describes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reopen(folder, b"{}")
    before = read_before(folder)
    assert before is not None
    (folder / "c.arrow").write_bytes(b"added")
    (folder / PARTIAL / "c.arrow.json").write_text("its record")
    with killed(2, monkeypatch), pytest.raises(Killed):
        drop_added(folder, before)
    assert not (folder / PARTIAL / "c.arrow.json").exists() and (folder / "c.arrow").exists()


def test_clearing_keeps_locks_and_what_is_named(folder: Path) -> None:
    partial = folder / PARTIAL
    (partial / "below").mkdir()
    (partial / "below" / "file").touch()
    (partial / BEGUN).touch()
    (partial / "link").symlink_to(folder)
    clear_partial(folder, BEGUN)
    assert sorted(path.name for path in partial.iterdir()) == sorted([LOCK, WORKERS, BEGUN])
    assert files_of(folder) >= set(NAMES)


def identity_of(num_logs: int, *, version: int = 1, level: int = 1) -> RunIdentity:
    return RunIdentity(stage="pack", version=version, config={"level": level}, inputs=LOGS[:num_logs])


@pytest.mark.parametrize(
    ("wanted", "continuation", "may"),
    [
        (identity_of(3), KEEPS, True),
        (identity_of(2), KEEPS, False),
        (identity_of(1), KEEPS, False),
        (identity_of(3, version=2), KEEPS, False),
        (identity_of(3, level=2), KEEPS, False),
        (identity_of(3), replace(KEEPS, is_wanted=False), False),
        (identity_of(3), replace(KEEPS, continues=lambda found, wanted: False), False),
    ],
)
def test_a_run_continues_if_only_its_inputs_differ_and_it_wants_to(
    wanted: RunIdentity, continuation: Continuation, may: bool
) -> None:
    assert continuation.may_continue(identity_of(2), wanted) is may


def test_a_lock_survives_reopening(folder: Path) -> None:
    lock = FolderLock.take(folder / PARTIAL / LOCK, folder)
    reopen(folder, b"{}")
    assert (folder / PARTIAL / LOCK).stat().st_ino == lock.inode[1]
    lock.release()
