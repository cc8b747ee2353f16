"""Blocks of whole lines: the same ones from plain, gzip and zstd files, whatever the cut."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import InputError
from hotset.pipeline.raw.criteo_kernel import PADDING_BYTES
from hotset.pipeline.raw.raw_blocks import MAX_LINE_BYTES, RawFile, iterate_blocks


def naive_blocks(text: bytes, block_bytes: int) -> list[bytes]:
    blocks = [b""] * -(-len(text) // block_bytes)
    start = 0
    for line in text.split(b"\n"):
        if start < len(text):
            blocks[start // block_bytes] += line + b"\n"
        start += len(line) + 1
    return blocks


def blocks_of(path: Path, block_bytes: int) -> list[bytes]:
    blocks = [read() for read in iterate_blocks(RawFile.look_at(path), block_bytes)]
    for block in blocks:
        assert not block.text[block.num_bytes :].any() and len(block.text) == block.num_bytes + PADDING_BYTES
    return [block.lines.tobytes() for block in blocks]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"x")), max_size=30),
    block_bytes=st.integers(1, 60),
    ends_in_newline=st.booleans(),
)
def test_blocks_agree_with_the_naive_cut(
    tmp_path: Path, lines: list[bytes], block_bytes: int, ends_in_newline: bool
) -> None:
    text = b"\n".join(lines) + (b"\n" if lines and ends_in_newline else b"")
    wanted = naive_blocks(text, block_bytes)
    assume(not text.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")))
    plain, packed, zstd = tmp_path / "log", tmp_path / "log.gz", tmp_path / "log.zst"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    zstd.write_bytes(pa.compress(text, "zstd", asbytes=True))
    assert blocks_of(plain, block_bytes) == wanted
    while wanted and not wanted[-1]:
        wanted.pop()
    for path in (packed, zstd):
        found = blocks_of(path, block_bytes)
        while found and not found[-1]:
            found.pop()
        assert found == wanted


def test_gzip_members_are_read_one_after_the_other(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert b"".join(blocks_of(path, 100)) == b"one\ntwo\n"


def test_a_cut_off_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(bytes(range(48, 58)) * 5000)[:-30])
    with pytest.raises(InputError, match="cannot be read to its end"):
        blocks_of(path, 1 << 20)


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (MAX_LINE_BYTES + 300_000))
    with pytest.raises(InputError, match="longer than"):
        blocks_of(path, 100_000)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.tsv cannot be read: No such file"):
        RawFile.look_at(tmp_path / "nothing.tsv")
