"""Two runs are equal or differ in one thing, which the error names as the command line spells it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.run_identity import (
    RunIdentity,
    describe_difference,
    identity_of_manifest,
    identity_of_run,
    read_begun,
    refuse_other_config,
    starts_with,
)
from hotset.pipeline.sizes import MIB
from hotset.tests.support.json_records import AnyRecord

FOLDER = Path("DIR/columns")
LOGS = [{"name": f"day{number}", "bytes": 9 + number} for number in range(3)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a made-up stage."""

    block_bytes: int = 8 * MIB
    names: tuple[str, ...] = ("a", "b")
    is_strict: bool = True


def run_of(num_logs: int = 2, *, stage: str = "ingest", version: int = 1, **settings: object) -> RunIdentity:
    return identity_of_run(stage, version, Settings(**settings), LOGS[:num_logs])  # type: ignore[arg-type]


def seal(folder: Path) -> Manifest:
    output = Output.begin("ingest", 1, Settings(), LOGS[:2], folder)
    return output.seal(AnyRecord(samples=0))


def test_an_identity_is_what_the_manifest_gives_back(tmp_path: Path) -> None:
    assert identity_of_manifest(seal(tmp_path / "out")) == run_of()
    assert run_of()["config"] == {"block_bytes": 8 * MIB, "names": ["a", "b"], "is_strict": True}


def test_equal_runs_have_no_difference() -> None:
    assert describe_difference(FOLDER, run_of(), run_of()) is None


@pytest.mark.parametrize(
    ("found", "wanted", "message", "hint"),
    [
        (run_of(stage="count"), run_of(), "holds stage 'count', want 'ingest'", "--redo ingest"),
        (run_of(), run_of(is_strict=False), "is_strict = True, now False", "--redo ingest"),
        (run_of(), run_of(block_bytes=1000), "block_bytes = 8MiB, now 1000", "use another folder"),
        (run_of(), run_of(version=2), "another version of hotset", "--redo ingest"),
        (run_of(2), run_of(3), "first 2 of these 3 files", "--extend, which adds the 1 behind them"),
        (run_of(3), run_of(2), "other inputs: 3 of them, now 2", "--redo ingest"),
        (run_of(2, stage="x"), run_of(3, stage="x"), "other inputs: 2 of them, now 3", "--redo x"),
        (run_of(stage="map-ids"), run_of(1, stage="map-ids"), "2 of them, now 1", "--redo to write it again"),
    ],
)
def test_the_first_difference_is_named_with_a_way_out(
    found: RunIdentity, wanted: RunIdentity, message: str, hint: str
) -> None:
    error = describe_difference(FOLDER, found, wanted)
    assert error is not None and str(FOLDER) in str(error)
    assert message in str(error) and error.hint is not None and hint in error.hint


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "day1", "bytes": 99}, "day1 had 10 bytes, now 99"),
        ({"name": "other", "bytes": 10}, "day1, now other"),
        ({"name": "day1", "fingerprint": "ab"}, "another day1 than the present one"),
    ],
)
def test_the_input_that_differs_is_named(changed: dict[str, object], message: str) -> None:
    wanted = run_of()
    wanted["inputs"] = [LOGS[0], changed]
    assert message in str(describe_difference(FOLDER, run_of(), wanted))


def test_a_setting_that_an_older_version_did_not_have_counts_as_none() -> None:
    found = run_of()
    del found["config"]["is_strict"]
    assert "is_strict = none, now True" in str(describe_difference(FOLDER, found, run_of()))


@pytest.mark.parametrize(
    ("num_found", "num_wanted", "continues"), [(0, 1, True), (1, 3, True), (2, 2, False), (3, 1, False)]
)
def test_inputs_continue_others_only_with_more_behind_them(
    num_found: int, num_wanted: int, continues: bool
) -> None:
    assert starts_with(LOGS[:num_found], LOGS[:num_wanted]) is continues
    assert not starts_with(LOGS[1:2], LOGS)


def test_only_another_config_is_refused_where_inputs_may_differ(tmp_path: Path) -> None:
    sealed = seal(tmp_path / "out")
    refuse_other_config(sealed, "ingest", Settings())
    with pytest.raises(ManifestError, match="is_strict = True, now False"):
        refuse_other_config(sealed, "ingest", Settings(is_strict=False))
    with pytest.raises(ManifestError, match="holds stage 'ingest', want 'count'"):
        refuse_other_config(sealed, "count", Settings())


def test_half_a_record_of_the_begun_run_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "begun.json"
    path.write_text('{"stage": "ing')
    with pytest.raises(ManifestError, match=r"begun\.json is damaged") as caught:
        read_begun(path)
    assert caught.value.hint is not None and "remove it and write it again" in caught.value.hint
