"""Reads batches of one shard file: each batch is read into memory and wrapped by torch without a copy.

Files are read and not mapped: where another program cuts a mapped file short, the next access kills the
process without a message. A read that ends early, or a file with another time of change, is an error that
names the file. Files stay open, so that one that is removed or replaced is read to its end as it was.
"""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, ShardError, first_line, refuse_system_fault
from ...pipeline.folders.file_facts import ShardFacts
from ...pipeline.folders.manifest import FileEntry
from ...pipeline.formats.arrow_files import DAMAGE
from ...pipeline.stage_commands import hint_to_rewrite
from .batch import Batch, FeatureBags

_ALIGNMENT = 64
_Chunks = tuple[NDArray[np.uint8], ...]
"""The bytes of a file that were read for one batch."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of shards, as their manifest has them."""

    num_dense: int
    num_one_hot: int
    multi_hot: tuple[str, ...]
    """Names of the features with a column of their own."""


class _UnchangedFile:
    """The bytes of a file as it was when it was opened, for Arrow to read; whatever else is found raises.

    Arrow's own files refuse names that are not UTF-8, and give memory that torch takes for read-only.
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


class ShardFile:
    """One Arrow IPC file; every array of a batch is a view of the memory that the batch was read into."""

    def __init__(self, path: Path, entry: FileEntry, facts: ShardFacts) -> None:
        self.path = path
        self.entry = entry
        self.facts = facts
        self._reading = threading.Lock()
        try:
            self._file = _UnchangedFile(path)
            self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
            num_batches = self._reader.num_record_batches
        except HotsetError:
            raise
        except DAMAGE as error:
            refuse_system_fault(path, error)
            raise _damaged(path, error) from error
        if num_batches != facts.num_batches:
            raise ShardError(
                f"{path} has {num_batches} batches, want {facts.num_batches}",
                hint=hint_to_rewrite(path.parent),
            )

    def read(self, index: int, columns: Columns, *, is_hot_only: bool) -> Batch:
        """Read batch ``index``; raises ShardError where the columns are not those of a shard."""
        try:
            batch, chunks = self._get_batch(index)
            batch.validate()
            names = set(batch.schema.names)
            label_B = _array(batch, chunks, "label", pa.float32())
            is_hot_B = _array(batch, chunks, "is_hot", pa.uint8()) if "is_hot" in names else None
            dense_BK = _matrix(batch, chunks, "dense", pa.float32(), columns.num_dense)
            ids_BF = np.empty((len(batch), 0), np.int32)
            if columns.num_one_hot or "ids" in names:
                ids_BF = _matrix(batch, chunks, "ids", pa.int32(), columns.num_one_hot)
            bags = tuple(_bags(batch, chunks, name) for name in columns.multi_hot)
        except HotsetError:
            raise
        except DAMAGE as error:
            refuse_system_fault(self.path, error)
            raise _damaged(self.path, error) from error
        return Batch(
            torch.from_numpy(label_B), torch.from_numpy(dense_BK), ids_BF, is_hot_B, is_hot_only, bags
        )

    def _get_batch(self, index: int) -> tuple[Any, _Chunks]:
        # Arrow asks for one range after another, while another thread may read another batch.
        with self._reading:
            self._file.refuse_change()
            self._file.chunks.clear()
            return self._reader.get_batch(index), tuple(self._file.chunks)


def _array(batch: Any, chunks: _Chunks, name: str, kind: Any) -> NDArray[Any]:
    column = batch.column(name)
    if column.type != kind:
        raise TypeError(f"column {name!r} is {column.type}, want {kind}")
    return _view(chunks, column.buffers()[1], column.offset, len(column), kind)


def _matrix(batch: Any, chunks: _Chunks, name: str, kind: Any, width: int) -> NDArray[Any]:
    column = batch.column(name)
    if column.type != pa.list_(kind, width):
        raise TypeError(f"column {name!r} is {column.type}, want {pa.list_(kind, width)}")
    # An offset of the batch counts rows of the matrix; its values are one flat buffer.
    values = column.values.buffers()[1]
    matrix = _view(chunks, values, column.offset * width, len(column) * width, kind)
    return matrix.reshape(len(column), width)


def _bags(batch: Any, chunks: _Chunks, name: str) -> FeatureBags:
    column = batch.column(name)
    if column.type != pa.list_(pa.int32()):
        raise TypeError(f"column {name!r} is {column.type}, want {pa.list_(pa.int32())}")
    offsets = _view(chunks, column.buffers()[1], column.offset, len(column) + 1, pa.int32())
    # A list column may begin in the middle of its values; offsets are checked before they are used to
    # read.
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or np.any(np.diff(offsets) < 0) or last > len(column.values):
        raise ValueError(f"the offsets of {name!r} are out of order")
    values = column.values
    ids_N = _view(chunks, values.buffers()[1], values.offset + first, last - first, pa.int32())
    return FeatureBags(offsets - offsets[0] if first else offsets, ids_N)


def _view(chunks: _Chunks, buffer: Any, first: int, count: int, kind: Any) -> NDArray[Any]:
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


def _damaged(path: Path, error: Exception) -> ShardError:
    return ShardError(f"{path} cannot be read: {first_line(error)}", hint=hint_to_rewrite(path.parent))
