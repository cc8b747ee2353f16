"""A raw file as it was found, and its bytes, plain or decompressed."""

from __future__ import annotations

import gzip
import os
import stat
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError
from ..folders.manifest import FileState, state_of

_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of compressed files."""
_SKIPPABLE = b"\x50\x2a\x4d\x18"
"""The start of a zstd frame without data; of its first byte the lower half is free."""


@dataclass(frozen=True, slots=True)
class RawFile:
    """A raw file as it was found when the run began."""

    path: Path
    num_bytes: int
    """Bytes on disk, compressed where it is."""
    compression: str | None
    """gzip, zstd, or None for a plain file."""
    state: FileState = field(compare=False)
    """State of the file before anything was read."""
    seen_ns: int = field(compare=False)
    """When that was, nanoseconds since 1970."""

    @classmethod
    def inspect(cls, path: Path) -> RawFile:
        """Find out how long ``path`` is and how it is compressed.

        Raises:
            InputError: it is not a file that can be read; a pipe is not one, for opening it would wait.
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
                start = file.read(4)
                while start[1:] == _SKIPPABLE[1:] and start[0] & 0xF0 == _SKIPPABLE[0]:
                    # A frame of zstd that holds no data: its length, then the next frame.
                    file.seek(int.from_bytes(file.read(4), "little"), os.SEEK_CUR)
                    start = file.read(4)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        found = [name for magic, name in _COMPRESSIONS.items() if start.startswith(magic)]
        return cls(path, state[5], found[0] if found else None, state, seen_ns)

    def is_unchanged(self) -> bool:
        """Return whether the path still leads to this file, and nothing was written to it since."""
        now = RawFile.inspect(self.path)
        return now == self and now.state[1:4] == self.state[1:4]

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
            return pa.input_stream(str(self.path), compression=self.compression, buffer_size=1 << 20)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
            raise InputError(f"{self.path} cannot be read: {reason}") from error


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
            raise InputError(
                f"{self._raw.path} changed while it was read", hint="run again when it is complete"
            )
        self._bytes_left -= wanted
        return wanted

    def _fill(self, into: NDArray[Any]) -> int:
        filled = 0
        # One call may return less than requested, long before the file ends.
        while filled < into.shape[0]:
            try:
                count = self._readinto(into.data[filled:])
            except (OSError, EOFError, zlib.error) as error:
                raise InputError(
                    f"{self._raw.path} cannot be read to its end: {str(error).splitlines()[0]}",
                    hint="the file may be cut off or damaged: fetch it again",
                ) from error
            if not count:
                break
            filled += count
        return filled
