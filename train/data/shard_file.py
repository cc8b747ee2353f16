"""Reads batches of one shard file: each batch is read into memory and wrapped by torch without a copy.

Files are read and not mapped: where another program cuts a mapped file short, the next access kills the
process without a message. A read that ends early, or a file with another time of change, is an error that
names the file. Files stay open, so that one that is removed or replaced is read to its end as it was.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ShardError, hint_to_rewrite
from ...pipeline.folders.manifest import FileEntry, ShardFacts
from ...pipeline.formats.arrow_files import damage_named
from .batch import Batch, FeatureBags
from .unchanged_file import Chunks, UnchangedFile, view_of

_FAULT = "cannot be read"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of shards, as their manifest has them."""

    num_dense: int
    num_one_hot: int
    multi_hot: tuple[str, ...]
    """Names of the features with a column of their own."""


class ShardFile:
    """One Arrow IPC file; every array of a batch is a view of the memory that the batch was read into."""

    def __init__(self, path: Path, entry: FileEntry, facts: ShardFacts) -> None:
        self.path = path
        self.entry = entry
        self.facts = facts
        self._readers = threading.local()
        with damage_named(path, ShardError, _FAULT):
            self._file = UnchangedFile(path)
            num_batches = self._reader().num_record_batches
        if num_batches != facts.num_batches:
            raise ShardError(
                f"{path} has {num_batches} batches, want {facts.num_batches}",
                hint=hint_to_rewrite(path.parent),
            )

    def read(self, index: int, columns: Columns, *, is_hot_only: bool) -> Batch:
        """Read batch ``index``; raises ShardError where the columns are not those of a shard."""
        with damage_named(self.path, ShardError, _FAULT):
            batch, chunks = self._get_batch(index)
            # The file may be anything: its structure is checked before its columns are, and these before
            # values.
            batch.validate()
            names = set(batch.schema.names)
            label_B = _array(batch, chunks, "label", pa.float32())
            is_hot_B = _array(batch, chunks, "is_hot", pa.uint8()) if "is_hot" in names else None
            dense_BK = _matrix(batch, chunks, "dense", pa.float32(), columns.num_dense)
            ids_BF = np.empty((len(batch), 0), np.int32)
            if columns.num_one_hot or "ids" in names:
                ids_BF = _matrix(batch, chunks, "ids", pa.int32(), columns.num_one_hot)
            bags = tuple(_bags(batch, chunks, name) for name in columns.multi_hot)
            # Values that would spoil a training without a word are refused here.
            refuse_wild_values(dense_BK, label_B, index)
        return Batch(
            torch.from_numpy(label_B), torch.from_numpy(dense_BK), ids_BF, is_hot_B, is_hot_only, bags
        )

    def _get_batch(self, index: int) -> tuple[Any, Chunks]:
        reader = self._reader()
        self._file.refuse_change()
        self._file.chunks.clear()
        return reader.get_batch(index), tuple(self._file.chunks)

    def _reader(self) -> Any:
        """The file as Arrow parsed it for this thread: others read other batches meanwhile."""
        if not hasattr(self._readers, "reader"):
            self._readers.reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
        return self._readers.reader


def refuse_wild_values(dense_BK: NDArray[np.float32], label_B: NDArray[np.float32], number: int) -> None:
    """Raise ValueError for values that make the loss nan some steps later, where nothing tells their file."""
    if not np.isfinite(dense_BK).all():
        raise ValueError(f"a dense value of batch {number} is not finite")
    if not ((label_B == 0) | (label_B == 1)).all():
        raise ValueError(f"a label of batch {number} is neither 0 nor 1")


def _array(batch: Any, chunks: Chunks, name: str, kind: Any) -> NDArray[Any]:
    column = batch.column(name)
    if column.type != kind:
        raise TypeError(f"column {name!r} is {column.type}, want {kind}")
    return view_of(chunks, column.buffers()[1], column.offset, len(column), kind)


def _matrix(batch: Any, chunks: Chunks, name: str, kind: Any, width: int) -> NDArray[Any]:
    column = batch.column(name)
    if column.type != pa.list_(kind, width):
        raise TypeError(f"column {name!r} is {column.type}, want {pa.list_(kind, width)}")
    # An offset of the batch counts rows of the matrix; its values are one flat buffer.
    values = column.values.buffers()[1]
    matrix = view_of(chunks, values, column.offset * width, len(column) * width, kind)
    return matrix.reshape(len(column), width)


def _bags(batch: Any, chunks: Chunks, name: str) -> FeatureBags:
    column = batch.column(name)
    if column.type != pa.list_(pa.int32()):
        raise TypeError(f"column {name!r} is {column.type}, want {pa.list_(pa.int32())}")
    offsets = view_of(chunks, column.buffers()[1], column.offset, len(column) + 1, pa.int32())
    # A list column may begin in the middle of its values; offsets are checked before they are used to
    # read.
    first, last = int(offsets[0]), int(offsets[-1])
    if first < 0 or np.any(np.diff(offsets) < 0) or last > len(column.values):
        raise ValueError(f"the offsets of {name!r} are out of order")
    values = column.values
    ids_N = view_of(chunks, values.buffers()[1], values.offset + first, last - first, pa.int32())
    return FeatureBags(offsets - offsets[0] if first else offsets, ids_N)
