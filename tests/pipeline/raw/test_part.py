"""Blocks of whole lines: the same ones from plain, gzip and zstd files, whatever the cut.

Tests `raw_file`, too.
"""

from __future__ import annotations

import gzip
import mmap
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import InputError
from hotset.pipeline.raw import part
from hotset.pipeline.raw.criteo_kernel import PADDING_BYTES
from hotset.pipeline.raw.part import MAX_LINE_BYTES, iterate_blocks
from hotset.pipeline.raw.raw_file import RawFile


def naive_blocks(text: bytes, block_bytes: int) -> list[bytes]:
    blocks = [b""] * -(-len(text) // block_bytes)
    start = 0
    for line in text.split(b"\n"):
        if start < len(text):
            blocks[start // block_bytes] += line + b"\n"
        start += len(line) + 1
    return blocks


def blocks_of(path: Path, block_bytes: int) -> list[bytes]:
    blocks = [block.read() for block in iterate_blocks(RawFile.inspect(path), block_bytes)]
    for block in blocks:
        assert not block.text[block.num_bytes :].any() and len(block.text) == block.num_bytes + PADDING_BYTES
        tally = block.tallied().tally
        assert tally is not None
        assert tally.num_lines == block.num_lines == block.lines.tobytes().count(b"\n")
        assert tally.xxh3_128 == xxhash.xxh3_128_hexdigest(block.lines.data)
    return [block.lines.tobytes() for block in blocks]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"x")), max_size=30),
    block_bytes=st.integers(1, 60),
    piece_bytes=st.integers(1, 70),
    ends_in_newline=st.booleans(),
)
def test_blocks_agree_with_the_naive_cut(
    tmp_path: Path, lines: list[bytes], block_bytes: int, piece_bytes: int, ends_in_newline: bool
) -> None:
    text = b"\n".join(lines) + (b"\n" if lines and ends_in_newline else b"")
    wanted = naive_blocks(text, block_bytes)
    assume(not text.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd")))
    plain = tmp_path / "log"
    packed = tmp_path / "log.gz"
    zstd = tmp_path / "log.zst"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    zstd.write_bytes(pa.compress(text, "zstd", asbytes=True))
    with patch.object(part, "_PIECE_BYTES", piece_bytes):
        assert blocks_of(plain, block_bytes) == wanted
    while wanted and not wanted[-1]:
        wanted.pop()
    for path in (packed, zstd):
        found = blocks_of(path, block_bytes)
        while found and not found[-1]:
            found.pop()
        assert found == wanted


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
        RawFile.inspect(tmp_path / "nothing.tsv")


@pytest.mark.parametrize("block_bytes", [100_000, MAX_LINE_BYTES, 1 << 24])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_whether_a_line_is_too_long_does_not_depend_on_blocks(
    tmp_path: Path, block_bytes: int, suffix: str
) -> None:
    path = tmp_path / f"log{suffix}"
    pack = gzip.compress if suffix else bytes
    for before in (b"", b"a\n", b"b" * 99_990 + b"\n"):
        text = before + b"x" * MAX_LINE_BYTES + b"\n" + b"c\n" * 3
        path.write_bytes(pack(text))
        assert b"".join(blocks_of(path, block_bytes)) == text
        path.write_bytes(pack(text.replace(b"xx", b"xxx", 1)))
        with pytest.raises(InputError, match="a line is longer than 1 MiB"):
            blocks_of(path, block_bytes)


@pytest.mark.parametrize("num_zeros", [0, 512, 100_000])
def test_members_of_gzip_are_read_one_after_the_other_up_to_zeros(tmp_path: Path, num_zeros: int) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n") + bytes(num_zeros))
    assert b"".join(blocks_of(path, 100)) == b"one\ntwo\n"
    path.write_bytes(gzip.compress(b"one\n" * 9000)[:-12] + bytes(num_zeros))
    with pytest.raises(InputError, match=r"cannot be read to its end|longer than"):  # zeros may decompress
        blocks_of(path, 1 << 20)


@pytest.mark.parametrize("first_byte", [0x50, 0x5F])
def test_zstd_frames_without_data_are_skipped(tmp_path: Path, first_byte: int) -> None:
    frame = bytes([first_byte]) + b"\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"comment"
    path = tmp_path / "log.zst"
    path.write_bytes(frame + frame + pa.compress(b"one\n", codec="zstd", asbytes=True) + frame)
    assert RawFile.inspect(path).compression == "zstd"
    assert b"".join(blocks_of(path, 100)) == b"one\n"


@pytest.mark.parametrize("in_thread_buffer", [True, False])
@pytest.mark.parametrize("block_bytes", [700, 4096, 5000])
def test_text_begins_as_far_into_a_page_as_in_its_file(
    tmp_path: Path, block_bytes: int, in_thread_buffer: bool
) -> None:
    """The system copies text several times as fast to such a place."""
    path = tmp_path / "log"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(4000)))
    begin = 0
    for found in iterate_blocks(RawFile.inspect(path), block_bytes, in_thread_buffer=in_thread_buffer):
        block = found.read()
        assert (block.text.ctypes.data - begin) % mmap.PAGESIZE == 0
        begin += block.num_bytes
    assert begin == path.stat().st_size
