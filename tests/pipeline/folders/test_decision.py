"""Every state of a folder and every wanted run have one decision, and reading a state finds what is there."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from hotset.pipeline.folders.decision import (
    Decision,
    Extend,
    ExtendFrom,
    FolderState,
    Fresh,
    GoBack,
    Refused,
    Resume,
    Sealed,
    decide,
)
from hotset.pipeline.folders.manifest import MANIFEST
from hotset.pipeline.folders.partial_folder import BEGUN, PARTIAL, REMOVED
from hotset.pipeline.folders.reopening import Continuation
from hotset.pipeline.folders.run_identity import RunIdentity, starts_with

FOLDER = Path("DIR/columns")
LOGS = [{"name": f"day{number}", "bytes": 9} for number in range(3)]
KEEPS = Continuation(starts_with, keeps_files=True, is_wanted=True)
SETS_ASIDE = replace(KEEPS, keeps_files=False)
UNWANTED = replace(KEEPS, is_wanted=False)


def run_of(num_logs: int, *, level: int = 1, version: int = 1) -> RunIdentity:
    return RunIdentity(stage="ingest", version=version, config={"level": level}, inputs=LOGS[:num_logs])


TWO = run_of(2)
THREE = run_of(3)
OTHER = run_of(2, level=2)


@pytest.mark.parametrize(
    ("state", "wanted", "continuation", "decision"),
    [
        (FolderState(FOLDER, sealed=TWO), TWO, None, Sealed()),
        (FolderState(FOLDER, sealed=TWO), TWO, KEEPS, Sealed()),
        (FolderState(FOLDER, sealed=TWO), THREE, KEEPS, Extend(ExtendFrom.SEALED)),
        (FolderState(FOLDER, sealed=TWO), THREE, SETS_ASIDE, Extend(ExtendFrom.SEALED)),
        (FolderState(FOLDER, sealed=TWO), THREE, UNWANTED, "first 2 of these 3 files"),
        (FolderState(FOLDER, sealed=TWO), run_of(3, level=2), KEEPS, "level = 1, now 2"),
        (FolderState(FOLDER, sealed=TWO), run_of(2, version=2), KEEPS, "another version"),
        (FolderState(FOLDER, sealed=THREE), TWO, KEEPS, "3 of them, now 2"),
        (FolderState(FOLDER, is_foreign=True), TWO, KEEPS, "not empty"),
        (FolderState(FOLDER), TWO, None, Fresh()),
        (FolderState(FOLDER, is_removed=True), OTHER, None, Fresh()),
        (FolderState(FOLDER, begun=TWO), TWO, None, Resume()),
        (FolderState(FOLDER, begun=TWO), OTHER, None, "level = 1, now 2"),
        (FolderState(FOLDER, begun=TWO, is_empty=True), OTHER, None, Fresh()),
        (FolderState(FOLDER, begun=TWO, is_empty=True), TWO, None, Resume()),
        (FolderState(FOLDER, begun=TWO, is_empty=True), THREE, KEEPS, Extend(ExtendFrom.BEGUN)),
        (FolderState(FOLDER, begun=TWO), THREE, KEEPS, Extend(ExtendFrom.BEGUN)),
        (FolderState(FOLDER, begun=TWO), THREE, SETS_ASIDE, "first 2 of these 3 files"),
        (FolderState(FOLDER, begun=TWO), THREE, UNWANTED, "first 2 of these 3 files"),
        (FolderState(FOLDER, begun=THREE, before=TWO), TWO, UNWANTED, GoBack()),
        (FolderState(FOLDER, begun=THREE, before=TWO), THREE, UNWANTED, Resume()),
        (FolderState(FOLDER, begun=OTHER, before=TWO), THREE, KEEPS, Extend(ExtendFrom.BEFORE)),
        (FolderState(FOLDER, begun=TWO, before=run_of(1)), THREE, KEEPS, Extend(ExtendFrom.BEGUN)),
        (FolderState(FOLDER, begun=TWO, before=run_of(1)), THREE, SETS_ASIDE, Extend(ExtendFrom.BEFORE)),
        (FolderState(FOLDER, begun=THREE, before=TWO), OTHER, KEEPS, "level = 1, now 2"),
        (FolderState(FOLDER, before=TWO), THREE, KEEPS, Resume()),
    ],
)
def test_a_state_and_a_run_have_one_decision(
    state: FolderState, wanted: RunIdentity, continuation: Continuation | None, decision: Decision | str
) -> None:
    found = decide(state, wanted, continuation)
    if isinstance(decision, str):
        assert isinstance(found, Refused) and decision in str(found.error) and found.error.hint
    else:
        assert found == decision


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
        decision = decide(state, wanted, continuation)
        # Files are only kept, as they are or to be extended, if a run like the wanted one wrote them.
        if isinstance(decision, Sealed):
            assert state.sealed == wanted
        if isinstance(decision, Resume):
            assert state.begun == wanted
        if isinstance(decision, GoBack):
            assert state.before == wanted
        if isinstance(decision, Extend):
            assert continuation is not None and continuation.is_wanted
            found = {
                ExtendFrom.SEALED: state.sealed,
                ExtendFrom.BEGUN: state.begun,
                ExtendFrom.BEFORE: state.before,
            }[decision.source]
            assert found is not None and starts_with(found["inputs"], wanted["inputs"])
            assert found["config"] == wanted["config"] and found["version"] == wanted["version"]
        # Nothing of another run is overwritten, and a run that may write is never refused.
        if isinstance(decision, Fresh):
            assert (state.begun is None or state.is_empty) and state.before is None
            assert not state.is_foreign
        if isinstance(decision, Refused):
            assert wanted not in (state.sealed, state.begun, state.before)


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
    write_json(folder / PARTIAL / REMOVED, {})
    assert FolderState.read(folder) == FolderState(folder, is_removed=True)
    assert FolderState.read(folder).is_unfinished and not (folder / MANIFEST).exists()
