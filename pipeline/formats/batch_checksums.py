"""Checksums of the batches of shards: ``checksums.bin`` next to them, 0.3 % of their bytes.

A reader verifies the bytes that it reads when it reads them, and needs no footer to find a batch: the file
has position, bytes and checksum (xxh3-128) of the body of each batch, and checksums of its buffers in blocks
of 128 samples. The manifest pins the table of batches, the table pins the record of each batch, and the
record pins the bytes, so nothing is read that is not checked, and no file is read whole. All numbers are
little-endian:

    header    magic, version, samples of a block, number of batches, bytes of the file, checksum of the
              columns; checksum of these and of the table
    table     for each batch, in the order of the manifest's files: position and bytes of its body in its
              file, samples, buffers, position of its record, checksum of its record
    records   for each batch: bytes of each buffer, then the checksums of its blocks, buffer by buffer

A block is the bytes of 128 samples in one buffer: 128 values, or 128 offsets of lists, or the elements of 128
lists; a bitmap of missing values is one block. The last block has the rest of the buffer, with the bytes up
to the next one. A body begins after the header of its Arrow message, and has the buffers that are not empty,
each padded to 8 bytes.

Nothing of the file is trusted when it is read: the table is checked against the manifest when it is opened,
and the record of a batch against the table and the schema when the batch is read.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..errors import ShardError, hint_to_rewrite
from ..folders.manifest import TABLE_FACT, FileEntry, HashedFile, JsonRecord, Manifest
from ..folders.totals import ShardFacts, ShardSettings, ShardsTotals, multi_hot, one_hot
from ..schema.schema import LABEL
from .arrow_files import damage_named, map_file, type_of

if TYPE_CHECKING:
    from ..folders.output import Output


CHECKSUMS = "checksums.bin"
BLOCK_SAMPLES = 128
_MAGIC = b"hotsums\0"
_VERSION = 1
IS_HOT = "is_hot"
"""The column of evaluation files alone."""
DIGEST_BYTES = 16
_ALIGNMENT = 8
_OFFSET_BYTES = 4
HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("block_samples", "<u4"),
        ("num_batches", "<u8"),
        ("num_bytes", "<u8"),
        ("columns", "V16"),
    ]
)
ROW = np.dtype(
    [
        ("start", "<u8"),
        ("num_bytes", "<u8"),
        ("num_samples", "<u4"),
        ("num_buffers", "<u4"),
        ("record", "<u8"),
        ("checksum", "V16"),
    ]
)
HEADER_BYTES = HEADER.itemsize + DIGEST_BYTES
"""Bytes of the header with its checksum; the table follows."""

BufferKind = Literal["bitmap", "values", "offsets", "elements"]


class BufferType(NamedTuple):
    """One buffer of every batch of a kind of file."""

    column: str
    kind: BufferKind
    width: int
    """Bytes of a sample, or of an element of its list; 0 for a bitmap."""

    @property
    def name(self) -> str:
        """What the buffer holds, for messages."""
        parts = {"bitmap": "missing values of ", "offsets": "offsets of ", "elements": "elements of "}
        return f"{parts.get(self.kind, '')}{self.column}"

    def num_blocks(self, num_samples: int, num_bytes: int) -> int:
        """Return the number of blocks of so many bytes."""
        if self.kind == "bitmap":
            return int(num_bytes > 0)
        return -(-num_samples // BLOCK_SAMPLES) if self.width else 0

    def fits(self, num_samples: int, num_bytes: int) -> bool:
        """Return whether a batch of so many samples may have so many bytes here."""
        match self.kind:
            case "bitmap":
                return num_bytes in (0, -(-num_samples // 8))
            case "values":
                return num_bytes == num_samples * self.width
            case "offsets":
                return num_bytes == (num_samples + 1) * self.width
            case "elements":
                return num_bytes % self.width == 0


def shard_schema(
    *,
    has_label: bool,
    sample_columns: Sequence[str],
    num_dense: int,
    num_one_hot: int,
    lists: Sequence[str],
    is_tagged: bool,
) -> Any:
    """Return the Arrow schema of a file of shards; its order of columns is part of the format.

    Args:
        has_label: whether the log has labels.
        sample_columns: names of the columns of samples besides the label.
        num_dense: number of dense features.
        num_one_hot: number of features that every sample looks up once.
        lists: names of the others.
        is_tagged: whether batches have the column ``is_hot``.
    """
    fields = [pa.field(LABEL, pa.float32())] if has_label else []
    fields += [pa.field(name, type_of(name)) for name in sample_columns]
    fields.append(pa.field("dense", pa.list_(pa.float32(), num_dense)))
    fields.append(pa.field("ids", pa.list_(pa.int32(), num_one_hot)))
    fields += [pa.field(name, pa.list_(pa.int32())) for name in lists]
    return pa.schema(fields + ([pa.field(IS_HOT, pa.uint8())] if is_tagged else []))


def buffer_types(schema: Any) -> tuple[BufferType, ...]:
    """Return the buffers of a batch of this schema, in their order; those that are always empty left out."""
    found = []
    for field in schema:
        if pa.types.is_fixed_size_list(field.type):
            width = field.type.list_size * field.type.value_type.bit_width // 8
            found.append(BufferType(field.name, "values", width))
        elif pa.types.is_list(field.type):
            found.append(BufferType(field.name, "offsets", _OFFSET_BYTES))
            found.append(BufferType(field.name, "elements", field.type.value_type.bit_width // 8))
        else:
            found.append(BufferType(field.name, "bitmap", 0))
            found.append(BufferType(field.name, "values", field.type.bit_width // 8))
    return tuple(found)


def types_of_shards(totals: ShardsTotals, *, is_tagged: bool) -> tuple[BufferType, ...]:
    schema = shard_schema(
        has_label=totals.has_label,
        sample_columns=totals.sample_columns,
        num_dense=len(totals.dense),
        num_one_hot=len(one_hot(totals.tables)),
        lists=[feature.name for feature in multi_hot(totals.tables)],
        is_tagged=is_tagged,
    )
    return buffer_types(schema)


def checksum_of_columns(types: Sequence[BufferType]) -> bytes:
    """Return the checksum of the columns of a folder, whose evaluation files have one more."""
    return xxhash.xxh3_128_digest(json.dumps([each for each in types if each.column != IS_HOT]).encode())


def padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def digests(data: memoryview, bounds: Sequence[int]) -> bytes:
    """Return the checksums of the parts of some bytes, one after another."""
    digest = xxhash.xxh3_128_digest  # looked up once: a batch has dozens of blocks
    return b"".join([digest(data[start:stop]) for start, stop in pairwise(bounds)])


def block_bounds(
    kind: BufferType, num_samples: int, num_bytes: int, offsets: NDArray[np.int32] | None
) -> Sequence[int]:
    """Return where the blocks of a buffer begin, and its end with the padding.

    Args:
        offsets: (num_samples + 1,), those of a column of lists; None elsewhere.
    """
    if kind.kind != "elements":
        return _equal_bounds(kind, num_samples, num_bytes)
    assert offsets is not None, "offsets come before elements"
    num_blocks = kind.num_blocks(num_samples, num_bytes)
    starts = offsets[: num_blocks * BLOCK_SAMPLES : BLOCK_SAMPLES].astype(np.int64) * kind.width
    return [*starts.tolist(), padded(num_bytes)] if num_blocks else []


@lru_cache
def _equal_bounds(kind: BufferType, num_samples: int, num_bytes: int) -> tuple[int, ...]:
    """Return the bounds of blocks of equal bytes; nearly all batches have the same."""
    num_blocks = kind.num_blocks(num_samples, num_bytes)
    starts = (number * BLOCK_SAMPLES * kind.width for number in range(num_blocks))
    return (*starts, padded(num_bytes)) if num_blocks else ()


class FileChecksums:
    """The checksums of one file's batches, taken in their order."""

    def __init__(self, schema: Any) -> None:
        self._types = buffer_types(schema)
        self._rows: list[tuple[int, int, int, int, int, bytes]] = []
        self._records: list[bytes] = []
        self._num_record_bytes = 0

    def add(self, batch: Any, end: int) -> None:
        """Take the checksums of a record batch.

        Args:
            batch: as a writer was given or a reader returned it; its arrays have no offset.
            end: position after its body in the file.
        """
        num_samples = len(batch)
        lengths, checksums = [], []
        offsets = None
        for kind, data in zip(self._types, _buffers_of(batch), strict=True):
            lengths.append(len(data))
            if kind.kind == "offsets":
                offsets = np.frombuffer(data, np.int32)
            bounds = block_bounds(kind, num_samples, len(data), offsets)
            # The last block ends with zeros, up to the next buffer.
            missing = padded(len(data)) - len(data)
            if missing and bounds:
                checksums.append(digests(data, bounds[:-1]))
                checksums.append(xxhash.xxh3_128_digest(bytes(data[bounds[-2] :]) + bytes(missing)))
            else:
                checksums.append(digests(data, bounds))
        record = np.array(lengths, "<u8").tobytes() + b"".join(checksums)
        num_bytes = sum(map(padded, lengths))
        checksum = xxhash.xxh3_128_digest(record)
        place = self._num_record_bytes
        self._rows.append((end - num_bytes, num_bytes, num_samples, len(lengths), place, checksum))
        self._records.append(record)
        self._num_record_bytes += len(record)

    @property
    def starts(self) -> list[int]:
        """Where the bodies of the batches begin in the file."""
        return [row[0] for row in self._rows]

    def to_bytes(self) -> bytes:
        """Return them as a file of their own, of which `merged` makes that of a folder."""
        table = np.array(self._rows, ROW)
        records = b"".join(self._records)
        return _head(table, len(records), checksum_of_columns(self._types)) + records


def _head(table: NDArray[Any], num_record_bytes: int, columns: bytes) -> bytes:
    """Return header and table; ``table`` counts positions of records from the first one."""
    first = HEADER_BYTES + table.nbytes
    table = table.copy()
    table["record"] += np.uint64(first)
    fields = (_MAGIC, _VERSION, BLOCK_SAMPLES, len(table), first + num_record_bytes, columns)
    header = np.array([fields], HEADER).tobytes()
    rows = table.tobytes()
    return header + bytes.fromhex(checksum_of_table(header, rows)) + rows


def _buffers_of(batch: Any) -> Iterator[memoryview]:
    """Yield the buffers of a record batch that its schema has, each as long as a file has it."""
    num_samples = len(batch)
    for column in batch.columns:
        assert column.offset == 0, "a batch of a file begins with its arrays"
        kind = column.type
        if pa.types.is_fixed_size_list(kind):
            values, width = column.values, kind.list_size * kind.value_type.bit_width // 8
            yield _part(values.buffers()[1], num_samples * width)
        elif pa.types.is_list(kind):
            offsets = _part(column.buffers()[1], (num_samples + 1) * _OFFSET_BYTES)
            yield offsets
            num_elements = np.frombuffer(offsets, np.int32)[-1] if num_samples else 0
            yield _part(column.values.buffers()[1], int(num_elements) * kind.value_type.bit_width // 8)
        else:
            bitmap, values = column.buffers()
            yield _part(bitmap if column.null_count else None, -(-num_samples // 8))
            yield _part(values, num_samples * kind.bit_width // 8)


def _part(buffer: Any, num_bytes: int) -> memoryview:
    """Return the first bytes of an Arrow buffer, none where there is no buffer."""
    return memoryview(b"" if buffer is None or not num_bytes else buffer)[:num_bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChecksumsFacts(JsonRecord):
    """The file of checksums of a folder."""

    table_xxh3_128: str
    """Checksum of its table, hex: with it the records are read one by one."""


def write_shard(path: Path, schema: Any, batches: Iterable[Any]) -> bytes:
    """Write a file of shards; return its checksums, taken while the batches are in the processor's cache."""
    found = FileChecksums(schema)
    with HashedFile(path) as file, pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            found.add(batch, file.tell())
    # A version of Arrow that lays out bodies in another way would show in the first one.
    if found.starts:
        mapped = map_file(path)
        if _body(pa.ipc.open_file(mapped).get_batch(0), mapped.address)[0] != found.starts[0]:
            return checksums_of_file(path)
    return found.to_bytes()


def checksums_of_file(path: Path) -> bytes:
    """Return the checksums of a file that is there, as `FileChecksums.to_bytes` does.

    Raises:
        ManifestError: it cannot be read.
    """
    with damage_named(path):
        mapped = map_file(path)
        reader = pa.ipc.open_file(mapped)
        found = FileChecksums(reader.schema)
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            batch.validate()
            found.add(batch, _body(batch, mapped.address)[1])
        return found.to_bytes()


def _body(batch: Any, address: int) -> tuple[int, int]:
    """Return begin and end of a batch's body in its file, which is mapped at ``address``."""
    buffers = [buffer for column in batch.columns for buffer in column.buffers() if buffer is not None]
    bounds = [(buffer.address, buffer.address + buffer.size) for buffer in buffers if buffer.size]
    return min(start for start, _ in bounds) - address, padded(max(stop for _, stop in bounds) - address)


def merged_head(of_files: Iterable[bytes]) -> bytes:
    """Return header and table of a folder, from the checksums of its files in their order, or their heads."""
    tables = [np.zeros(0, ROW)]
    columns = set()
    num_bytes = 0
    for each in of_files:
        columns.add(columns_in(each))
        table = _table_in(each).copy()
        # Counted from the first record of the file, then from that of the folder.
        table["record"] -= np.uint64(HEADER_BYTES + table.nbytes)
        table["record"] += np.uint64(num_bytes)
        tables.append(table)
        num_bytes += int(np.frombuffer(each, HEADER, 1)[0]["num_bytes"]) - HEADER_BYTES - table.nbytes
    # Files of other columns are no folder: zeros are the checksum of none.
    own = columns.pop() if len(columns) == 1 else bytes(DIGEST_BYTES)
    return _head(np.concatenate(tables), num_bytes, own)


def records_in(of_file: bytes) -> memoryview:
    """Return the records among the checksums of one file."""
    return memoryview(of_file)[HEADER_BYTES + _table_in(of_file).nbytes :]


def are_merged_in(path: Path, entry: FileEntry, of_files: Iterable[bytes]) -> bool:
    """Return whether the file of checksums of a folder is what those of its files make, one after another."""
    heads = []
    with open(path, "rb") as file:
        try:
            num_batches = check_header(file.read(HEADER_BYTES), entry.num_bytes)
        except ValueError:
            return False
        file.seek(HEADER_BYTES + ROW.itemsize * num_batches)
        for each in of_files:
            records = records_in(each)
            if file.read(len(records)) != records:
                return False
            heads.append(each[: len(each) - len(records)])
        head = merged_head(heads)
        is_read = not file.read(1)
        file.seek(0)
        return is_read and file.read(len(head)) == head and entry.facts[TABLE_FACT] == checksum_in(head)


def checksum_in(head: bytes) -> str:
    """Return the checksum in a header, hex, by which a manifest pins the table."""
    return head[HEADER.itemsize : HEADER_BYTES].hex()


def checksum_of_table(header: bytes, rows: bytes) -> str:
    """Return what the checksum in a header with this table must be, hex."""
    return str(xxhash.xxh3_128_hexdigest(header[: HEADER.itemsize] + rows))


def are_of_file(found: bytes, num_samples: int, num_bytes: int) -> bool:
    """Return whether bytes are the checksums of a file of so many samples and bytes, whole and unchanged."""
    try:
        num_batches = check_header(found[:HEADER_BYTES], len(found))
    except ValueError:
        return False
    table = np.frombuffer(found, ROW, num_batches, HEADER_BYTES)
    first = HEADER_BYTES + table.nbytes
    if checksum_of_table(found, found[HEADER_BYTES:first]) != checksum_in(found):
        return False
    is_inside = (table["start"] + table["num_bytes"] <= num_bytes).all()
    if not is_inside or int(table["num_samples"].sum()) != num_samples:
        return False
    bounds = [*table["record"].tolist(), len(found)]
    records = zip(pairwise(bounds), table["checksum"], strict=True)
    return all(
        xxhash.xxh3_128_digest(found[start:stop]) == checksum.tobytes() for (start, stop), checksum in records
    )


def columns_in(header: bytes) -> bytes:
    """Return the checksum of the columns in a header."""
    return bytes(np.frombuffer(header, HEADER, 1)[0]["columns"].tobytes())


def _table_in(of_file: bytes) -> NDArray[Any]:
    header = np.frombuffer(of_file, HEADER, 1)[0]
    return np.frombuffer(of_file, ROW, int(header["num_batches"]), HEADER_BYTES)


def check_header(header: bytes, num_bytes: int) -> int:
    """Return the number of batches in a header.

    Raises:
        ValueError: it is none, or not that of a file of so many bytes.
    """
    if len(header) < HEADER_BYTES:
        raise ValueError(f"it has {len(header)} bytes")
    found = np.frombuffer(header, HEADER, 1)[0]
    if header[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it holds no checksums of batches")
    if found["version"] != _VERSION or found["block_samples"] != BLOCK_SAMPLES:
        raise ValueError(f"it is of version {found['version']}, want {_VERSION}")
    num_batches = int(found["num_batches"])
    if found["num_bytes"] != num_bytes or num_batches > (num_bytes - HEADER_BYTES) // ROW.itemsize:
        raise ValueError(f"it is of {found['num_bytes']} bytes, and has {num_bytes}")
    return num_batches


_NOTE = ".checksums"


def note_checksums(output: Output, name: str, of_file: bytes) -> None:
    """Keep the checksums of a file of an output until it is sealed; before the file is recorded."""
    output.keep(name + _NOTE, of_file)


def write_checksums(output: Output) -> None:
    """Write those of all finished files of an output as one file, before it is sealed."""
    if output.has(CHECKSUMS):
        return
    names = sorted(output.finished)
    head = merged_head(_noted(output, name) for name in names)
    facts = ChecksumsFacts(table_xxh3_128=checksum_in(head))
    with output.writing(CHECKSUMS, 0, facts) as path, HashedFile(path) as file:
        file.write(head)
        for name in names:
            file.write(records_in(_noted(output, name)))


def _noted(output: Output, name: str) -> bytes:
    """Return the checksums of a file; read it where a power cut or another version left no note of it."""
    entry = output.finished[name]
    found = output.kept(name + _NOTE)
    if found is None or not are_of_file(found, entry.num_samples, entry.num_bytes):
        found = checksums_of_file(output.folder / name)
        note_checksums(output, name, found)
    return found


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

    def __init__(self, shards: Manifest, files: Sequence[ShardFileEntry]) -> None:
        found = [entry for entry in shards.files if entry.is_checksums]
        if len(found) > 1:
            raise ShardError(f"{shards.folder} has {len(found)} files of checksums, want 1")
        self.are_sealed = bool(found)
        """Whether checksums come from the folder; those of older shards are made when they are opened."""
        self._path = shards.checked_path(found[0]) if found else shards.folder
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
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(self._path, flags) if found else self._made()
        except OSError as error:
            raise ShardError(f"{self._path} cannot be read: {error.strerror}") from error
        self._close = weakref.finalize(self, os.close, self._descriptor)
        self._num_bytes = found[0].num_bytes if found else os.fstat(self._descriptor).st_size
        try:
            self._table = self._read_table(found[0].facts[TABLE_FACT] if found else None)
        except (OSError, ValueError) as error:
            raise self._damage(str(error)) from error

    def _made(self) -> int:
        """Make the checksums of files as they are, in memory; return their descriptor."""
        of_files = [checksums_of_file(self._shards.checked_path(entry)) for entry, _ in self._files]
        descriptor = os.memfd_create("checksums")
        with open(descriptor, "wb", closefd=False) as file:
            file.writelines([merged_head(of_files), *map(records_in, of_files)])
        return descriptor

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

    def _read_table(self, wanted: str | None) -> NDArray[Any]:
        """Read the table and check it; raises ValueError where it is not that of these files."""
        header = os.pread(self._descriptor, HEADER_BYTES, 0)
        num_batches = check_header(header, self._num_bytes)
        if num_batches != self._first_rows[-1]:
            raise ValueError(f"it is of {num_batches} batches, want {self._first_rows[-1]}")
        rows = os.pread(self._descriptor, ROW.itemsize * num_batches, HEADER_BYTES)
        found = checksum_of_table(header, rows)
        if wanted not in (None, found) or len(rows) != ROW.itemsize * num_batches:
            raise ValueError(f"the checksum of its table is {found}, want {wanted}")
        # Arrow's footers, which have the names, are not read.
        if columns_in(header) != checksum_of_columns(self._types[False]):
            raise ValueError("it is of other columns than the manifest's")
        table = np.frombuffer(rows, ROW)
        self._check_table(table)
        return table

    def _check_table(self, table: NDArray[Any]) -> None:
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
        is_inside &= (starts + sizes <= most) & (starts % np.uint64(8) == 0) & (records < self._num_bytes)
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
