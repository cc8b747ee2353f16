"""Arrays that a run makes before its first step and reads once in order: files without a name, mapped.

Their pages belong to the page cache, which the system takes back when memory is short, and the disk space is
gone with the process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...pipeline.errors import HotsetError, format_byte_size


def mapped_zeros(folder: Path, count: int, dtype: DTypeLike, room_bytes: int = 0) -> NDArray[Any]:
    """Return (count,) zeros: in memory where they fit in ``room_bytes``, else in a nameless file.

    Raises:
        HotsetError: the disk has no room for them.
    """
    num_bytes = count * np.dtype(dtype).itemsize
    if num_bytes <= room_bytes or num_bytes == 0:
        return np.zeros(count, dtype)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            # Reserved now: writing to a mapped page that finds no block kills the process.
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            return np.asarray(np.memmap(file, dtype, "r+", shape=(count,)))
    except OSError as error:
        raise _no_room(folder, num_bytes, error) from error


class SpooledArrays:
    """Arrays that are appended to a nameless file of ``folder`` and then mapped all at once.

    Args:
        folder: where the file lies.
        alignment: bytes; each array begins at a multiple of it.
    """

    def __init__(self, folder: Path, alignment: int = 64) -> None:
        self._folder = folder
        self._alignment = alignment
        self._entries: list[tuple[int, np.dtype[Any], int]] = []
        self._end = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder)
        except OSError as error:
            raise _no_room(folder, 0, error) from error

    def append(self, values: NDArray[Any]) -> None:
        """Add a one-dimensional array behind those there are.

        Raises:
            HotsetError: the disk has no room for it.
        """
        padding = -self._end % self._alignment
        try:
            self._file.write(bytes(padding))
            self._file.write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise _no_room(self._folder, values.nbytes, error) from error
        self._entries.append((self._end + padding, values.dtype, values.size))
        self._end += padding + values.nbytes

    def map(self) -> Sequence[NDArray[Any]]:
        """Return all arrays in order, and close the file; what is written to them stays in memory.

        Raises:
            HotsetError: the disk has no room for them.
        """
        whole = self._map_bytes()
        return [
            whole[first : first + count * dtype.itemsize].view(dtype) for first, dtype, count in self._entries
        ]

    def map_joined(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return arrays of one type, appended with an alignment of 1, as one, and close the file.

        Raises:
            HotsetError: the disk has no room for them.
        """
        return self._map_bytes().view(dtype)

    def _map_bytes(self) -> NDArray[np.uint8]:
        try:
            with self._file:
                self._file.flush()
                if os.fstat(self._file.fileno()).st_size != self._end:
                    raise OSError(0, f"it does not keep {self._end} bytes")
                if self._end == 0:  # an empty file cannot be mapped
                    return np.empty(0, np.uint8)
                # Private pages, and so arrays that Numba takes as it takes those in memory.
                return np.asarray(np.memmap(self._file, np.uint8, "c"))
        except OSError as error:
            raise _no_room(self._folder, self._end, error) from error

    def close(self) -> None:
        """Drop the file, unless it is mapped."""
        self._file.close()


def _no_room(folder: Path, num_bytes: int, error: OSError) -> HotsetError:
    return HotsetError(
        f"{folder} has no room for {format_byte_size(num_bytes)} of step plans: {error.strerror}",
        hint="give another --slow-dir, or free disk space",
    )
