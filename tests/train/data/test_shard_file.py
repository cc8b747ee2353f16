"""Files that are read as they were when they were opened, with few of them open at a time."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from hotset.pipeline.errors import ShardError
from hotset.tests.support.processes.descriptors import open_files
from hotset.train.data.shard_file import UnchangedFile


def write_files(folder: Path, count: int) -> list[Path]:
    paths = [folder / str(number) for number in range(count)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 1000)
    return paths


def read(file: UnchangedFile, start: int = 0) -> bytes:
    file.cursor.chunks.clear()
    file.seek(start)
    return file.read(1000).tobytes()


@pytest.fixture
def _few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process seem to be allowed four files, so that two of ours are open."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))


@pytest.mark.usefixtures("_few_files")
def test_more_files_than_a_process_may_open_are_read_in_any_order(tmp_path: Path) -> None:
    files = [UnchangedFile(path) for path in write_files(tmp_path, 40)]
    for number in [*range(40), *range(39, -1, -1), 7, 7, 20]:
        assert read(files[number], 990) == bytes([number]) * 10
        files[number].refuse_change()
        assert len(open_files(tmp_path)) <= 2
    assert len(open_files(tmp_path)) == 2
    del files
    assert open_files(tmp_path) == []


@pytest.mark.usefixtures("_few_files")
def test_threads_read_files_that_others_would_close(tmp_path: Path) -> None:
    files = [UnchangedFile(path) for path in write_files(tmp_path, 6)]
    wrong: list[int] = []

    def read_often(number: int) -> None:
        for _ in range(200):
            files[number].refuse_change()
            if read(files[number]) != bytes([number]) * 1000:
                wrong.append(number)

    threads = [threading.Thread(target=read_often, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.usefixtures("_few_files")
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_a_file_that_had_to_be_closed_and_is_another_now_is_named(tmp_path: Path, how: str) -> None:
    paths = write_files(tmp_path, 3)
    files = [UnchangedFile(path) for path in paths]  # the first one is closed
    if how == "changed":
        status = paths[0].stat()
        (tmp_path / "other").write_bytes(b"x" * 1000)
        os.utime(tmp_path / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(tmp_path / "other", paths[0])
    else:
        paths[0].unlink()
    with pytest.raises(ShardError, match=f"{paths[0]} was {how} by another program while it was in use"):
        files[0].refuse_change()


def test_a_file_that_is_cut_short_or_written_to_is_named(tmp_path: Path) -> None:
    paths = write_files(tmp_path, 2)
    files = [UnchangedFile(path) for path in paths]
    os.truncate(paths[0], 500)
    with pytest.raises(ShardError, match="was changed by another program"):
        read(files[0])
    paths[1].write_bytes(b"y" * 1001)
    with pytest.raises(ShardError, match="was changed by another program"):
        files[1].refuse_change()
