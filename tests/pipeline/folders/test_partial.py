"""One writer a folder: the second run is refused by name, and a dead one is in nobody's way.

Small files are written whole or not at all, and system errors become one line with a way out.

Only the workers of the run that holds a folder write into it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.partial import (
    PARTIAL,
    WORKERS,
    FolderLock,
    durable_files,
    held_by_worker,
    is_durable,
    num_recorded,
    start_generation,
    write_errors_explained,
    write_synced,
)
from hotset.pipeline.runtime.tasks import pack_call, run_packed
from hotset.tests.support.json_records import AnyRecord
from hotset.tests.support.processes.kills import HOLDER, Killed, killed, start_holder


@pytest.mark.parametrize("is_killed", [False, True])
def test_another_process_is_named_until_it_is_gone(tmp_path: Path, is_killed: bool) -> None:
    path = tmp_path / "out" / "lock"
    with start_holder(path) as holder:
        with pytest.raises(ManifestError) as caught:
            FolderLock.take(path, tmp_path / "out")
        assert str(caught.value) == f"{tmp_path / 'out'} is being written by process {holder.pid}"
        assert caught.value.hint
        if is_killed:
            holder.send_signal(signal.SIGKILL)
        else:
            holder.communicate()
        holder.wait()
    FolderLock.take(path, tmp_path / "out").release()
    assert int(path.read_text()) == os.getpid()


def test_another_thread_is_refused_and_the_next_run_of_this_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FolderLock.take(path, tmp_path)
    with ThreadPoolExecutor(1) as pool, pytest.raises(ManifestError, match="another thread of this process"):
        pool.submit(FolderLock.take, path, tmp_path).result()
    second = FolderLock.take(path, tmp_path)
    first.release()  # no longer its to let go of
    with start_refused(path) as refused:
        assert refused.wait() != 0
    second.release()
    start_holder(path).communicate()


def start_refused(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def test_what_a_thread_that_ended_left_locked_is_taken_over(tmp_path: Path) -> None:
    left = []
    thread = threading.Thread(target=lambda: left.append(FolderLock.take(tmp_path / "lock", tmp_path)))
    thread.start()
    thread.join()
    FolderLock.take(tmp_path / "lock", tmp_path).release()
    assert left


def test_a_lock_file_that_was_removed_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FolderLock.take(path, tmp_path)
    path.unlink()
    second = FolderLock.take(path, tmp_path)
    assert first.inode != second.inode
    first.release()
    second.release()


def test_a_file_that_goes_while_it_is_being_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, num_left = tmp_path / "lock", 2
    lockf = fcntl.lockf

    def sealed_meanwhile(descriptor: int, operation: int) -> None:
        nonlocal num_left
        lockf(descriptor, operation)
        num_left -= 1
        if num_left >= 0:
            path.unlink()

    monkeypatch.setattr("fcntl.lockf", sealed_meanwhile)
    lock = FolderLock.take(path, tmp_path)
    assert lock.inode == (path.stat().st_dev, path.stat().st_ino) and num_left == -1
    lock.release()


def test_a_lock_that_cannot_be_written_is_an_error_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        FolderLock.take(tmp_path / "file" / "lock", tmp_path / "file")


def test_durable_files_nest_and_end_even_after_an_error() -> None:
    assert not is_durable()
    with durable_files():
        with durable_files(False):
            assert not is_durable()
        assert is_durable()
    with pytest.raises(KeyError), durable_files():
        raise KeyError
    assert not is_durable()


def test_killed_before_the_rename_the_old_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "begun.json"
    write_synced(path, b"old", sync=False)
    with killed(1, monkeypatch), pytest.raises(Killed):
        write_synced(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    write_synced(path, b"newer", aside=tmp_path / "aside", sync=True)
    assert path.read_bytes() == b"newer" and not (tmp_path / "aside").exists()


def test_a_system_error_is_explained_and_others_pass(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"out cannot be written: No space left") as caught:
        with write_errors_explained(tmp_path / "out"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.hint == "make room or fix the cause, and run the same command again"
    with pytest.raises(ManifestError, match="out cannot be written: by hand"):
        with write_errors_explained(tmp_path / "out"):
            raise OSError("by hand")
    with pytest.raises(KeyError), write_errors_explained(tmp_path):
        raise KeyError


def test_only_records_of_data_files_are_counted(tmp_path: Path) -> None:
    assert num_recorded(tmp_path) == 0
    (tmp_path / PARTIAL).mkdir()
    for name in ("a.arrow.json", "b.arrow.json", "begun.json", "c.arrow"):
        (tmp_path / PARTIAL / name).touch()
    assert num_recorded(tmp_path) == 2


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
    monkeypatch.setattr("hotset.pipeline.folders.partial._MOST_SECONDS", 0.05)
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
        packed, originals = pack_call(write, (output, "a.arrow"))
        result, (report,) = run_packed(packed, os.getcwd())
        assert result is was_there and not output.has("a.arrow") and originals == [output]
    output.apply_report(report)
    assert output.has("a.arrow") and output.finished["a.arrow"].facts == {"fact": 1}
    assert [entry.path for entry in output.seal(AnyRecord()).files] == ["a.arrow"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.arrow", "manifest.json"]


def test_a_copy_of_an_earlier_run_writes_nothing(tmp_path: Path) -> None:
    early, _ = pack_call(write, (begin(tmp_path / "out"), "a.arrow"))
    output = begin(tmp_path / "out")
    with pytest.raises(ManifestError, match="another run"):
        run_packed(early, os.getcwd())
    assert not (tmp_path / "out" / "a.arrow").exists()
    output.seal(AnyRecord())
    with pytest.raises(ManifestError, match="another run"):
        run_packed(early, os.getcwd())


def test_what_killed_workers_left_aside_goes_when_the_run_goes_on(tmp_path: Path) -> None:
    copy = Output.in_worker(*begin(tmp_path / "out").state_for_worker())
    # An error would remove the file, but a worker that is killed sees none.
    copy.temporary_path("a.arrow").write_bytes(b"half")
    assert len(list((tmp_path / "out" / PARTIAL).glob("*.aside"))) == 1
    begin(tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / PARTIAL).iterdir()} == {"begun.json", "lock", WORKERS}
