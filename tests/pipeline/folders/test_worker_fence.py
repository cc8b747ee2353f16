"""Only the workers of the run that holds a folder write into it."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.partial_folder import PARTIAL, WORKERS
from hotset.pipeline.folders.worker_fence import inside_fence, raise_fence
from hotset.pipeline.runtime import remote_objects as travel
from hotset.pipeline.runtime.remote_objects import Call, tell


@dataclass(frozen=True)
class NoConfig:
    """Nothing to vary."""


def test_a_later_run_waits_for_the_workers_of_the_one_before(tmp_path: Path) -> None:
    path, raised = tmp_path / "workers", []
    token = raise_fence(path, tmp_path)
    with inside_fence(path, token, tmp_path), inside_fence(path, token, tmp_path):
        later = threading.Thread(target=lambda: raised.append(raise_fence(path, tmp_path)))
        later.start()
        later.join(0.1)
        assert not raised
    later.join()
    assert raised and raised[0] != token
    with pytest.raises(ManifestError, match="another run"), inside_fence(path, token, tmp_path):
        pass
    with inside_fence(path, raised[0], tmp_path):
        pass


def test_a_worker_that_does_not_end_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.pipeline.folders.worker_fence._MOST_SECONDS", 0.05)
    token = raise_fence(tmp_path / "workers", tmp_path)
    with inside_fence(tmp_path / "workers", token, tmp_path):
        with pytest.raises(ManifestError, match="still being written by a worker of an earlier run"):
            raise_fence(tmp_path / "workers", tmp_path)


def write(output: Output, name: str) -> bool:
    """A task that writes a file where it is not there, and says whether it was."""
    if output.has(name):
        return True
    with output.writing(name, 3, fact=1) as path:
        path.write_bytes(b"abc")
    return False


def begin(folder: Path) -> Output:
    output = Output.begin("stage", 1, NoConfig(), [], folder)
    assert isinstance(output, Output)
    return output


def test_what_a_copy_finished_is_known_at_home(tmp_path: Path) -> None:
    output = begin(tmp_path / "out")
    for was_there in (False, True):  # the second worker is sent what the first did and could not tell of
        result, news = Call(write, (output, "a.arrow"), ends_with_home=False)()
        assert result is was_there and not output.has("a.arrow") and len(news) == 1
    tell(news)
    assert output.has("a.arrow") and output.finished["a.arrow"].facts == {"fact": 1}
    assert [entry.path for entry in output.seal({}).files] == ["a.arrow"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.arrow", "manifest.json"]


def test_a_copy_of_an_earlier_run_writes_nothing(tmp_path: Path) -> None:
    early = Call(write, (begin(tmp_path / "out"), "a.arrow"), ends_with_home=False)
    output = begin(tmp_path / "out")
    with pytest.raises(ManifestError, match="another run"):
        early()
    assert not (tmp_path / "out" / "a.arrow").exists()
    output.seal({})
    with pytest.raises(ManifestError, match="another run"):
        early()


def test_what_killed_workers_left_aside_goes_when_the_run_goes_on(tmp_path: Path) -> None:
    copy = pickle.loads(pickle.dumps(begin(tmp_path / "out")))
    travel._arrived.clear()
    with pytest.raises(RuntimeError), copy.writing("a.arrow", 1) as path:
        path.write_bytes(b"half")
        raise RuntimeError
    assert len(list((tmp_path / "out" / PARTIAL).glob("*.aside"))) == 1
    begin(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / PARTIAL).iterdir()} == {"begun.json", "lock", WORKERS}
