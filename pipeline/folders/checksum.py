"""The checksum of a file: xxh3-128, as manifests record it.

It is computed while a file is written, from bytes in the cache: reading them back costs a fifth of writing. A
process remembers the checksums of the files that it wrote or hashed, for as long as the system says that they
are unchanged, so that a file is hashed before its first use and not again.
"""

from __future__ import annotations

import io
import os
import threading
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import xxhash

_HASH_BLOCK_BYTES = 1 << 20
_MOST_KNOWN = 1 << 16
"""Checksums that are remembered: 20 MiB."""
_State = tuple[str, int, int, int, int, int]
"""Path, device, inode, time of the last write, time of the last change of any kind, bytes."""
_written: dict[str, tuple[int, str]] = {}
"""Bytes and checksum of files that this process wrote, by path, until their first use."""
_known: dict[_State, str] = {}
"""Checksums by the state of the file they were taken of."""
_uses: dict[str, tuple[int, _State]] = {}
"""Number of the last use of each path's checksum, and the file's state then; in the order of these
numbers."""
_num_uses = 0
_using = threading.Lock()
"""Held while `_uses` is written or read: tasks run in threads, and its order is that of the numbers."""


class HashedFile(io.RawIOBase):
    """A new file that is hashed while it is written, from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._digest = xxhash.xxh3_128()
        self._num_bytes = 0
        self._file = -1  # for `close`, which Python calls even if opening fails
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_bytes

    def write(self, data: Any) -> int:
        """Write and hash all of ``data``."""
        left = memoryview(data).cast("B")
        num_bytes = left.nbytes
        self._digest.update(left)
        self._num_bytes += num_bytes
        # The system may take less than it is given.
        while left.nbytes:
            left = left[os.write(self._file, left) :]
        return num_bytes

    def close(self) -> None:
        if not self.closed and self._file >= 0:
            super().close()
            os.close(self._file)
            _written[self._path] = self._num_bytes, str(self._digest.hexdigest())


def checksum_of_written(path: Path) -> tuple[int, str]:
    """Return bytes and xxh3-128 of a file just written: as noted by `HashedFile`, or else read again."""
    # A writer may have appended past `HashedFile`: a note of another size does not count.
    noted = _written.pop(str(path), None)
    return noted if noted is not None and noted[0] == path.stat().st_size else hash_file(path)


def hash_file(path: Path) -> tuple[int, str]:
    """Return bytes and xxh3-128 (hex) of a file, read through one reused block."""
    digest = xxhash.xxh3_128()
    block = bytearray(_HASH_BLOCK_BYTES)
    num_bytes = 0
    view = memoryview(block)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(view[:count])
            num_bytes += count
    return num_bytes, str(digest.hexdigest())


def note_checksum(path: Path, checksum: str) -> None:
    """Remember the checksum of a file as it is now."""
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[_state_of(path)] = checksum


def known_checksum(path: Path) -> str:
    """Return the xxh3-128 of a file; read it only if its state has changed."""
    global _num_uses
    state = _state_of(path)
    with _using:
        _num_uses += 1
        # Moved to the end: `overwritten_file` reads what its run used, not all earlier entries.
        _uses.pop(state[0], None)
        _uses[state[0]] = _num_uses, state
    if state not in _known:
        # The state of before: a file that is written to meanwhile has another afterwards, and is read again.
        _, found = hash_file(path)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[state] = found
    return _known[state]


def num_uses() -> int:
    """Return how many checksums were used so far, as a mark for `overwritten_file`."""
    return _num_uses


def overwritten_file(folder: Path, since: int) -> Path | None:
    """Return a file of ``folder`` that was written in place after its checksum was used, if any.

    Stages map files, so they would continue with other values. A file that was replaced or removed does not
    count: its map is unchanged.

    Args:
        folder: folder of the files.
        since: `num_uses` before the first file was used. An earlier use may concern another file of that
            name, and the system gives the inode of a removed file to a new one.
    """
    prefix = f"{folder}{os.sep}"
    with _using:
        since_then = takewhile(lambda used: used[1][0] > since, reversed(_uses.items()))
        used = {name: state for name, (_, state) in since_then if name.startswith(prefix)}
    for name, known in used.items():
        with suppress(OSError):
            found = _state_of(Path(name))
            _, *inode, written, _, num_bytes = found
            if inode == list(known[1:3]) and (written, num_bytes) != (known[3], known[5]):
                return Path(name)
    return None


def _state_of(path: Path) -> _State:
    status = path.stat()
    return (
        str(path),
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_size,
    )
