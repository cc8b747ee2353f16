"""Bytes of a file as it was when it was opened, read into memory and never mapped."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ShardError
from ...pipeline.stage_commands import hint_to_rewrite

_ALIGNMENT = 64
Chunks = tuple[NDArray[np.uint8], ...]
"""The bytes of a file that were read for one batch."""


class UnchangedFile:
    """The bytes of a file as it was when it was opened, for Arrow to read; whatever else is found raises.

    Mapped files kill the process where another program cuts them short. Arrow's own files
    refuse names that are not UTF-8, and give memory that torch takes for read-only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._found = self._status()
        self._position = 0
        self.chunks: list[NDArray[np.uint8]] = []
        """What was read since the list was emptied; Arrow's buffers lie in these."""

    def _status(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def refuse_change(self) -> None:
        """Raise ShardError where the file was written to since it was opened."""
        if self._status() != self._found:
            raise ShardError(
                f"{self._path} was changed by another program while it was in use",
                hint=f"{hint_to_rewrite(self._path.parent)}, and leave it alone while it is trained on",
            )

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def close(self) -> None:
        self._close()

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._found[0]}[whence]
        self._position = base + offset
        return self._position

    def read(self, num_bytes: int) -> NDArray[np.uint8]:
        """Read bytes into new memory; a damaged file may ask for more than there are."""
        num_bytes = max(0, min(num_bytes, self._found[0] - self._position))
        # Aligned as in the file, whatever the allocator gives: libraries may order sums by alignment.
        memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        start = (self._position - memory.ctypes.data) % _ALIGNMENT
        chunk = memory[start : start + num_bytes]
        num_read = os.preadv(self._descriptor, [chunk.data], self._position) if num_bytes else 0
        if num_read != num_bytes:
            self.refuse_change()
            raise OSError(f"{num_read} of {num_bytes} bytes could be read")
        self._position += num_bytes
        self.chunks.append(chunk)
        return chunk


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
