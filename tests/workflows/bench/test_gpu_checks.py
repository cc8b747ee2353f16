"""Checks of a GPU day name what is broken: a device call, a kernel, a test that needs a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.late_runs import keep_slow
from hotset.train.device import LateDevice, StreamName
from hotset.workflows.bench import gpu_checks
from hotset.workflows.bench.gpu_day import PartSettings, Records


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def checks_of_verbs(folder: Path) -> dict[str, bool]:
    found = folder / "verbs.jsonl"
    found.unlink(missing_ok=True)
    gpu_checks.try_verbs(PartSettings("late:3", folder, True), Records(found, 60))
    return {record["check"]["name"]: record["check"]["is_right"] for record in records_of(found)}


@pytest.mark.parametrize(
    ("verb", "slow", "name"),
    [
        ("wait", "copies", "pinned memory is copied up and down"),
        ("wait", "compute", "a stream waits for the event of another"),
        ("capture", "moves", "work of moves is recorded and replayed"),
        ("capture", "compute", "work of compute is recorded and replayed"),
        ("pin", "moves", "kernels read and write pinned rows of the host"),
        ("close", "moves", "the device is closed"),
    ],
)
def test_a_verb_that_does_not_do_its_work_is_named(
    verb: str, slow: StreamName, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_slow(monkeypatch, slow)
    right = checks_of_verbs(tmp_path)
    assert len(right) == 7 and all(right.values())

    def refuse(*_: object) -> None:
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(LateDevice, verb, refuse if verb == "close" else lambda *_: None)
    found = checks_of_verbs(tmp_path)
    assert found.keys() == right.keys() and not found[name]


def test_pieces_and_parts_share_the_samples_of_a_size(tmp_path: Path) -> None:
    settings = PartSettings("late", tmp_path, True)
    samples = gpu_checks.drawn_samples(settings)
    first, second = (gpu_checks.packed_shards(settings, samples, 64, 16) for _ in range(2))
    assert first.manifest.folder == second.manifest.folder and second.num_training_samples > 0


_TESTS = """
import time
import pytest

def test_passes(): pass
def test_fails(): assert 1 == 2, "as it should"
@pytest.mark.skipif(True, reason="no GPU")
def test_is_skipped(): pass
@pytest.fixture
def broken():
    yield
    raise ZeroDivisionError("a kernel")
def test_ends_badly(broken): pass
def test_is_slow(): time.sleep(SECONDS)
def test_is_left_out(): pass
"""
_RUN = """
import sys, pytest
from pathlib import Path
from hotset.workflows.bench.gpu_checks import CheckWriter
from hotset.workflows.bench.gpu_day import Records
folder = Path(sys.argv[1])
records = Records(folder / "records", float(sys.argv[2]), sys.argv[3:])
options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", str(folder)]
pytest.main([*options, str(folder)], plugins=[CheckWriter(records)])
"""


def run(folder: Path, seconds: float, *done: str) -> list[dict[str, Any]]:
    (folder / "records").unlink(missing_ok=True)
    command = [sys.executable, "-c", _RUN, str(folder), str(seconds), *done]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    return records_of(folder / "records")


@pytest.mark.slow
def test_a_run_without_time_has_the_checks_of_the_tests_before(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(_TESTS.replace("SECONDS", "6"))
    (tmp_path / "test_that_cannot_be_imported.py").write_text("import a_package_that_is_missing")
    found = run(tmp_path, 10.0)
    checks = {each["check"]["name"].partition("::")[2]: each["check"] for each in found if "check" in each}
    assert {name: check["is_right"] for name, check in checks.items()} == {
        "": False,
        "test_passes": True,
        "test_fails": False,
        "test_is_skipped": False,
        "test_ends_badly": False,
        "test_is_slow": True,
    }
    assert "as it should" in checks["test_fails"]["detail"]
    assert "ZeroDivisionError" in checks["test_ends_badly"]["detail"]
    assert "a_package_that_is_missing" in checks[""]["detail"]
    names = [name for each in found for name in each.get("pieces", {}).get("names", [])]
    done = [each["done"]["name"] for each in found if "done" in each]
    assert set(names) - set(done) == {"test_some.py::test_is_left_out"}
    # A second call runs what is left.
    (tmp_path / "test_that_cannot_be_imported.py").unlink()
    found = run(tmp_path, 10.0, *done)
    assert [each["done"]["name"] for each in found if "done" in each] == ["test_some.py::test_is_left_out"]
