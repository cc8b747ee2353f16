"""Reads batches of one shard file into memory, which torch wraps without a copy.

Files are read, not mapped: where another program cuts a mapped file short, the next access kills the process
without a message. A read that ends early, or a file whose modification time changed, is an error that names
the file. Files stay open, so that one that is removed or replaced is read to its end as it was. A process may
have few files open, and a large log has thousands of shards: only the first ones are opened before they are
read, and the least recently read ones are closed, and opened again when they are read.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from ...pipeline.errors import ShardError, hint_to_rewrite
from ...pipeline.folders.manifest import FileEntry
from ...pipeline.folders.totals import ShardFacts
from ...pipeline.formats.arrow_files import numpy_type, type_of
from ...pipeline.formats.batch_checksums import (
    BLOCK_SAMPLES,
    StoredBatch,
    StoredBatches,
    StoredBuffer,
    block_bounds,
)
from ...pipeline.schema.schema import GROUP, LABEL, WEIGHT
from .batch import Batch, FeatureBags, LookupsOfBatch

_ALIGNMENT = 64
FileState = tuple[int, int, int, int]
"""Bytes, time of the last write (ns), device and inode of a file."""


def state_of(status: os.stat_result) -> FileState:
    return (status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)


class UnchangedFile:
    """The bytes of a file as opened; raises if they changed.

    Mapped files kill the process where another program cuts them short.

    Args:
        path: of the file.
        found: its state when the shards were opened; None: its state now.
    """

    def __init__(self, path: Path, found: FileState | None = None) -> None:
        self._path = path
        try:
            self._number, state = _open_files.add(path)
        except FileNotFoundError:
            if found is None:
                raise
            raise self._fault("removed") from None
        self._close = weakref.finalize(self, _open_files.remove, self._number)
        self._found = found or state

    def refuse_change(self) -> None:
        """Raise ShardError where the file was written to since it was opened, or removed and closed."""
        try:
            with _open_files.descriptor(self._number) as descriptor:
                status = os.fstat(descriptor)
        except FileNotFoundError:
            raise self._fault("removed") from None
        if (status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino) != self._found:
            raise self._fault("changed")

    def _fault(self, how: str) -> ShardError:
        return ShardError(
            f"{self._path} was {how} by another program while it was in use",
            hint=f"{hint_to_rewrite(self._path.parent)}, and leave it alone while it is trained on",
        )

    def read_at(self, position: int, num_bytes: int) -> NDArray[np.uint8]:
        """Read bytes that the file has into new memory."""
        # Aligned as in the file, whatever the allocator gives: libraries may order sums by alignment.
        memory = np.empty(num_bytes + _ALIGNMENT, np.uint8)
        start = (position - memory.ctypes.data) % _ALIGNMENT
        chunk = memory[start : start + num_bytes]
        num_read = 0
        if num_bytes:
            with suppress(FileNotFoundError), _open_files.descriptor(self._number) as descriptor:
                num_read = os.preadv(descriptor, [chunk.data], position)
        # A file that was cut short meanwhile, or is gone, is named as changed; anything else is an error of
        # the disk.
        if num_read != num_bytes:
            self.refuse_change()
            raise OSError(f"{num_read} of {num_bytes} bytes could be read")
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

    def add(self, path: Path) -> tuple[int, FileState]:
        """Open a file; return its number and its state."""
        with self._lock:
            self._close_least_recent()
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._next += 1
            self._paths[self._next] = path
            self._descriptors[self._next] = descriptor
            return self._next, state_of(os.fstat(descriptor))

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
        while len(self._descriptors) >= most:
            idle = (number for number in self._descriptors if not self._readers[number])
            number = next(idle, None)
            if number is None:
                return
            os.close(self._descriptors.pop(number))


_open_files = _OpenFiles()


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


class StoredArrays(NamedTuple):
    """The columns of one batch, or of some of its samples, as arrays."""

    read: Callable[[int, int], NDArray[np.uint8]]
    """Returns bytes of the file from a position on, so many."""
    stored: StoredBatch
    names: Collection[str]
    first: int
    """The first of the samples that are wanted; their blocks alone are read."""
    num_samples: int
    chunk: NDArray[np.uint8] | None
    """Bytes of the body that were read already; None: buffers are read one by one."""
    chunk_start: int
    """Where they begin in the body."""
    is_hashed: bool
    """Whether the bytes of the file are known to be right."""

    def values(self, name: str, kind: DTypeLike, width: int | None = None) -> NDArray[Any]:
        buffer = self.stored.layout.buffers[name, "values"]
        dtype = np.dtype(kind)
        row_bytes = buffer.type.width
        assert row_bytes == dtype.itemsize * (1 if width is None else width), "the manifest has both"
        shape = (self.num_samples,) if width is None else (self.num_samples, width)
        if not row_bytes or not self.num_samples:
            return np.empty(shape, dtype)
        # Whole blocks are read and verified, and cut to the samples.
        first = self.first // BLOCK_SAMPLES
        stop = -(-(self.first + self.num_samples) // BLOCK_SAMPLES)
        data = self._blocks(buffer, buffer.bounds[first : stop + 1], first)
        start = (self.first - first * BLOCK_SAMPLES) * row_bytes
        return data[start : start + self.num_samples * row_bytes].view(dtype).reshape(shape)

    def is_there(self, name: str) -> NDArray[np.bool_] | None:
        buffer = self.stored.layout.buffers[name, "bitmap"]
        if not buffer.num_bytes:
            return None
        bits = np.unpackbits(self._blocks(buffer, buffer.bounds), bitorder="little")
        return bits[self.first :][: self.num_samples].astype(np.bool_)

    def bags(self, name: str) -> FeatureBags:
        assert self.num_samples == self.stored.layout.num_samples, "lists are read whole"
        offsets, elements = (
            self.stored.layout.buffers[name, "offsets"],
            self.stored.layout.buffers[name, "elements"],
        )
        data = self._blocks(offsets, offsets.bounds)
        offsets_B1 = data[: offsets.num_bytes].view(np.int32)
        num_elements = elements.num_bytes // elements.type.width
        check_offsets(name, offsets_B1, num_elements)
        # The blocks of elements are all of them: what pack writes has no other elements between lists.
        if offsets_B1[0] or offsets_B1[-1] != num_elements:
            raise ValueError(f"the offsets of {name!r} are not of {num_elements} elements")
        bounds = block_bounds(elements.type, self.num_samples, elements.num_bytes, offsets_B1)
        return FeatureBags(offsets_B1, self._blocks(elements, bounds)[: elements.num_bytes].view(np.int32))

    def _blocks(self, buffer: StoredBuffer, bounds: Sequence[int], first_block: int = 0) -> NDArray[np.uint8]:
        """Read contiguous blocks of a buffer, and verify them."""
        start, num_bytes = buffer.start + bounds[0], bounds[-1] - bounds[0]
        if self.chunk is None:
            data = self.read(self.stored.start + start, num_bytes)
        else:
            data = self.chunk[start - self.chunk_start :][:num_bytes]
        if not self.is_hashed:
            self.stored.check(buffer, data, bounds, first_block)
        return data


class ShardFile:
    """One Arrow IPC file, read batch by batch into the arrays' own memory.

    The file is neither parsed nor read before its first batch is, and what is read is verified, unless the
    file was hashed as a whole.
    """

    __slots__ = ("_file", "_found", "_number", "_stored", "entry", "facts", "folder", "is_hashed")

    def __init__(
        self,
        folder: Path,
        entry: FileEntry,
        facts: ShardFacts,
        status: os.stat_result,
        stored: StoredBatches,
        number: int,
    ) -> None:
        self.folder = folder
        self.entry = entry
        self.facts = facts
        self.is_hashed = False
        """Whether the file was hashed as a whole since it was opened."""
        self._stored = stored
        self._number = number
        self._found = state_of(status)
        self._file: UnchangedFile | None = None

    @property
    def path(self) -> Path:
        return self.folder / self.entry.path

    def open(self) -> UnchangedFile:
        """Return the open file, which is read as it is now even if it is removed.

        Raises:
            ShardError: it was removed since the shards were opened.
            OSError: it cannot be opened.
        """
        # Two threads may open it twice: one of the two is closed after its read.
        file = self._file
        if file is None:
            file = self._file = UnchangedFile(self.path, self._found)
        return file

    @property
    def verifies_reads(self) -> bool:
        """Whether a flipped byte is found when it is read, without hashing the file first."""
        return self._stored.are_sealed

    def read(
        self,
        index: int,
        columns: Columns,
        is_hot_only: bool,
        *,
        lookups: LookupsOfBatch | None = None,
        part: tuple[int, int] | None = None,
    ) -> Batch:
        """Read batch ``index``.

        Args:
            index: the batch.
            columns: those of the shards.
            is_hot_only: whether all its lookups are hot.
            lookups: those of the samples, where they were read already.
            part: the first and the last-plus-one sample that are wanted; None: all. With a part the lookups
                are given.

        Raises:
            ShardError: the bytes are not those that were sealed.
            Exception: one of `DAMAGE`; the columns are not those of a shard.
        """
        arrays = self._arrays(index, (), part)
        label_B = arrays.values(LABEL, np.float32)
        if columns.may_lack_label:
            label_B = with_gaps(arrays, LABEL, label_B)
        is_hot_B = arrays.values("is_hot", np.uint8) if "is_hot" in arrays.names else None
        dense_BK = arrays.values("dense", np.float32, columns.num_dense)
        ids = ids_of(arrays, columns, is_hot_only) if lookups is None else lookups
        # Values that would spoil a training without a word are refused here.
        are_numbers = LABEL in columns.numbers
        refuse_wild_values(
            dense_BK, label_B, index, may_lack_label=columns.may_lack_label, are_numbers=are_numbers
        )
        of_samples = columns_of_samples(arrays, columns, index) if columns.of_samples else {}
        return Batch(
            torch.from_numpy(label_B),
            torch.from_numpy(dense_BK),
            ids.ids_BF,
            is_hot_B,
            is_hot_only,
            ids.bags,
            of_samples,
        )

    def read_lookups(self, index: int, columns: Columns, is_hot_only: bool) -> LookupsOfBatch:
        """Read the lookups of batch ``index`` alone; raises as `read`."""
        return ids_of(self._arrays(index, ("ids", *columns.multi_hot), None), columns, is_hot_only)

    def _arrays(self, index: int, names: Sequence[str], part: tuple[int, int] | None) -> StoredArrays:
        """Return the arrays of a batch.

        Args:
            index: the batch.
            names: columns that will be asked for, which are contiguous; none: all of them.
            part: samples that will be; None: all of them.
        """
        file = self._file or self.open()
        file.refuse_change()
        stored = self._stored.batch(self._number, index)
        read, layout = file.read_at, stored.layout
        if part is not None:
            first, stop = part
            return StoredArrays(read, stored, layout.names, first, stop - first, None, 0, self.is_hashed)
        # Of a whole batch the buffers are one range of the file.
        start, stop = layout.range_of(names) if names else (0, layout.num_bytes)
        chunk = read(stored.start + start, stop - start)
        return StoredArrays(read, stored, layout.names, 0, layout.num_samples, chunk, start, self.is_hashed)


def check_offsets(name: str, offsets_B1: NDArray[np.int32], num_elements: int) -> None:
    """Raise ValueError where the offsets of lists are not such that one may read by them."""
    if offsets_B1[0] < 0 or np.any(np.diff(offsets_B1) < 0) or offsets_B1[-1] > num_elements:
        raise ValueError(f"the offsets of {name!r} are out of order")


def ids_of(arrays: StoredArrays, columns: Columns, is_hot_only: bool) -> LookupsOfBatch:
    """Return the lookups of a batch."""
    ids_BF = np.empty((arrays.num_samples, 0), np.int32)
    if columns.num_one_hot or "ids" in arrays.names:
        ids_BF = arrays.values("ids", np.int32, columns.num_one_hot)
    return LookupsOfBatch(ids_BF, tuple(map(arrays.bags, columns.multi_hot)), is_hot_only)


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


def with_gaps(arrays: StoredArrays, name: str, values_B: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return values with NaN where the column has none, whatever its memory has there."""
    has_value_B = arrays.is_there(name)
    return values_B if has_value_B is None else np.where(has_value_B, values_B, np.float32(np.nan))


def columns_of_samples(arrays: StoredArrays, columns: Columns, number: int) -> dict[str, NDArray[Any]]:
    """Return `Batch.of_samples`; raises ValueError for a label or a weight that is none."""
    found: dict[str, NDArray[Any]] = {}
    for name in columns.of_samples:
        found[name] = arrays.values(name, numpy_type(type_of(name)))
        if name == GROUP:
            has_group_B = arrays.is_there(name)
            found[HAS_GROUP] = np.ones(arrays.num_samples, np.bool_) if has_group_B is None else has_group_B
        elif name == WEIGHT:
            if not ((found[name] >= 0) & np.isfinite(found[name])).all():
                raise ValueError(f"a weight of batch {number} is not a number of 0 or more")
        else:
            found[name] = with_gaps(arrays, name, found[name])
            no_values = np.empty((0, 0), np.float32)
            are_numbers = name in columns.numbers
            refuse_wild_values(no_values, found[name], number, may_lack_label=True, are_numbers=are_numbers)
    return found
