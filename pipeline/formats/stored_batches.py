"""Where the batches of shards are in their files, and whether the bytes that were read are theirs.

Reads ``checksums.bin``, whose format is in `batch_checksums`. Nothing of it is trusted: the table is checked
against the manifest when it is opened, and the record of a batch against the table and the schema when the
batch is read.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import ShardError, hint_to_rewrite
from ..folders.manifest import TABLE_FACT, FileEntry, Manifest
from ..folders.totals import ShardFacts, ShardSettings, ShardsTotals
from .batch_checksums import (
    BLOCK_SAMPLES,
    DIGEST_BYTES,
    HEADER_BYTES,
    ROW,
    BufferKind,
    BufferType,
    block_bounds,
    check_header,
    checksum_of_columns,
    checksum_of_table,
    columns_in,
    digests,
    padded,
    types_of_shards,
)

ShardFileEntry = tuple[FileEntry, ShardFacts]
_LENGTH_BYTES = 8


class DamagedBatchError(ShardError):
    """Bytes of a batch that were read are not those that were sealed."""


class StoredBuffer(NamedTuple):
    """One buffer of a batch."""

    type: BufferType
    start: int
    """Its position in the body of the batch."""
    num_bytes: int
    checksums: int
    """Position of those of its blocks in the record of the batch."""
    bounds: Sequence[int]
    """Where its blocks begin in it, and its end with the padding; empty for elements, which offsets cut."""


class BatchLayout:
    """The buffers of a batch in its body, by column and kind.

    Raises:
        ValueError: a batch of so many samples has no such buffers.
    """

    def __init__(self, types: Sequence[BufferType], num_samples: int, lengths: Sequence[int]) -> None:
        self.num_samples = num_samples
        self.buffers: dict[tuple[str, BufferKind], StoredBuffer] = {}
        start, place = 0, _LENGTH_BYTES * len(types)
        for each, num_bytes in zip(types, lengths, strict=True):
            if not each.fits(num_samples, num_bytes):
                raise ValueError(f"{each.name} of {num_samples} samples has {num_bytes} bytes")
            is_cut = each.kind == "elements"
            bounds = () if is_cut else block_bounds(each, num_samples, num_bytes, None)
            self.buffers[each.column, each.kind] = StoredBuffer(each, start, num_bytes, place, bounds)
            start += padded(num_bytes)
            place += DIGEST_BYTES * each.num_blocks(num_samples, num_bytes)
        self.num_bytes = start
        """Bytes of the body."""
        self.record_bytes = place
        """Bytes of the record, which has the bytes of the buffers and the checksums of their blocks."""
        self.names = frozenset(each.column for each in types)

    def range_of(self, names: Collection[str]) -> tuple[int, int]:
        """Return the range of the body with the buffers of some columns."""
        found = [each for each in self.buffers.values() if each.type.column in names]
        return found[0].start, found[-1].start + padded(found[-1].num_bytes)


class StoredBatch(NamedTuple):
    """One batch in its file."""

    path: Path
    number: int
    start: int
    """Position of its body in the file."""
    layout: BatchLayout
    record: bytes

    def check(
        self, buffer: StoredBuffer, data: NDArray[np.uint8], bounds: Sequence[int], first_block: int = 0
    ) -> None:
        """Check some blocks of a buffer.

        Args:
            buffer: the buffer.
            data: the bytes of the blocks.
            bounds: where each of them begins in the buffer, and where the last one ends.
            first_block: number of the first of them.

        Raises:
            DamagedBatchError: a block is not what was sealed.
        """
        first = bounds[0]
        found = digests(data.data, [bound - first for bound in bounds])
        place = buffer.checksums + first_block * DIGEST_BYTES
        wanted = self.record[place : place + len(found)]
        if found != wanted:
            self._refuse(buffer, found, wanted, first_block)

    def _refuse(self, buffer: StoredBuffer, found: bytes, wanted: bytes, first_block: int) -> NoReturn:
        starts = range(0, len(found), DIGEST_BYTES)
        pairs = [tuple(each[at : at + DIGEST_BYTES].hex() for each in (found, wanted)) for at in starts]
        number, (is_now, was) = next(
            (number, pair) for number, pair in enumerate(pairs, first_block) if pair[0] != pair[1]
        )
        # A bitmap is one block of all samples.
        num_samples = self.layout.num_samples
        first = number * BLOCK_SAMPLES
        last = num_samples if buffer.type.kind == "bitmap" else min(first + BLOCK_SAMPLES, num_samples)
        raise DamagedBatchError(
            f"{self.path} is damaged: batch {self.number}, {buffer.type.name} of samples {first} to "
            f"{last - 1}: the checksum is {is_now}, want {was}",
            hint=hint_to_rewrite(self.path.parent),
        )


class StoredBatches:
    """The batches of all files of shards.

    Raises:
        ShardError: the file of checksums is missing, damaged, or of other shards.
    """

    def __init__(self, shards: Manifest, entry: FileEntry, files: Sequence[ShardFileEntry]) -> None:
        self._path = shards.checked_path(entry)
        self._num_bytes = entry.num_bytes
        self._shards = shards
        totals = ShardsTotals.of(shards)
        self._types = {is_tagged: types_of_shards(totals, is_tagged=is_tagged) for is_tagged in (False, True)}
        self._layouts: dict[tuple[bool, int, bytes], BatchLayout] = {}
        self._has_lists = any(each.kind == "elements" for each in self._types[False])
        self._files = files
        self._first_rows = np.cumsum([0, *(facts.num_batches for _, facts in files)])
        batch_size = ShardSettings.of(shards).batch_size
        self._most_record_bytes = max(
            sum(_LENGTH_BYTES + DIGEST_BYTES * each.num_blocks(batch_size, 1) for each in types)
            for types in self._types.values()
        )
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ShardError(f"{self._path} cannot be read: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        try:
            self._table = self._read_table(entry)
        except (OSError, ValueError) as error:
            raise self._damage(str(error)) from error

    @classmethod
    def open(cls, shards: Manifest, files: Sequence[ShardFileEntry]) -> StoredBatches | None:
        """Open those of shards; None where shards have no checksums of batches, as older ones.

        Args:
            shards: the manifest.
            files: its files of samples with their facts, in its order.
        """
        found = [entry for entry in shards.files if entry.is_checksums]
        if len(found) > 1:
            raise ShardError(f"{shards.folder} has {len(found)} files of checksums, want 1")
        return cls(shards, found[0], files) if found else None

    def batch(self, file: int, index: int) -> StoredBatch:
        """Return where a batch is, and its checksums.

        Raises:
            ShardError: its checksums are damaged.
        """
        entry, facts = self._files[file]
        row = self._table[self._first_rows[file] + index]
        kind = facts.kind == "evaluation", int(row["num_samples"])
        types = self._types[kind[0]]
        position = int(row["record"])
        try:
            # A damaged manifest could ask for all memory.
            most = min(self._most_record_bytes, self._num_bytes - position)
            data = os.pread(self._descriptor, most, position)
            # The layout follows from the bytes of the buffers; those without lists are few, and kept.
            key = (*kind, data[: _LENGTH_BYTES * len(types)])
            layout = self._layouts.get(key)
            if layout is None:
                layout = BatchLayout(types, kind[1], np.frombuffer(key[-1], "<u8").tolist())
                if layout.num_bytes != row["num_bytes"]:
                    raise ValueError(f"its buffers have {layout.num_bytes} bytes, want {row['num_bytes']}")
            record = data[: layout.record_bytes]
            if xxhash.xxh3_128_digest(record) != row["checksum"].tobytes():
                raise ValueError("they have another checksum")
        except (OSError, ValueError) as error:
            raise self._damage(f"checksums of {entry.path}, batch {index}: {error}") from error
        if not self._has_lists:
            self._layouts[key] = layout
        return StoredBatch(self._shards.folder / entry.path, index, int(row["start"]), layout, record)

    def _read_table(self, entry: FileEntry) -> NDArray[Any]:
        """Read the table and check it; raises ValueError where it is not that of these files."""
        header = os.pread(self._descriptor, HEADER_BYTES, 0)
        num_batches = check_header(header, entry.num_bytes)
        if num_batches != self._first_rows[-1]:
            raise ValueError(f"it is of {num_batches} batches, want {self._first_rows[-1]}")
        rows = os.pread(self._descriptor, ROW.itemsize * num_batches, HEADER_BYTES)
        found = checksum_of_table(header, rows)
        if found != entry.facts[TABLE_FACT] or len(rows) != ROW.itemsize * num_batches:
            raise ValueError(f"the checksum of its table is {found}, want {entry.facts[TABLE_FACT]}")
        # Arrow's footers, which have the names, are not read.
        if columns_in(header) != checksum_of_columns(self._types[False]):
            raise ValueError("it is of other columns than the manifest's")
        table = np.frombuffer(rows, ROW)
        self._check_table(table, entry)
        return table

    def _check_table(self, table: NDArray[Any], own: FileEntry) -> None:
        # Of each batch: its file, its number there, and the samples that the manifest gives it.
        counts = np.diff(self._first_rows)
        batch_size = ShardSettings.of(self._shards).batch_size
        numbers = np.arange(len(table)) - np.repeat(self._first_rows[:-1], counts)
        samples_of_files = np.array([entry.num_samples for entry, _ in self._files], np.int64)
        left = np.repeat(samples_of_files, counts) - numbers * batch_size
        bytes_of_files = np.repeat(np.array([entry.num_bytes for entry, _ in self._files], np.int64), counts)
        is_tagged = np.array([facts.kind == "evaluation" for _, facts in self._files], np.bool_)
        buffers = np.where(is_tagged, *(len(self._types[tagged]) for tagged in (True, False)))
        # Sums of unsigned numbers wrap, so each number is compared before it is added to another.
        starts, sizes, records = (table[name] for name in ("start", "num_bytes", "record"))
        most = bytes_of_files.astype(np.uint64)
        is_inside = (starts <= most) & (sizes <= most)
        is_inside &= (starts + sizes <= most) & (starts % np.uint64(8) == 0) & (records < own.num_bytes)
        is_right = is_inside & (left > 0) & (table["num_samples"] == np.minimum(left, batch_size))
        is_right &= table["num_buffers"] == np.repeat(buffers, counts)
        # Batches follow one another in their file.
        ends = starts + sizes
        is_right[1:] &= (numbers[1:] == 0) | (starts[1:] >= ends[:-1])
        if not is_right.all():
            wrong = int(np.flatnonzero(~is_right)[0])
            file = int(np.searchsorted(self._first_rows, wrong, side="right")) - 1
            raise ValueError(f"it is not of batch {numbers[wrong]} of {self._files[file][0].path}")

    def _damage(self, fault: str) -> ShardError:
        return ShardError(f"{self._path} is damaged: {fault}", hint=hint_to_rewrite(self._shards.folder))
