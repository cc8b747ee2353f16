"""A raw file as it was found, and its bytes, plain or decompressed."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import re
import shlex
import stat
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from numpy.typing import NDArray

from ..errors import KIB, InputError
from ..folders.manifest import FileState, state_of

BOM = b"\xef\xbb\xbf"
"""Byte order mark at the beginning of a text."""
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
}
"""First bytes of compressed files."""
_BZ2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
"""Bytes 4 to 10 of a file of bzip2, without which it may be text."""
_OTHERS = {
    (0, b"PK\3\4"): ("a zip archive", "unzip -p {} > log.csv"),
    (0, b"PK\5\6"): ("an empty zip archive", "unzip -l {}"),
    (257, b"ustar"): ("a tar archive", "tar -xf {}"),
    (0, b"7z\xbc\xaf\x27\x1c"): ("a 7-Zip archive", "7z x {}"),
    (0, b"Obj\1"): ("an Avro file", "avro cat --format=json {} > log.jsonl"),
    (0, b"\xff\x06\0\0sNaPpY"): ("compressed with Snappy", "snzip -dc {} > log.csv"),
}
"""Files that are not read: where which bytes are, what they are, and the command that converts them."""
_INNER = {b"PAR1": "Parquet", b"ARROW1": "Arrow", b"ORC": "ORC"}
"""Files that are compressed inside, by their first bytes."""
_COLUMNAR = {b"PAR1": "parquet", b"ARROW1\0\0": "arrow", b"\xff\xff\xff\xff": "stream"}
"""Formats of typed columns, by their first bytes; ORC is known by its end, too."""
_LOOK_BYTES = 1 << 16
_JSON_OBJECT = re.compile(rb'\{\s*("(?:[^"\\]|\\.)*"\s*:|\})')
_JSON_ARRAY = re.compile(rb'\s*\[\s*\{\s*"(?:[^"\\]|\\.)*"\s*:')
_UNPACK = {"gzip": "gzip -d", "zstd": "zstd -d", "bz2": "bzip2 -d", "xz": "xz -d", "lz4": "lz4 -d"}
_START_BYTES = 512
_MOST_XZ_BYTES = 130 << 20
"""Memory of a decoder of xz with a window of 128 MiB, as that of zstd may be."""
_SKIPPABLE = b"\x50\x2a\x4d\x18"
"""The start of a zstd frame without data; of its first byte the lower half is free."""


@dataclass(frozen=True, slots=True)
class RawFile:
    """A raw file as it was found when the run began."""

    path: Path
    num_bytes: int
    """Bytes on disk, compressed where it is."""
    compression: str | None
    """gzip, zstd, bz2, xz, lz4, or None for a plain file."""
    state: FileState = field(compare=False)
    """State of the file before anything was read."""
    seen_ns: int = field(compare=False)
    """When that was, nanoseconds since 1970."""

    @classmethod
    def inspect(cls, path: Path) -> RawFile:
        """Find out how long ``path`` is and how it is compressed.

        Raises:
            InputError: it is not a file that can be read; a pipe is not one, for opening it would wait. Or it
                is an archive.
        """
        try:
            status = path.stat()
            # A folder passes here, so that opening it gives the system's own message.
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                raise InputError(
                    f"{path} is not a plain file", hint="write the log to a file first: it is read in parts"
                )
            seen_ns, state = time.time_ns(), state_of(path)
            with open(path, "rb") as file:
                start = file.read(_START_BYTES)
                while start[1:4] == _SKIPPABLE[1:] and start[0] & 0xF0 == _SKIPPABLE[0]:
                    # A frame of zstd that holds no data: its length, then the next frame.
                    skipped = 8 + int.from_bytes(start[4:8], "little")
                    file.seek(skipped - len(start), os.SEEK_CUR)
                    start = file.read(_START_BYTES)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        refuse_archive(path, start)
        found = [name for magic, name in _COMPRESSIONS.items() if start.startswith(magic)]
        if found == ["bz2"] and start[4:10] not in _BZ2_BLOCKS:
            found = []
        return cls(path, state[5], found[0] if found else None, state, seen_ns)

    @property
    def partitions(self) -> dict[str, str]:
        """Columns that folders give the file: ``dt=2026-01-31`` in its path; "" is a missing value."""
        pairs = (unquote(name).split("=", 1) for name in self.path.parts[:-1] if "=" in name[1:])
        return {key: "" if value == "__HIVE_DEFAULT_PARTITION__" else value for key, value in pairs}

    def is_unchanged(self) -> bool:
        """Return whether the path still leads to this file, and nothing was written to it since."""
        try:
            now = state_of(self.path)
        except OSError as error:
            raise InputError(f"{self.path} cannot be read: {error.strerror}") from error
        return (now[1:4], now[5]) == (self.state[1:4], self.num_bytes)

    def changed(self) -> InputError:
        """Return the error for a file that is another one now."""
        return InputError(f"{self.path} changed while it was read", hint="run again when it is complete")

    def read_start(self, num_bytes: int) -> bytes:
        """Return the first bytes as they are on disk; fewer if the file is shorter."""
        with open(self.path, "rb") as file:
            return file.read(num_bytes)

    def _is_padded(self) -> bool:
        """Return whether the file ends in nine zeros, more than a member of gzip can."""
        with open(self.path, "rb") as file:
            file.seek(max(0, self.num_bytes - 9))
            return file.read(9) == bytes(9)

    def open_decompressed(self) -> Any:
        """Open a compressed file as a stream of its text."""
        try:
            if self.compression == "gzip" and self._is_padded():
                return gzip.open(self.path)  # zeros after the last member count as padding
            if self.compression == "xz":
                lzma.LZMADecompressor(memlimit=_MOST_XZ_BYTES).decompress(self.read_start(4096), 1)
            return self._decompressed(str(self.path))
        except lzma.LZMAError as error:
            if "Memory usage limit" in str(error):
                raise _too_wide(self.path, "xz -d") from error
            return self._decompressed(str(self.path))  # whose reader names the fault
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
            raise InputError(f"{self.path} cannot be read: {reason}") from error

    def read_format(self) -> str:
        """Return what the file holds, by its bytes: text, json (JSON Lines), parquet, arrow, stream or orc.

        Raises:
            InputError: it cannot be read or decompressed, or is a JSON array.
        """
        start = self.read_start(_LOOK_BYTES)
        if self.compression is not None:
            try:
                with self.open_decompressed() as stream:
                    start = stream.read(_LOOK_BYTES)
            except (OSError, EOFError, zlib.error, lzma.LZMAError):
                return "text"  # whose reader names the fault
            self.refuse_packed(start)
        elif start.startswith(b"ORC"):
            with open(self.path, "rb") as file:
                file.seek(max(0, self.num_bytes - 4))
                return "orc" if file.read(3) == b"ORC" else "text"
        else:
            found = next((name for magic, name in _COLUMNAR.items() if start.startswith(magic)), None)
            if found is not None:
                return found
        if _JSON_ARRAY.match(start):
            raise InputError(
                f"{self.path} is a JSON array, want JSON Lines: an object on each line",
                hint=f"`jq -c '.[]' {shlex.quote(str(self.path))} > log.jsonl` writes them",
            )
        line = start.removeprefix(BOM).lstrip().partition(b"\n")[0]
        is_whole = len(start) < _LOOK_BYTES or b"\n" in start
        is_json = _JSON_OBJECT.match(line) and (not is_whole or line.rstrip().endswith(b"}"))
        return "json" if is_json else "text"

    def _decompressed(self, source: Any) -> Any:
        if self.compression == "xz":
            return lzma.open(source)
        return pa.input_stream(source, compression=self.compression, buffer_size=1 << 20)

    def expansion(self, num_bytes: int) -> float:
        """Return the bytes of text per byte on disk, as the first ``num_bytes`` of the file have it."""
        if self.compression is None:
            return 1.0
        start = self.read_start(num_bytes)
        text_bytes = 0
        with suppress(OSError, EOFError, lzma.LZMAError):  # the stream is cut off in the middle
            stream = self._decompressed(io.BytesIO(start))
            while block := stream.read(64 * KIB):
                text_bytes += len(block)
        return max(1.0, text_bytes / max(1, len(start)))

    def refuse_packed(self, start: bytes) -> None:
        """Raise InputError where a compressed file, whose text begins with ``start``, is no text."""
        refuse_archive(self.path, start)
        inner = next((name for magic, name in _INNER.items() if start.startswith(magic)), None)
        if inner is not None:
            raise InputError(
                f"{self.path} is a file of {inner} that was compressed as a whole",
                hint=f"`{_UNPACK[str(self.compression)]} {shlex.quote(str(self.path))}` unpacks it",
            )


def _too_wide(path: Path, command: str) -> InputError:
    return InputError(
        f"{path} was compressed with a window above 128 MiB, which takes as much memory",
        hint=f"`{command} {shlex.quote(str(path))}` unpacks it",
    )


def refuse_archive(path: Path, start: bytes) -> None:
    """Raise InputError with the command that converts a file, where its first bytes say that it needs one."""
    for (first, magic), (kind, command) in _OTHERS.items():
        if start[first:].startswith(magic):
            shown = command.format(shlex.quote(str(path)))
            raise InputError(f"{path} is {kind}, want a log that is a file of its own", hint=f"`{shown}`")


class ByteSource:
    """The bytes of an opened raw file, read into arrays one after another.

    A plain file is read only as far as it reached when the run began; bytes appended since are ignored.
    """

    def __init__(
        self, raw: RawFile, readinto: Callable[[Any], int | None], bytes_left: int | None = None
    ) -> None:
        self._raw = raw
        self._readinto = readinto
        self._bytes_left = bytes_left

    def fill(self, into: NDArray[Any]) -> int:
        """Read until ``into`` is full or the file ends; returns the bytes read.

        Raises:
            InputError: the file cannot be read or decompressed, or is shorter now than it was found. What
                a shorter file held is not parsed, or a resumed run would keep it.
        """
        if self._bytes_left is None:
            return self._fill(into)
        wanted: int = min(into.shape[0], self._bytes_left)
        if self._fill(into[:wanted]) != wanted:
            raise self._raw.changed()
        self._bytes_left -= wanted
        return wanted

    def _fill(self, into: NDArray[Any]) -> int:
        filled = 0
        # One call may return less than requested, long before the file ends.
        while filled < into.shape[0]:
            try:
                count = self._readinto(into.data[filled:])
            except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
                path = self._raw.path
                if "requires too much memory" in str(error):  # Arrow's reader of zstd has no other sign
                    raise _too_wide(path, "zstd -d --long=31") from error
                raise InputError(
                    f"{path} cannot be read to its end: {str(error).splitlines()[0]}",
                    hint="the file may be cut off or damaged: fetch it again",
                ) from error
            if not count:
                break
            filled += count
        return filled
