"""The state of each stage before a run, from folders of made-up stages, and nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hotset.pipeline.folders.discard import discard_files
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output, input_of
from hotset.pipeline.preview.run_states import (
    AGAIN,
    DEPENDS,
    FINISHED,
    MADE,
    NOT_REACHED,
    REFUSED,
    RESUMES,
    StageRun,
    StageState,
    stage_states,
)
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.logs.criteo_text import tree_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a made-up stage."""

    level: int = 1


LOGS = ({"name": "day0", "bytes": 9}, {"name": "day1", "bytes": 9})
RUNS = [
    StageRun("ingest", "ingest", 1, Settings(), (), LOGS[:1]),
    StageRun("rank", "rank", 1, Settings(), ("columns",)),
    StageRun("encode", "encode", 1, Settings(), ("columns", "vocabulary")),
]
FOLDER_OF = {"ingest": "columns", "rank": "vocabulary", "encode": "samples"}


def begin(out: Path, run: StageRun) -> Output:
    inputs = [input_of(Manifest.read(out / name)) for name in run.inputs] + list(run.others)
    return Output.begin(run.made_by, run.version, run.config, inputs, out / FOLDER_OF[run.stage])


def seal(out: Path, *runs: StageRun) -> None:
    """Write the folders of some stages, one file each."""
    for run in runs:
        output = begin(out, run)
        with output.writing("a.arrow", 1) as path:
            path.write_bytes(run.stage.encode())
        output.seal(AnyRecord(samples=1))


def states_of(out: Path, runs: list[StageRun], **options: object) -> list[str]:
    return [state.state for state in stage_states(out, runs, **options)]  # type: ignore[arg-type]


def with_level(level: int, *stages: str) -> list[StageRun]:
    return [replace(run, config=Settings(level=level)) if run.stage in stages else run for run in RUNS]


def test_a_folder_that_does_not_exist_will_be_built(tmp_path: Path) -> None:
    assert states_of(tmp_path / "none", RUNS) == [MADE] * 3
    assert not (tmp_path / "none").exists()


def test_equal_runs_are_finished_and_nothing_is_written(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    before = tree_of(tmp_path)
    assert states_of(tmp_path, RUNS) == [FINISHED] * 3
    assert tree_of(tmp_path) == before


def test_an_interrupted_stage_resumes_and_those_behind_it_are_built(tmp_path: Path) -> None:
    seal(tmp_path, RUNS[0])
    output = begin(tmp_path, RUNS[1])
    # Begun without a finished file, it is not resumed but built from the start.
    begun = stage_states(tmp_path, RUNS)[1]
    assert (begun.state, begun.why) == (MADE, "was interrupted")
    with output.writing("a.arrow", 1) as path:
        path.write_bytes(b"a")
    resumes = stage_states(tmp_path, RUNS)[1]
    assert (resumes.state, resumes.why) == (RESUMES, "files done: 1")
    assert states_of(tmp_path, RUNS) == [FINISHED, RESUMES, MADE]


def test_other_settings_are_refused_and_nothing_behind_is_reached(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    states = stage_states(tmp_path, with_level(2, "rank"))
    assert [state.state for state in states] == [FINISHED, REFUSED, NOT_REACHED]
    assert "level = 1, now 2" in states[1].why
    assert states[1].hint is not None and "--redo rank" in states[1].hint


def test_stages_that_are_redone_are_rebuilt_whatever_their_settings(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    assert states_of(tmp_path, with_level(2, "rank"), redo="rank") == [FINISHED, AGAIN, AGAIN]
    assert states_of(tmp_path, RUNS, redo="ingest") == [AGAIN] * 3
    assert states_of(tmp_path / "none", RUNS, redo="ingest") == [MADE] * 3


def test_behind_a_stage_that_changes_a_sealed_folder_depends_on_the_outcome(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    columns = Manifest.read(tmp_path / "columns").folder
    for path in columns.iterdir():
        path.unlink()
    columns.rmdir()
    assert states_of(tmp_path, RUNS) == [MADE, DEPENDS, DEPENDS]
    # Even then another setting is known to be refused.
    assert states_of(tmp_path, with_level(2, "rank")) == [MADE, REFUSED, NOT_REACHED]


def test_discarded_inputs_refuse_only_stages_that_have_work_to_do(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    discard_files(tmp_path / "columns")
    assert states_of(tmp_path, RUNS) == [FINISHED] * 3
    states = stage_states(tmp_path, RUNS, redo="encode")
    assert [state.state for state in states] == [FINISHED, FINISHED, REFUSED]
    assert "columns was discarded" in states[2].why and "--redo ingest" in str(states[2].hint)


def test_a_missing_file_is_refused_before_a_run_would_meet_it(tmp_path: Path) -> None:
    seal(tmp_path, *RUNS)
    (tmp_path / "vocabulary" / "a.arrow").unlink()
    state = stage_states(tmp_path, RUNS)[1]
    assert state.state == REFUSED and "a.arrow cannot be read" in state.why


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "columns").mkdir()
    (tmp_path / "columns" / "note").touch()
    assert stage_states(tmp_path, RUNS[:1]) == [
        StageState(
            "ingest",
            tmp_path / "columns",
            REFUSED,
            f"{tmp_path / 'columns'} is not empty and was not begun by this stage",
            "use another folder, or remove this one",
        )
    ]


@pytest.mark.parametrize("is_begun", [False, True])
def test_an_extension_rebuilds_what_was_made_from_fewer_logs(tmp_path: Path, is_begun: bool) -> None:
    seal(tmp_path, *RUNS[:2])
    if is_begun:
        begin(tmp_path, RUNS[2])
    else:
        seal(tmp_path, RUNS[2])
    longer = [replace(RUNS[0], others=LOGS), *RUNS[1:]]
    states = stage_states(tmp_path, longer, extend=True)
    assert [state.state for state in states[1:]] == [AGAIN, AGAIN]
    assert states[0].why == "1 new of 2 logs"
    assert states[2].why == ("begun" if is_begun else "made") + " from fewer logs"
    # Without --extend the longer log is refused, with the option in the hint.
    refused = stage_states(tmp_path, longer)[0]
    assert refused.state == REFUSED and "--extend, which adds the 1" in str(refused.hint)
