"""What is noted while a file is written is what reading it back would say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hotset.pipeline.folders.checksum import HashedFile, checksum_of_written, hash_file
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
