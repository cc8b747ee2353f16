"""Temporary files of a stage, for large data or data of several processes.

They are in the ``.partial`` of the folder being written, so sealing removes them, and the next run overwrites
those of a killed one. Their mapped pages belong to the page cache and not to a process: they do not count as
the stage's memory, and all processes of a machine share them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ManifestError
from .output import Output
from .partial import PARTIAL

_mapped: dict[Path, NDArray[Any]] = {}
"""Arrays of `ArrayFile` that this process has mapped."""


@contextmanager
def spill_errors_explained(output: Output) -> Iterator[None]:
    """Raise ManifestError if the device has no space for spill files."""
    try:
        yield
    except OSError as error:
        raise ManifestError(
            f"{output.folder} has no space for spill files: {error.strerror or error}",
            hint="free disk space, or give more --memory; the same command resumes the run",
        ) from error


def array_in(room_bytes: int, output: Output, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return zeros: in memory if they fit in ``room_bytes``, else mapped from a nameless file of ``output``.

    Raises:
        ManifestError: the device has no room for them.
    """
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if num_bytes <= max(room_bytes, 0) or num_bytes == 0:
        return np.zeros(shape, dtype)
    with spill_errors_explained(output), tempfile.TemporaryFile(dir=output.folder / PARTIAL) as file:
        # All blocks are allocated now: writing to a mapped page that finds no block kills the process.
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        return np.asarray(np.memmap(file, dtype, "r+", shape=tuple(shape)))


class RunsFile:
    """A temporary file that one task appends arrays to, opened for each append: there may be thousands."""

    def __init__(self, output: Output, name: str) -> None:
        self._output = output
        self._path = output.temporary_path(name)
        self._is_begun = False

    def append(self, *arrays: NDArray[Any]) -> None:
        """Append arrays, one after another.

        Raises:
            ManifestError: the device is full.
        """
        # What a killed run left under this name is overwritten by the first call.
        with spill_errors_explained(self._output), self._path.open("ab" if self._is_begun else "wb") as file:
            for array in arrays:
                array.tofile(file)
        self._is_begun = True

    def map(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return everything appended as one array, read-only; it stays valid when the file is removed."""
        return np.asarray(np.memmap(self._path, dtype, "r"))

    def remove(self) -> None:
        """Remove the file."""
        self._path.unlink()


def write_shared_arrays(output: Output, name: str, arrays: Iterable[NDArray[Any]]) -> None:
    """Write arrays one after another to a file that tasks in other processes may read.

    Raises:
        ManifestError: the device has no room for them.
    """
    with spill_errors_explained(output):
        # Aside first: two workers may run the same task, see `output`.
        aside = output.temporary_path(f"{name}.tmp")
        with aside.open("wb") as file:
            for array in arrays:
                array.tofile(file)
        os.replace(aside, output.shared_path(name))


def read_shared_arrays(
    output: Output, name: str, dtype: DTypeLike, lengths: Iterable[int]
) -> Iterator[NDArray[Any]]:
    """Yield the arrays of `write_shared_arrays` one by one, given the length of each."""
    with output.shared_path(name).open("rb") as file:
        for length in lengths:
            yield np.fromfile(file, dtype, length)


def remove_shared(output: Output, name: str) -> None:
    """Remove a file of `write_shared_arrays`."""
    output.shared_path(name).unlink()


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """A large array that tasks in other processes read: a file that each process maps once.

    Sent along with every task it would be copied as often.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def write(cls, values: NDArray[Any], output: Output, name: str) -> ArrayFile:
        """Write ``values`` next to the files of ``output``, until the folder is sealed.

        Raises:
            ManifestError: the device is full.
        """
        path = output.temporary_path(name)
        with spill_errors_explained(output):
            values.tofile(path)
        return cls(path, values.shape, values.dtype.str)

    def open(self) -> NDArray[Any]:
        """Return the array, read-only; mapped once for all tasks of this process while its file exists."""
        if self.path not in _mapped:
            # A new table is opened after old ones were removed: drop their mappings, which hold disk space.
            for path in [path for path in _mapped if not path.exists()]:
                del _mapped[path]
            _mapped[self.path] = np.asarray(np.memmap(self.path, self.dtype, "r", shape=self.shape))
        return _mapped[self.path]

    def remove(self) -> None:
        """Remove the file; no task opens it any more."""
        self.path.unlink(missing_ok=True)
