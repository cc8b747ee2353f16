"""One shard file as batches: a memory-mapped Arrow file, wrapped by torch without a copy.

Files are mapped copy-on-write, which makes them writable to torch (it warns of read-only arrays) and
never writes a byte back. A batch costs a few dozen microseconds to wrap; what it holds is read from the
page cache when it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ShardError
from ...pipeline.folders.manifest import FileEntry, first_line
from ...pipeline.formats.arrow_files import DAMAGE
from .batch import Bags, Batch

PACK_AGAIN = "the shards are damaged: run `hotset pack` again"


@dataclass(frozen=True, slots=True)
class Columns:
    """What the shards' manifest says of their columns."""

    num_dense: int
    num_one_hot: int
    multi_hot: tuple[str, ...]
    """Names of the features with a column of their own."""


class ShardFile:
    """One Arrow IPC file, mapped; every array it gives is a view of the map."""

    def __init__(self, path: Path, entry: FileEntry) -> None:
        self.path, self.entry = path, entry
        try:
            self._map = np.memmap(path, np.uint8, mode="c")
            self._reader = pa.ipc.open_file(pa.py_buffer(self._map))
            num_batches = self._reader.num_record_batches
        except DAMAGE as error:
            raise _damaged(path, error) from error
        if num_batches != entry.facts.get("batches"):
            raise ShardError(
                f"{path} has {num_batches} batches, want {entry.facts.get('batches')}", hint=PACK_AGAIN
            )

    def read(self, index: int, columns: Columns, *, is_hot_only: bool) -> Batch:
        """Wrap batch ``index``; raises ShardError where the columns are not those of a shard."""
        try:
            batch = self._reader.get_batch(index)
            batch.validate()
            names = set(batch.schema.names)
            label_B = self._array(batch, "label", pa.float32())
            is_hot_B = self._array(batch, "is_hot", pa.uint8()) if "is_hot" in names else None
            dense_BK = self._matrix(batch, "dense", pa.float32(), columns.num_dense)
            ids_BF = np.empty((len(batch), 0), np.int32)
            if columns.num_one_hot or "ids" in names:
                ids_BF = self._matrix(batch, "ids", pa.int32(), columns.num_one_hot)
            bags = tuple(self._bags(batch, name) for name in columns.multi_hot)
        except DAMAGE as error:
            raise _damaged(self.path, error) from error
        label, dense = torch.from_numpy(label_B), torch.from_numpy(dense_BK)
        return Batch(label, dense, ids_BF, is_hot_B, is_hot_only, bags)

    def _array(self, batch: Any, name: str, kind: Any) -> NDArray[Any]:
        column = batch.column(name)
        if column.type != kind:
            raise TypeError(f"column {name!r} is {column.type}, want {kind}")
        return self._view(column.buffers()[1], column.offset, len(column), kind)

    def _matrix(self, batch: Any, name: str, kind: Any, width: int) -> NDArray[Any]:
        column = batch.column(name)
        if column.type != pa.list_(kind, width):
            raise TypeError(f"column {name!r} is {column.type}, want {pa.list_(kind, width)}")
        first, count = column.offset * width, len(column) * width
        return self._view(column.values.buffers()[1], first, count, kind).reshape(len(column), width)

    def _bags(self, batch: Any, name: str) -> Bags:
        column = batch.column(name)
        if column.type != pa.list_(pa.int32()):
            raise TypeError(f"column {name!r} is {column.type}, want {pa.list_(pa.int32())}")
        offsets = self._view(column.buffers()[1], column.offset, len(column) + 1, pa.int32())
        first, last = int(offsets[0]), int(offsets[-1])
        if first < 0 or np.any(np.diff(offsets) < 0) or last > len(column.values):
            raise ValueError(f"the offsets of {name!r} are out of order")
        values = column.values
        ids_N = self._view(values.buffers()[1], values.offset + first, last - first, pa.int32())
        return Bags(offsets - offsets[0] if first else offsets, ids_N)

    def _view(self, buffer: Any, first: int, count: int, kind: Any) -> NDArray[Any]:
        dtype = np.dtype(kind.to_pandas_dtype())
        if count == 0:
            return np.empty(0, dtype)
        start = buffer.address - self._map.ctypes.data + first * dtype.itemsize
        stop = start + count * dtype.itemsize
        if start < 0 or stop > self._map.size or first + count > buffer.size // dtype.itemsize:
            raise ValueError(f"a buffer of {buffer.size} bytes holds no {count} values of {dtype}")
        return np.asarray(self._map[start:stop]).view(dtype)


def _damaged(path: Path, error: Exception) -> ShardError:
    return ShardError(f"{path} cannot be read: {first_line(error)}", hint=PACK_AGAIN)
