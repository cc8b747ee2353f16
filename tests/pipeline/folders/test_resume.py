"""Every state of a folder and every wanted run have one decision, and reading a state finds what is there.

A reopened folder keeps what it was sealed with, whatever happens before it is sealed again.

Two runs are equal or differ in one thing, which the error names as the command line spells it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from hotset.pipeline.errors import MIB, ManifestError
from hotset.pipeline.folders.disk import BEGUN, LOCK, PARTIAL, REMOVED, WORKERS, FolderLock, remove_children
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.resume import (
    BEFORE,
    Continuation,
    Decision,
    FolderState,
    RunIdentity,
    check_config,
    check_same_run,
    decide,
    drop_added,
    go_back,
    identity_of_manifest,
    identity_of_run,
    read_before,
    read_begun,
    reopen,
    set_aside,
    starts_with,
)
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.criteo_text import tree_of
from hotset.tests.support.processes.kills import Killed, killed
from hotset.tests.support.shard_factory import PackConfig

FOLDER = Path("DIR/columns")
LOGS = [{"name": f"day{number}", "bytes": 9} for number in range(3)]
KEEPS = Continuation(starts_with, keeps_files=True, is_wanted=True)
SETS_ASIDE = replace(KEEPS, keeps_files=False)
UNWANTED = replace(KEEPS, is_wanted=False)
NEVER = replace(KEEPS, continues=lambda found, wanted: False)


def run_of(num_logs: int, *, level: int = 1, version: int = 1) -> RunIdentity:
    return RunIdentity(stage="ingest", version=version, config={"level": level}, inputs=LOGS[:num_logs])


TWO = run_of(2)
THREE = run_of(3)
OTHER = run_of(2, level=2)


@pytest.mark.parametrize(
    ("state", "wanted", "continuation", "decision"),
    [
        (FolderState(FOLDER, sealed=TWO), TWO, None, Decision.SEALED),
        (FolderState(FOLDER, sealed=TWO), TWO, KEEPS, Decision.SEALED),
        (FolderState(FOLDER, sealed=TWO), THREE, KEEPS, Decision.EXTEND_SEALED),
        (FolderState(FOLDER, sealed=TWO), THREE, SETS_ASIDE, Decision.EXTEND_SEALED),
        (FolderState(FOLDER, sealed=TWO), THREE, UNWANTED, "first 2 of these 3 files"),
        (FolderState(FOLDER, sealed=TWO), THREE, NEVER, "first 2 of these 3 files"),
        (FolderState(FOLDER, sealed=TWO), run_of(3, level=2), KEEPS, "level = 1, now 2"),
        (FolderState(FOLDER, sealed=TWO), run_of(2, version=2), KEEPS, "another version"),
        (FolderState(FOLDER, sealed=THREE), TWO, KEEPS, "3 of them, now 2"),
        (FolderState(FOLDER, is_foreign=True), TWO, KEEPS, "not empty"),
        (FolderState(FOLDER), TWO, None, Decision.FRESH),
        (FolderState(FOLDER, is_removed=True), OTHER, None, Decision.FRESH),
        (FolderState(FOLDER, begun=TWO), TWO, None, Decision.RESUME),
        (FolderState(FOLDER, begun=TWO), OTHER, None, "level = 1, now 2"),
        (FolderState(FOLDER, begun=TWO, is_empty=True), OTHER, None, Decision.FRESH),
        (FolderState(FOLDER, begun=TWO, is_empty=True), TWO, None, Decision.RESUME),
        (FolderState(FOLDER, begun=TWO, is_empty=True), THREE, KEEPS, Decision.EXTEND_BEGUN),
        (FolderState(FOLDER, begun=TWO), THREE, KEEPS, Decision.EXTEND_BEGUN),
        (FolderState(FOLDER, begun=TWO), THREE, SETS_ASIDE, "first 2 of these 3 files"),
        (FolderState(FOLDER, begun=TWO), THREE, UNWANTED, "first 2 of these 3 files"),
        (FolderState(FOLDER, begun=THREE, before=TWO), TWO, UNWANTED, Decision.GO_BACK),
        (FolderState(FOLDER, begun=THREE, before=TWO), THREE, UNWANTED, Decision.RESUME),
        (FolderState(FOLDER, begun=OTHER, before=TWO), THREE, KEEPS, Decision.EXTEND_BEFORE),
        (FolderState(FOLDER, begun=TWO, before=run_of(1)), THREE, KEEPS, Decision.EXTEND_BEGUN),
        (FolderState(FOLDER, begun=TWO, before=run_of(1)), THREE, SETS_ASIDE, Decision.EXTEND_BEFORE),
        (FolderState(FOLDER, begun=THREE, before=TWO), OTHER, KEEPS, "level = 1, now 2"),
        (FolderState(FOLDER, before=TWO), THREE, KEEPS, Decision.RESUME),
    ],
)
def test_a_state_and_a_run_have_one_decision(
    state: FolderState, wanted: RunIdentity, continuation: Continuation | None, decision: Decision | str
) -> None:
    if isinstance(decision, str):
        with pytest.raises(ManifestError, match=decision) as caught:
            decide(state, wanted, continuation)
        assert caught.value.hint
    else:
        assert decide(state, wanted, continuation) is decision


RUNS = [run_of(1), TWO, THREE, OTHER, run_of(2, version=2)]
STATES = [
    FolderState(FOLDER),
    FolderState(FOLDER, is_removed=True),
    FolderState(FOLDER, is_foreign=True),
    *(FolderState(FOLDER, sealed=run) for run in RUNS),
    *(FolderState(FOLDER, begun=run, is_empty=True) for run in RUNS),
    *(FolderState(FOLDER, begun=begun, before=before) for begun in RUNS for before in [None, *RUNS]),
]


@pytest.mark.parametrize("continuation", [None, KEEPS, SETS_ASIDE, UNWANTED])
def test_what_holds_of_every_state(continuation: Continuation | None) -> None:
    for state, wanted in product(STATES, RUNS):
        # Nothing of another run is overwritten, and a run that may write is never refused.
        try:
            decision = decide(state, wanted, continuation)
        except ManifestError:
            assert wanted not in (state.sealed, state.begun, state.before)
            continue
        if decision is Decision.FRESH:
            assert (state.begun is None or state.is_empty) and state.before is None
            assert not state.is_foreign
            continue
        # Files are only kept, as they are or to be extended, if a run like the wanted one wrote them.
        equal = {Decision.SEALED: state.sealed, Decision.RESUME: state.begun, Decision.GO_BACK: state.before}
        if decision in equal:
            assert equal[decision] == wanted
            continue
        assert continuation is not None and continuation.is_wanted
        found = {
            Decision.EXTEND_SEALED: state.sealed,
            Decision.EXTEND_BEGUN: state.begun,
            Decision.EXTEND_BEFORE: state.before,
        }[decision]
        assert found is not None and starts_with(found["inputs"], wanted["inputs"])
        assert found["config"] == wanted["config"] and found["version"] == wanted["version"]


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_the_state_of_an_unfinished_folder_is_read_from_its_marks(tmp_path: Path) -> None:
    assert FolderState.read(tmp_path / "none") == FolderState(tmp_path / "none")
    folder = tmp_path / "columns"
    write_json(folder / PARTIAL / "lock", "")
    assert FolderState.read(folder) == FolderState(folder)
    (folder / "note").touch()
    assert FolderState.read(folder) == FolderState(folder, is_foreign=True)
    assert not FolderState.read(folder).is_unfinished
    write_json(folder / PARTIAL / BEGUN, TWO)
    assert FolderState.read(folder) == FolderState(folder, begun=TWO)
    (folder / "note").unlink()
    assert FolderState.read(folder) == FolderState(folder, begun=TWO, is_empty=True)
    for mark, removed in (({}, None), (TWO, TWO)):
        write_json(folder / PARTIAL / REMOVED, mark)
        assert FolderState.read(folder) == FolderState(folder, is_removed=True, removed=removed)
    assert FolderState.read(folder).is_unfinished and not (folder / MANIFEST).exists()


NAMES = ("a.arrow", "b.arrow")


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
        go_back(folder)
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
    go_back(folder)
    assert {name: text for name, text in tree_of(folder).items() if not name.startswith(PARTIAL)} == wanted


def test_no_record_outlives_the_file_it_describes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reopen(folder, b"{}")
    (folder / "c.arrow").write_bytes(b"added")
    (folder / PARTIAL / "c.arrow.json").write_text("its record")
    with killed(2, monkeypatch), pytest.raises(Killed):
        drop_added(folder)
    assert not (folder / PARTIAL / "c.arrow.json").exists() and (folder / "c.arrow").exists()


def test_clearing_keeps_locks_and_what_is_named(folder: Path) -> None:
    partial = folder / PARTIAL
    (partial / "below").mkdir()
    (partial / "below" / "file").touch()
    (partial / BEGUN).touch()
    (partial / "link").symlink_to(folder)
    remove_children(partial, LOCK, WORKERS, BEGUN)
    assert sorted(path.name for path in partial.iterdir()) == sorted([LOCK, WORKERS, BEGUN])
    assert files_of(folder) >= set(NAMES)


def test_a_lock_survives_reopening(folder: Path) -> None:
    lock = FolderLock.take(folder / PARTIAL / LOCK, folder)
    reopen(folder, b"{}")
    assert (folder / PARTIAL / LOCK).stat().st_ino == lock.inode[1]
    lock.release()


SIZED_LOGS = [{"name": f"day{number}", "bytes": 9 + number} for number in range(3)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a made-up stage."""

    block_bytes: int = 8 * MIB
    names: tuple[str, ...] = ("a", "b")
    is_strict: bool = True


def ingest_of(
    num_logs: int = 2, *, stage: str = "ingest", version: int = 1, **settings: object
) -> RunIdentity:
    return identity_of_run(stage, version, Settings(**settings), SIZED_LOGS[:num_logs])  # type: ignore[arg-type]


def seal(folder: Path) -> Manifest:
    output = Output.begin("ingest", 1, Settings(), SIZED_LOGS[:2], folder)
    return output.seal(AnyRecord(samples=0))


def test_an_identity_is_what_the_manifest_gives_back(tmp_path: Path) -> None:
    assert identity_of_manifest(seal(tmp_path / "out")) == ingest_of()
    assert ingest_of()["config"] == {"block_bytes": 8 * MIB, "names": ["a", "b"], "is_strict": True}


def test_equal_runs_have_no_difference() -> None:
    check_same_run(FOLDER, ingest_of(), ingest_of())


@pytest.mark.parametrize(
    ("found", "wanted", "message", "hint"),
    [
        (ingest_of(stage="count"), ingest_of(), "holds stage 'count', want 'ingest'", "--redo ingest"),
        (ingest_of(), ingest_of(is_strict=False), "is_strict = True, now False", "--redo ingest"),
        (ingest_of(), ingest_of(block_bytes=1000), "block_bytes = 8MiB, now 1000", "use another folder"),
        (ingest_of(), ingest_of(version=2), "another version of hotset", "--redo ingest"),
        (ingest_of(2), ingest_of(3), "first 2 of these 3 files", "--extend, which adds the last 1 and"),
        (ingest_of(3), ingest_of(2), "other inputs: 3 of them, now 2", "--redo ingest"),
        (ingest_of(2, stage="x"), ingest_of(3, stage="x"), "other inputs: 2 of them, now 3", "--redo x"),
        (
            ingest_of(stage="map-ids"),
            ingest_of(1, stage="map-ids"),
            "2 of them, now 1",
            "--redo to write it again",
        ),
    ],
)
def test_the_first_difference_is_named_with_a_way_out(
    found: RunIdentity, wanted: RunIdentity, message: str, hint: str
) -> None:
    with pytest.raises(ManifestError, match=message) as caught:
        check_same_run(FOLDER, found, wanted)
    assert str(FOLDER) in str(caught.value) and caught.value.hint is not None and hint in caught.value.hint


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "day1", "bytes": 99}, "day1 had 10 bytes, now 99"),
        ({"name": "other", "bytes": 10}, "day1, now other"),
        ({"name": "day1", "fingerprint": "ab"}, "another day1 than the present one"),
    ],
)
def test_the_input_that_differs_is_named(changed: dict[str, object], message: str) -> None:
    wanted = ingest_of()
    wanted["inputs"] = [SIZED_LOGS[0], changed]
    with pytest.raises(ManifestError, match=message):
        check_same_run(FOLDER, ingest_of(), wanted)


def test_a_setting_that_an_older_version_did_not_have_counts_as_none() -> None:
    found = ingest_of()
    del found["config"]["is_strict"]
    with pytest.raises(ManifestError, match="is_strict = none, now True"):
        check_same_run(FOLDER, found, ingest_of())


@pytest.mark.parametrize(
    ("num_found", "num_wanted", "continues"), [(0, 1, True), (1, 3, True), (2, 2, False), (3, 1, False)]
)
def test_inputs_continue_others_only_with_more_behind_them(
    num_found: int, num_wanted: int, continues: bool
) -> None:
    assert starts_with(SIZED_LOGS[:num_found], SIZED_LOGS[:num_wanted]) is continues
    assert not starts_with(SIZED_LOGS[1:2], SIZED_LOGS)


def test_only_another_config_is_refused_where_inputs_may_differ(tmp_path: Path) -> None:
    sealed = seal(tmp_path / "out")
    check_config(sealed, "ingest", Settings())
    with pytest.raises(ManifestError, match="is_strict = True, now False"):
        check_config(sealed, "ingest", Settings(is_strict=False))
    with pytest.raises(ManifestError, match="holds stage 'ingest', want 'count'"):
        check_config(sealed, "count", Settings())


def test_half_a_record_of_the_begun_run_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "begun.json"
    path.write_text('{"stage": "ing')
    with pytest.raises(ManifestError, match=r"begun\.json is damaged") as caught:
        read_begun(path)
    assert caught.value.hint is not None and "remove it and write it again" in caught.value.hint
