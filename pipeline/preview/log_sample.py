"""A quick look into raw logs: how much text, how many samples, how they parse; a few MiB are read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError
from ..formats.arrow_files import values_of
from ..raw.log_parts import open_parts
from ..raw.raw_file import RawFile
from ..schema.schema_file import schema_of
from ..sizes import KIB, MIB, ByteSize
from ..stages.ingest import IngestConfig, hint_for

_BLOCK_BYTES = ByteSize(MIB)
_MOST_FILES = 4
_MOST_BLOCKS = 12
_COMPRESSED_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class LogSample:
    """Figures of a log, as sampled blocks show them."""

    text_bytes: list[float]
    """Bytes of each file, decompressed; for Parquet its bytes on disk."""
    samples: list[float]
    """Expected number of samples in each file."""
    num_sampled: int
    """Samples that were parsed."""
    column_bytes: float
    """Bytes per sample in ``columns/``."""
    distinct: dict[str, tuple[int, int, int]]
    """By sparse feature: categories among the first quarter, the first half, and all of what was parsed."""
    num_lookups: dict[str, int]
    """By sparse feature: lookups of what was parsed, missing ones left out."""
    category_bytes: dict[str, int]
    """By sparse feature: bytes of a category."""
    list_lookups: float
    """Lookups of multi-hot features per sample."""
    parse_seconds: float
    """Seconds of one core per byte of text."""


def sample_log(raw: Sequence[Path], config: IngestConfig) -> LogSample:
    """Parse a few blocks of some of the files.

    Raises:
        InputError: as `ingest` would: a file cannot be read, or a sampled line is not as the schema says.
    """
    files = [RawFile.inspect(path) for path in raw]
    if not files:
        raise InputError("no input file given")
    schema = schema_of(config.schema)
    text = [file.num_bytes * _expansion_of(file) for file in files]
    # The first file, the last, and some between them.
    numbers = sorted({round(n * (len(files) - 1) / max(1, _MOST_FILES - 1)) for n in range(_MOST_FILES)})
    # A few blocks from files spread over the log: its days differ.
    share = _MOST_BLOCKS // len(numbers)
    blocks = [block for number in numbers for block in _parse_blocks(files[number], number, config, share)]
    num_samples = sum(block.num_samples for block in blocks)
    num_bytes = sum(block.raw_bytes for block in blocks)
    if num_samples == 0:
        raise InputError(f"{files[0].path}: the log is empty: it has no samples")
    distinct: dict[str, tuple[int, int, int]] = {}
    lookups: dict[str, int] = {}
    widths: dict[str, int] = {}
    for name in schema.sparse:
        categories = np.concatenate([block.categories[name] for block in blocks])
        distinct[name] = _distinct_of(categories)
        lookups[name] = categories.shape[0]
        widths[name] = categories.dtype.itemsize
    return LogSample(
        text,
        [size * num_samples / num_bytes for size in text],
        num_samples,
        sum(block.stored_bytes for block in blocks) / num_samples,
        distinct,
        lookups,
        widths,
        sum(block.list_lookups for block in blocks) / num_samples,
        # The least, because the first block waits for kernels to compile.
        min(block.seconds / block.raw_bytes for block in blocks if block.raw_bytes),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """The figures kept of a block; its columns may be overwritten when the next one is parsed."""

    num_samples: int
    raw_bytes: int
    stored_bytes: int
    list_lookups: int
    categories: dict[str, NDArray[Any]]
    seconds: float


def _parse_blocks(file: RawFile, number: int, config: IngestConfig, most: int) -> Iterator[_Block]:
    """At most so many blocks: from all over a plain file, the first ones of another."""
    schema = schema_of(config.schema)
    is_strict = config.max_bad_fraction is None
    parts = open_parts(
        file, number, schema, block_bytes=_BLOCK_BYTES, has_label=config.label, strict=is_strict
    )
    # Blocks in the middle can be read only where bytes are lines: not of compressed files, nor of Parquet.
    is_plain = file.compression is None and schema.format != "parquet"
    num_blocks = -(-file.num_bytes // _BLOCK_BYTES) if is_plain else most
    step = max(1, num_blocks // most)
    for position, unread in enumerate(islice(parts.iterate({}), 0, step * most, step)):
        started = time.perf_counter()
        part = unread.read()
        took = time.perf_counter() - started
        if part is None:
            continue
        if part.fault is not None and is_strict:
            # Lines before a later block were not counted, so only the first block can number its lines.
            where = f"a {parts.unit} after byte {position * step * _BLOCK_BYTES}"
            if position == 0:
                where = f"{parts.unit} {part.fault.line_in_block + 1 + parts.num_header_lines}"
            raise InputError(
                f"{file.path}, {where}{part.fault.text}",
                hint=hint_for(part.fault, config),
            )
        yield _Block(
            part.num_samples,
            part.num_raw_bytes,
            sum(array.nbytes for array in part.columns.values()),
            sum(len(part.columns[name].values) for name in dict(schema.lists)),
            {name: _categories_of(part.columns[name]) for name in schema.sparse},
            took,
        )


def _expansion_of(file: RawFile) -> float:
    """Return the bytes of text per byte on disk, from the first 4 MiB."""
    if file.compression is None:
        return 1.0
    start = file.read_start(_COMPRESSED_BYTES)
    num_bytes = 0
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(start), file.compression)
        while block := stream.read(64 * KIB):
            num_bytes += len(block)
    except OSError:  # the stream is cut off in the middle
        pass
    return max(1.0, num_bytes / max(1, len(start)))


def _categories_of(array: Any) -> NDArray[Any]:
    """Lookups of a column without the missing ones."""
    flat = (array.values if pa.types.is_list(array.type) else array).drop_null()
    return values_of(flat, flat.type.to_pandas_dtype()).copy()


def _distinct_of(categories: NDArray[Any]) -> tuple[int, int, int]:
    mixed = np.random.default_rng(0).permutation(categories)  # an hour is more alike than the log is
    quarter, half, whole = (np.unique(mixed[: mixed.shape[0] // part]).shape[0] for part in (4, 2, 1))
    return quarter, half, whole
