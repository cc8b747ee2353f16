"""One writer a folder: the second run is refused by name, and a dead one is in nobody's way."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotset.pipeline.errors import ManifestError
from hotset.pipeline.folders.folder_lock import FolderLock
from hotset.tests.support.processes.kills import HOLDER, start_holder


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
