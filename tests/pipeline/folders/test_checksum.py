"""Checksums noted while a file is written are those of reading it back."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.folders.checksum import (
    HashedFile,
    checksum_of_written,
    hash_file,
    known_checksum,
    note_checksum,
    num_uses,
    overwritten_file,
)
from hotset.pipeline.formats.arrow_files import open_writer


@pytest.mark.parametrize("pieces", [[], [b""], [b"a"], [b"ab", b"", b"c" * 3_000_000, b"d"]])
def test_a_file_is_hashed_while_it_is_written(tmp_path: Path, pieces: list[bytes]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"what was there before, and is longer than that")
    with HashedFile(path) as file:
        for number, piece in enumerate(pieces):
            assert file.tell() == sum(map(len, pieces[:number]))
            assert file.write(piece) == len(piece)
    assert path.read_bytes() == b"".join(pieces)
    assert checksum_of_written(path) == hash_file(path)


def test_arrow_files_are_hashed_while_they_are_written(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array(np.arange(1000)), "b": pa.array([None, 1] * 500)})
    with open_writer(tmp_path / "file", batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch.slice(3, 7))
    assert checksum_of_written(tmp_path / "file") == hash_file(tmp_path / "file")


def test_what_was_changed_since_or_written_otherwise_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with HashedFile(path) as file:
        file.write(b"1234")
    path.write_bytes(b"12345")
    assert checksum_of_written(path) == hash_file(path) == checksum_of_written(path)
    with HashedFile(path) as file:
        file.write(b"1234")
    assert checksum_of_written(path)[0] == 4
    path.write_bytes(b"4321")
    assert checksum_of_written(path) == hash_file(path)  # a note is used once


def test_a_file_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    batch = pa.record_batch({"a": pa.array(np.arange(100_000))})
    with pytest.raises(FileNotFoundError), open_writer(tmp_path / "no" / "file", batch.schema):
        pass
    if Path("/dev/full").exists():
        with (
            pytest.raises(OSError, match="No space left"),
            open_writer(Path("/dev/full"), batch.schema) as writer,
        ):
            writer.write_batch(batch)


def test_a_checksum_is_known_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    wanted = hash_file(path)[1]
    read = list[Path]()

    def counting(hashed: Path) -> tuple[int, str]:
        read.append(hashed)
        return hash_file(hashed)

    monkeypatch.setattr("hotset.pipeline.folders.checksum.hash_file", counting)
    assert [known_checksum(path) for _ in range(3)] == [wanted] * 3 and read == [path]
    note_checksum(path, "noted")
    assert known_checksum(path) == "noted" and read == [path]
    # Each of these alone tells the new state: another time of change, another file of that name.
    os.utime(path, ns=(0, 0))
    assert known_checksum(path) == wanted and len(read) == 2
    (tmp_path / "other").write_bytes(b"abd")
    os.utime(tmp_path / "other", ns=(0, 0))
    os.replace(tmp_path / "other", path)
    assert known_checksum(path) == hash_file(path)[1] != wanted


def test_only_what_was_used_since_is_looked_for(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for path in (first, second):
        path.write_bytes(b"abc")
        known_checksum(path)
    since = num_uses()
    # The one that was used earlier than the other is used again.
    known_checksum(first)
    for path in (first, second):
        os.utime(path, ns=(0, 0))
    assert overwritten_file(tmp_path, since) == first
    assert overwritten_file(tmp_path, num_uses()) is None
    assert overwritten_file(tmp_path / "first", since) is None
