"""Blocks of whole lines: the same ones from plain, gzip and zstd files, whatever the cut.

Tests `raw_file`, too.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import mmap
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
import xxhash
from hypothesis import assume, given, settings
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


@pytest.mark.parametrize("max_examples", [50, pytest.param(150, marks=pytest.mark.slow)])
def test_blocks_agree_with_the_naive_cut(tmp_path: Path, max_examples: int) -> None:
    @settings(max_examples=max_examples)
    @given(
        lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"x")), max_size=30),
        block_bytes=st.integers(1, 60),
        piece_bytes=st.integers(1, 70),
        ends_in_newline=st.booleans(),
    )
    def check(lines: list[bytes], block_bytes: int, piece_bytes: int, ends_in_newline: bool) -> None:
        text = b"\n".join(lines) + (b"\n" if lines and ends_in_newline else b"")
        wanted = naive_blocks(text, block_bytes)
        assume(
            text[:1] not in (b"\x1f", b"\x28", b"\x04", b"P", b"7", b"O", b"\xff", b"B", b"\xfd")
        )  # of no text
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
        others = {
            "bz2": bz2.compress(text),
            "xz": lzma.compress(text),
            "lz4": pa.compress(text, "lz4", asbytes=True),
        }
        for name, content in others.items():
            (tmp_path / name).write_bytes(content)
            assert RawFile.inspect(tmp_path / name).compression == name
        for path in (packed, zstd, *(tmp_path / name for name in others)):
            found = blocks_of(path, block_bytes)
            while found and not found[-1]:
                found.pop()
            assert found == wanted

    check()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": lambda text: bytes(pa.compress(text, "zstd", asbytes=True)),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lz4": lambda text: bytes(pa.compress(text, "lz4", asbytes=True)),
}


@pytest.mark.parametrize("name", PACKERS)
def test_a_compressed_file_is_read_stream_by_stream_and_refused_where_it_is_cut_off(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "log"
    lines = b"".join(b"%d,%d\n" % (number, number * 7919 % 1013) for number in range(5000))
    packed = PACKERS[name](lines)
    path.write_bytes(packed + packed)
    assert b"".join(blocks_of(path, 1 << 14)) == lines + lines
    assert RawFile.inspect(path).expansion(1 << 20) == pytest.approx(2 * len(lines) / (2 * len(packed)))
    path.write_bytes(packed[:-30])
    with pytest.raises(InputError, match="cannot be read to its end"):
        blocks_of(path, 1 << 20)
    path.write_bytes(PACKERS[name](b"PAR1" + bytes(10)))
    with pytest.raises(InputError, match="a file of Parquet that was compressed"):
        RawFile.inspect(path).read_format()


def tar_of(text: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("log.csv")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return made.getvalue()


def zip_of(text: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("log.csv", text)
    return made.getvalue()


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (zip_of(b"a,b\n"), "unzip -p 'my log' > log.csv"),
        (tar_of(b"a,b\n"), "tar -xf 'my log'"),
        (gzip.compress(tar_of(b"a,b\n")), "tar -xf 'my log'"),
        (lzma.compress(tar_of(b"a,b\n")), "tar -xf 'my log'"),
        (b"Obj\x01\x04\x16avro.schema", "avro cat --format=json 'my log' > log.jsonl"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "7z x 'my log'"),
    ],
)
def test_an_archive_is_named_with_the_command_that_unpacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my log").write_bytes(content)
    with pytest.raises(InputError, match=r"my log is an? ") as caught:
        RawFile.inspect(Path("my log")).read_format()
    assert caught.value.hint == f"`{hint}`"


def test_text_that_begins_as_bzip2_does_is_text(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"BZh9,click\n1,0\n")
    assert RawFile.inspect(tmp_path / "log").compression is None


def test_a_window_of_xz_that_takes_much_memory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.xz"
    for dict_size, is_read in ((1 << 26, True), (1 << 28, False)):
        window = {"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dict_size}
        path.write_bytes(lzma.compress(b"a\nb\n", filters=[window]))
        if is_read:
            assert blocks_of(path, 100) == [b"a\nb\n"]
            continue
        with pytest.raises(InputError, match="a window above 128 MiB") as caught:
            blocks_of(path, 100)
        assert (caught.value.hint or "").startswith("`xz -d ")


def test_a_window_of_2_gib_is_named(tmp_path: Path) -> None:
    # Magic, a frame header with a window of 2**31 bytes, and a last raw block of three bytes.
    frame = b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([21 << 3]) + (3 << 3 | 1).to_bytes(3, "little") + b"a\nb"
    (tmp_path / "log.zst").write_bytes(frame)
    with pytest.raises(InputError, match="a window above 128 MiB") as caught:
        blocks_of(tmp_path / "log.zst", 1 << 20)
    assert (caught.value.hint or "").startswith("`zstd -d --long=31 ")


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (MAX_LINE_BYTES + 300_000))
    with pytest.raises(InputError, match="longer than"):
        blocks_of(path, 100_000)


@pytest.mark.parametrize("num_left", [0, 7, 8, 19])
def test_a_file_that_is_shorter_than_it_was_is_refused(num_left: int, tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_bytes(b"1234567\n" * 3)
    file = RawFile.inspect(path)
    path.write_bytes((b"1234567\n" * 3)[:num_left])
    with pytest.raises(InputError, match=r"log\.tsv changed while it was read"):
        [block.read() for block in iterate_blocks(file, 8)]


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
