"""Bytes of a file as it was when it was opened, read into memory and never mapped.

Files stay open, so that one that is removed or replaced is read to its end as it was. A process may have few
files open, and a large log has thousands of shards: then the files that were read least recently are
closed, and opened again when they are read.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ShardError, hint_to_rewrite

_ALIGNMENT = 64
Chunks = tuple[NDArray[np.uint8], ...]
"""The bytes of a file that were read for one batch."""


class _Cursor(threading.local):
    """Where a thread reads a file, and what it has read."""

    def __init__(self) -> None:
        self.position = 0
        self.chunks: list[NDArray[np.uint8]] = []


class UnchangedFile:
    """The bytes of a file as it was when it was opened, for Arrow to read; whatever else is found raises.

    Mapped files kill the process where another program cuts them short. Arrow's own files
    refuse names that are not UTF-8, and give memory that torch takes for read-only. Each thread has
    a position of its own.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = _open_files.add(path)
        self._close = weakref.finalize(self, _open_files.remove, self._number)
        with _open_files.descriptor(self._number) as descriptor:
            self._found = _status_of(descriptor)
        self._cursor = _Cursor()

    @property
    def chunks(self) -> list[NDArray[np.uint8]]:
        """Blocks that this thread has read since it emptied the list; Arrow's buffers lie in these."""
        return self._cursor.chunks

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        """Yield a descriptor of the file, which may have been closed and opened again meanwhile."""
        try:
            with _open_files.descriptor(self._number) as descriptor:
                yield descriptor
        except FileNotFoundError:
            raise self._changed("removed") from None

    def refuse_change(self) -> None:
        """Raise ShardError where the file was written to since it was opened."""
        with self._descriptor() as descriptor:
            if _status_of(descriptor) != self._found:
                raise self._changed("changed")

    def _changed(self, how: str) -> ShardError:
        return ShardError(
            f"{self._path} was {how} by another program while it was in use",
            hint=f"{hint_to_rewrite(self._path.parent)}, and leave it alone while it is trained on",
        )

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def close(self) -> None:
        self._close()

    def tell(self) -> int:
        return self._cursor.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._cursor.position, os.SEEK_END: self._found[0]}[whence]
        self._cursor.position = base + offset
        return self._cursor.position

    def read(self, num_bytes: int) -> NDArray[np.uint8]:
        """Read bytes into new memory; a damaged file may ask for more than there are."""
        # Never more than the file has: what a damaged file asks for could be all memory.
        num_bytes = max(0, min(num_bytes, self._found[0] - self._cursor.position))
        # Aligned as in the file, whatever the allocator gives: libraries may order sums by alignment.
        memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        start = (self._cursor.position - memory.ctypes.data) % _ALIGNMENT
        chunk = memory[start : start + num_bytes]
        num_read = 0
        if num_bytes:
            with self._descriptor() as descriptor:
                num_read = os.preadv(descriptor, [chunk.data], self._cursor.position)
        # A file that was cut short meanwhile is named as changed; anything else is an error of the disk.
        if num_read != num_bytes:
            self.refuse_change()
            raise OSError(f"{num_read} of {num_bytes} bytes could be read")
        self._cursor.position += num_bytes
        self.chunks.append(chunk)
        return chunk


def _status_of(descriptor: int) -> tuple[int, ...]:
    """Return what tells one file, and one state of it, from another."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino


class _OpenFiles:
    """Files by number, those read last open: at most half of what the process may open, and one at least."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # files may be collected while it is held
        self._next = 0
        self._paths: dict[int, Path] = {}
        self._descriptors: OrderedDict[int, int] = OrderedDict()
        self._readers: Counter[int] = Counter()

    def add(self, path: Path) -> int:
        """Number a file, which need not be open yet."""
        with self._lock:
            self._next += 1
            self._paths[self._next] = path
            return self._next

    def remove(self, number: int) -> None:
        """Close a file for good; nobody may read it any more."""
        with self._lock:
            self._paths.pop(number, None)
            self._readers.pop(number, None)
            descriptor = self._descriptors.pop(number, None)
            if descriptor is not None:
                os.close(descriptor)

    @contextmanager
    def descriptor(self, number: int) -> Iterator[int]:
        """Yield a descriptor, which stays open until the block ends."""
        with self._lock:
            # A limited number of files is open at a time; those in use stay open whatever their number.
            if number not in self._descriptors:
                self._close_least_recent()
                self._descriptors[number] = os.open(self._paths[number], os.O_RDONLY | os.O_CLOEXEC)
            self._descriptors.move_to_end(number)
            self._readers[number] += 1
            descriptor = self._descriptors[number]
        try:
            yield descriptor
        finally:
            with self._lock:
                self._readers[number] -= 1

    def _close_least_recent(self) -> None:
        """Make room for one more file; those that are being read stay."""
        # Half of the files that the process may open are left to others.
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(1, soft // 2) if soft != resource.RLIM_INFINITY else len(self._descriptors) + 1
        for number in list(self._descriptors):
            if len(self._descriptors) < most:
                return
            if not self._readers[number]:
                os.close(self._descriptors.pop(number))


_open_files = _OpenFiles()


def view_of(chunks: Chunks, buffer: Any, first: int, count: int, kind: Any) -> NDArray[Any]:
    """Values ``first`` to ``first + count`` of one of Arrow's buffers, which lies in what was read.

    Raises:
        ValueError: the buffer is too short, or lies elsewhere.
    """
    dtype = np.dtype(kind.to_pandas_dtype())
    if count == 0:
        return np.empty(0, dtype)
    # The buffer's position in what was read, checked against both: a damaged file may point anywhere.
    for chunk in chunks:
        start = buffer.address - chunk.ctypes.data + first * dtype.itemsize
        stop = start + count * dtype.itemsize
        if start >= 0 and stop <= chunk.size and first + count <= buffer.size // dtype.itemsize:
            return chunk[start:stop].view(dtype)
    raise ValueError(f"a buffer of {buffer.size} bytes does not hold {count} values of {dtype}")
