"""Reads batches of one shard file into memory, which torch wraps without a copy.

Files are read, not mapped: where another program cuts a mapped file short, the next access kills the process
without a message. A read that ends early, or a file whose modification time changed, is an error that names
the file. Files stay open, so that one that is removed or replaced is read to its end as it was. A process may
have few files open, and a large log has thousands of shards, so the least recently read files are closed, and
opened again when they are read.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ShardError, hint_to_rewrite
from ...pipeline.folders.manifest import FileEntry
from ...pipeline.folders.totals import ShardFacts
from ...pipeline.formats.arrow_files import damage_named, numpy_type
from ...pipeline.formats.sample_columns import is_there, type_of
from ...pipeline.schema.schema import GROUP, LABEL, WEIGHT
from .batch import Batch, FeatureBags

_ALIGNMENT = 64
Chunks = tuple[NDArray[np.uint8], ...]
"""The bytes of a file that were read for one batch."""


class _Cursor(threading.local):
    """Where a thread reads a file, and what it has read."""

    def __init__(self) -> None:
        self.position = 0
        self.chunks: list[NDArray[np.uint8]] = []
        """Blocks that were read since the list was emptied; Arrow's buffers are in these."""


class UnchangedFile:
    """The bytes of a file as opened, for Arrow; raises if they changed.

    Mapped files kill the process where another program cuts them short. Arrow's files refuse names that are
    not UTF-8 and return memory that torch considers read-only. Each thread has a separate position.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = _open_files.add(path)
        self._close = weakref.finalize(self, _open_files.remove, self._number)
        with _open_files.descriptor(self._number) as descriptor:
            status = os.fstat(descriptor)
        self._num_bytes = status.st_size
        self._found = (status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)
        self.cursor = _Cursor()

    def refuse_change(self) -> None:
        """Raise ShardError where the file was written to since it was opened, or removed and closed."""
        try:
            with _open_files.descriptor(self._number) as descriptor:
                status = os.fstat(descriptor)
            found = (status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)
            how = "" if found == self._found else "changed"
        except FileNotFoundError:
            how = "removed"
        if how:
            raise ShardError(
                f"{self._path} was {how} by another program while it was in use",
                hint=f"{hint_to_rewrite(self._path.parent)}, and leave it alone while it is trained on",
            )

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def close(self) -> None:
        self._close()

    def tell(self) -> int:
        return self.cursor.position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.cursor.position, os.SEEK_END: self._num_bytes}[whence]
        self.cursor.position = base + offset
        return self.cursor.position

    def read(self, num_bytes: int) -> NDArray[np.uint8]:
        """Read bytes into new memory, at most those that the file has."""
        # Never more than the file has: a damaged file could request all memory.
        num_bytes = max(0, min(num_bytes, self._num_bytes - self.cursor.position))
        # Aligned as in the file, whatever the allocator gives: libraries may order sums by alignment.
        memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        start = (self.cursor.position - memory.ctypes.data) % _ALIGNMENT
        chunk = memory[start : start + num_bytes]
        num_read = 0
        if num_bytes:
            with suppress(FileNotFoundError), _open_files.descriptor(self._number) as descriptor:
                num_read = os.preadv(descriptor, [chunk.data], self.cursor.position)
        # A file that was cut short meanwhile, or is gone, is named as changed; anything else is an error of
        # the disk.
        if num_read != num_bytes:
            self.refuse_change()
            raise OSError(f"{num_read} of {num_bytes} bytes could be read")
        self.cursor.position += num_bytes
        self.cursor.chunks.append(chunk)
        return chunk


class _OpenFiles:
    """Open files by number, the least recently read closed first.

    At most half of what the process may open are open, and at least one.
    """

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
    """Return values ``first`` to ``first + count`` of an Arrow buffer that was read.

    Raises:
        ValueError: the buffer is too short, or is elsewhere in memory.
    """
    dtype = numpy_type(kind)
    if count == 0:
        return np.empty(0, dtype)
    # The buffer's position in what was read, checked against both: a damaged file may point anywhere.
    for chunk in chunks:
        start = buffer.address - chunk.ctypes.data + first * dtype.itemsize
        stop = start + count * dtype.itemsize
        if start >= 0 and stop <= chunk.size and first + count <= buffer.size // dtype.itemsize:
            return chunk[start:stop].view(dtype)
    raise ValueError(f"a buffer of {buffer.size} bytes does not hold {count} values of {dtype}")


_FAULT = "cannot be read"
HAS_GROUP = "has_group"
"""Entry of a batch next to its groups: whether a sample has one."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of shards, as their manifest has them."""

    num_dense: int
    num_one_hot: int
    multi_hot: tuple[str, ...]
    """Names of the features that have a separate column."""
    of_samples: tuple[str, ...] = ()
    """Names of the columns of samples besides the label."""
    may_lack_label: bool = False
    numbers: tuple[str, ...] = ()
    """Names of the columns of labels that are any number."""


class ShardFile:
    """One Arrow IPC file, read batch by batch into the arrays' own memory."""

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
            reader = self._reader()
            self._file.refuse_change()
            self._file.cursor.chunks.clear()
            batch, chunks = reader.get_batch(index), tuple(self._file.cursor.chunks)
            # The file may be anything: its structure is checked before its columns are, and these before
            # values.
            batch.validate()
            names = set(batch.schema.names)
            label_B = _array(batch, chunks, LABEL, pa.float32())
            if columns.may_lack_label:
                label_B = _with_gaps(batch, LABEL, label_B)
            is_hot_B = _array(batch, chunks, "is_hot", pa.uint8()) if "is_hot" in names else None
            dense_BK = _array(batch, chunks, "dense", pa.float32(), columns.num_dense)
            ids_BF = np.empty((len(batch), 0), np.int32)
            if columns.num_one_hot or "ids" in names:
                ids_BF = _array(batch, chunks, "ids", pa.int32(), columns.num_one_hot)
            bags = tuple(_bags(batch, chunks, name) for name in columns.multi_hot)
            # Values that would spoil a training without a word are refused here.
            are_numbers = LABEL in columns.numbers
            refuse_wild_values(
                dense_BK, label_B, index, may_lack_label=columns.may_lack_label, are_numbers=are_numbers
            )
            of_samples = _of_samples(batch, chunks, columns, index) if columns.of_samples else {}
        return Batch(
            torch.from_numpy(label_B),
            torch.from_numpy(dense_BK),
            ids_BF,
            is_hot_B,
            is_hot_only,
            bags,
            of_samples,
        )

    def _reader(self) -> Any:
        """The file as Arrow parsed it for this thread: others read other batches meanwhile."""
        if not hasattr(self._readers, "reader"):
            self._readers.reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
        return self._readers.reader


def refuse_wild_values(
    dense_BK: NDArray[np.float32],
    label_B: NDArray[np.float32],
    number: int,
    *,
    may_lack_label: bool = False,
    are_numbers: bool = False,
) -> None:
    """Raise ValueError here for values that would make a later loss NaN."""
    if not np.isfinite(dense_BK).all():
        raise ValueError(f"a dense value of batch {number} is not finite")
    if are_numbers:
        if np.isinf(label_B).any():
            raise ValueError(f"a label of batch {number} is infinite")
        return
    is_right_B = (label_B == 0) | (label_B == 1)
    if may_lack_label:
        is_right_B |= np.isnan(label_B)
    if not is_right_B.all():
        raise ValueError(f"a label of batch {number} is neither 0 nor 1")


def _with_gaps(batch: Any, name: str, values_B: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values with NaN where the column has none, whatever its memory has there."""
    column = batch.column(name)
    return np.where(is_there(column), values_B, np.float32(np.nan)) if column.null_count else values_B


def _of_samples(batch: Any, chunks: Chunks, columns: Columns, number: int) -> dict[str, NDArray[Any]]:
    """Return `Batch.of_samples`; raises ValueError for a label or a weight that is none."""
    found: dict[str, NDArray[Any]] = {}
    for name in columns.of_samples:
        found[name] = _array(batch, chunks, name, type_of(name))
        if name == GROUP:
            found[HAS_GROUP] = is_there(batch.column(name))
        elif name == WEIGHT:
            if not ((found[name] >= 0) & np.isfinite(found[name])).all():
                raise ValueError(f"a weight of batch {number} is not a number of 0 or more")
        else:
            found[name] = _with_gaps(batch, name, found[name])
            no_values = np.empty((0, 0), np.float32)
            are_numbers = name in columns.numbers
            refuse_wild_values(no_values, found[name], number, may_lack_label=True, are_numbers=are_numbers)
    return found


def _array(batch: Any, chunks: Chunks, name: str, kind: Any, width: int | None = None) -> NDArray[Any]:
    """Return the values of a column, or with a ``width`` those of its lists as a matrix."""
    column = batch.column(name)
    wanted = kind if width is None else pa.list_(kind, width)
    if column.type != wanted:
        raise TypeError(f"column {name!r} is {column.type}, want {wanted}")
    if width is None:
        return view_of(chunks, column.buffers()[1], column.offset, len(column), kind)
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
