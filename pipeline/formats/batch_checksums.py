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
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ..folders.manifest import TABLE_FACT, FileEntry, HashedFile, JsonRecord
from ..folders.totals import ShardsTotals, multi_hot, one_hot
from ..schema.schema import LABEL
from .arrow_files import damage_named, map_file
from .sample_columns import type_of

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

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of values or offsets, but for the last one."""
        return BLOCK_SAMPLES * self.width


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
    starts = (number * kind.block_bytes for number in range(num_blocks))
    return (*starts, padded(num_bytes)) if num_blocks else ()


# Writing


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
        self._rows.append(
            (end - num_bytes, num_bytes, num_samples, len(lengths), self._num_record_bytes, checksum)
        )
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
    is_as_laid_out = not found.starts or found.starts[0] == _first_body(path)
    return found.to_bytes() if is_as_laid_out else checksums_of_file(path)


def _first_body(path: Path) -> int:
    """Return where the body of the first batch of a file begins."""
    mapped = map_file(path)
    return _body(pa.ipc.open_file(mapped).get_batch(0), mapped.address)[0]


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
    return _head(
        np.concatenate(tables), num_bytes, columns.pop() if len(columns) == 1 else bytes(DIGEST_BYTES)
    )


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
    found: bytes = np.frombuffer(header, HEADER, 1)[0]["columns"].tobytes()
    return found


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
