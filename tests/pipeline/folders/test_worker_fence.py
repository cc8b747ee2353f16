"""Only the workers of the run that holds a folder write into it.

Tests `remote_objects`, too.
"""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.partial_folder import PARTIAL, WORKERS
from hotset.pipeline.folders.worker_fence import held_by_worker, start_generation
from hotset.pipeline.runtime import remote_objects
from hotset.pipeline.runtime.remote_objects import RemoteCall, apply_reports
from hotset.tests.support.json_records import AnyRecord


@dataclass(frozen=True)
class NoConfig:
    """Nothing to vary."""


def test_a_later_run_waits_for_the_workers_of_the_one_before(tmp_path: Path) -> None:
    path, raised = tmp_path / "workers", []
    token = start_generation(path, tmp_path)
    with held_by_worker(path, token, tmp_path), held_by_worker(path, token, tmp_path):
        later = threading.Thread(target=lambda: raised.append(start_generation(path, tmp_path)))
        later.start()
        later.join(0.1)
        assert not raised
    later.join()
    assert raised and raised[0] != token
    with pytest.raises(ManifestError, match="another run"), held_by_worker(path, token, tmp_path):
        pass
    with held_by_worker(path, raised[0], tmp_path):
        pass


def test_a_worker_that_does_not_end_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.folders.worker_fence._MOST_SECONDS", 0.05)
    token = start_generation(tmp_path / "workers", tmp_path)
    with held_by_worker(tmp_path / "workers", token, tmp_path):
        with pytest.raises(ManifestError, match="still being written by a worker of an earlier run"):
            start_generation(tmp_path / "workers", tmp_path)


def write(output: Output, name: str) -> bool:
    """A task that writes a file where it is not there, and says whether it was."""
    if output.has(name):
        return True
    with output.writing(name, 3, AnyRecord(fact=1)) as path:
        path.write_bytes(b"abc")
    return False


def begin(folder: Path) -> Output:
    output = Output.begin("stage", 1, NoConfig(), [], folder)
    return output


def test_what_a_copy_finished_is_known_at_home(tmp_path: Path) -> None:
    output = begin(tmp_path / "out")
    for was_there in (False, True):  # the second worker is sent what the first did and could not tell of
        result, reports = RemoteCall(write, (output, "a.arrow"))()
        assert result is was_there and not output.has("a.arrow") and len(reports) == 1
    apply_reports(reports)
    assert output.has("a.arrow") and output.finished["a.arrow"].facts == {"fact": 1}
    assert [entry.path for entry in output.seal(AnyRecord()).files] == ["a.arrow"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.arrow", "manifest.json"]


def test_a_copy_of_an_earlier_run_writes_nothing(tmp_path: Path) -> None:
    early = RemoteCall(write, (begin(tmp_path / "out"), "a.arrow"))
    output = begin(tmp_path / "out")
    with pytest.raises(ManifestError, match="another run"):
        early()
    assert not (tmp_path / "out" / "a.arrow").exists()
    output.seal(AnyRecord())
    with pytest.raises(ManifestError, match="another run"):
        early()


def test_what_killed_workers_left_aside_goes_when_the_run_goes_on(tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(begin(tmp_path / "out")))
    remote_objects._copies.clear()
    # An error would remove the file, but a worker that is killed sees none.
    copy.temporary_path("a.arrow").write_bytes(b"half")
    assert len(list((tmp_path / "out" / PARTIAL).glob("*.aside"))) == 1
    begin(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / PARTIAL).iterdir()} == {"begun.json", "lock", WORKERS}
