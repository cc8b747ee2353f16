"""A quick look into raw logs: how much text, how many samples, how they parse; a few MiB are read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError
from ..formats.arrow_files import values_of
from ..raw.log_parts import open_parts
from ..raw.raw_blocks import RawFile
from ..schema.schema_file import schema_of
from ..sizes import KIB, MIB, ByteSize
from ..stages.ingest import IngestConfig

_BLOCK_BYTES = ByteSize(MIB)
_MOST_FILES = 4
_MOST_BLOCKS = 12
_COMPRESSED_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class LogSample:
    """What the sampled blocks say of the log."""

    text_bytes: list[float]
    """Of each file, decompressed; of Parquet its bytes on disk."""
    samples: list[float]
    """Of each file, expected."""
    num_sampled: int
    """Samples that were parsed."""
    column_bytes: float
    """Of a sample in ``columns/``."""
    distinct: dict[str, tuple[int, int, int]]
    """By sparse feature: categories among the first quarter, the first half, and all of what was parsed."""
    num_lookups: dict[str, int]
    """By sparse feature: look-ups of what was parsed, missing ones left out."""
    category_bytes: dict[str, int]
    """By sparse feature."""
    list_lookups: float
    """Look-ups of multi-hot features in a sample."""
    parse_seconds: float
    """Of one core, for a byte of text."""


def sample_log(raw: Sequence[Path], config: IngestConfig) -> LogSample:
    """Parse a few blocks of some of the files.

    Raises:
        InputError: as `ingest` would: a file cannot be read, or a sampled line is not as the schema says.
    """
    files = [RawFile.look_at(path) for path in raw]
    if not files:
        raise InputError("no raw file was given")
    schema = schema_of(config.schema)
    text = [file.num_bytes * _expansion_of(file) for file in files]
    numbers = sorted({round(n * (len(files) - 1) / max(1, _MOST_FILES - 1)) for n in range(_MOST_FILES)})
    share = _MOST_BLOCKS // len(numbers)
    blocks = [block for number in numbers for block in _parse_blocks(files[number], number, config, share)]
    num_samples, num_bytes = sum(b.num_samples for b in blocks), sum(b.raw_bytes for b in blocks)
    if num_samples == 0:
        raise InputError(f"{files[0].path}: the log is empty: it has no samples")
    distinct, lookups, widths = {}, {}, {}
    for name in schema.sparse:
        categories = np.concatenate([block.categories[name] for block in blocks])
        distinct[name] = _distinct_of(categories)
        lookups[name], widths[name] = categories.shape[0], categories.dtype.itemsize
    return LogSample(
        text,
        [size * num_samples / num_bytes for size in text],
        num_samples,
        sum(block.stored_bytes for block in blocks) / num_samples,
        distinct,
        lookups,
        widths,
        sum(block.list_lookups for block in blocks) / num_samples,
        min(
            block.seconds / block.raw_bytes for block in blocks if block.raw_bytes
        ),  # the first block waits for compiled kernels
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """What is kept of a block; its columns may be written over when the next one is parsed."""

    num_samples: int
    raw_bytes: int
    stored_bytes: int
    list_lookups: int
    categories: dict[str, NDArray[Any]]
    seconds: float


def _parse_blocks(file: RawFile, number: int, config: IngestConfig, most: int) -> Iterator[_Block]:
    """At most so many blocks: from all over a plain file, the first ones of another."""
    schema = schema_of(config.schema)
    parts = open_parts(file, number, replace(config, block_bytes=_BLOCK_BYTES))
    is_plain = file.compression is None and schema.format != "parquet"
    num_blocks = -(-file.num_bytes // _BLOCK_BYTES) if is_plain else most
    step = max(1, num_blocks // most)
    for position, (_, read) in enumerate(islice(parts.iterate({}), 0, step * most, step)):
        started = time.perf_counter()
        part = read()
        took = time.perf_counter() - started
        if part is None:
            continue
        if part.fault is not None and config.on_bad_line == "error":
            where = f"a {parts.unit} after byte {position * step * _BLOCK_BYTES}"
            if position == 0:
                where = f"{parts.unit} {part.fault.line_in_block + 1 + parts.num_header_lines}"
            raise InputError(
                f"{file.path}, {where}{part.fault.text}",
                hint="mend the line, or count and skip such lines with --on-bad-line skip",
            )
        yield _Block(
            part.num_samples,
            part.facts["raw_bytes"],
            sum(array.nbytes for array in part.columns.values()),
            sum(len(part.columns[name].values) for name in dict(schema.lists)),
            {name: _categories_of(part.columns[name]) for name in schema.sparse},
            took,
        )


def _expansion_of(file: RawFile) -> float:
    """Bytes of text for a byte on disk, from the first 4 MiB."""
    if file.compression is None:
        return 1.0
    with open(file.path, "rb") as opened:
        start = opened.read(_COMPRESSED_BYTES)
    num_bytes = 0
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(start), file.compression)
        while block := stream.read(64 * KIB):
            num_bytes += len(block)
    except OSError:  # cut off in the middle, as it is bound to be
        pass
    return max(1.0, num_bytes / max(1, len(start)))


def _categories_of(array: Any) -> NDArray[Any]:
    """Look-ups of a column without the missing ones."""
    flat = (array.values if pa.types.is_list(array.type) else array).drop_null()
    return values_of(flat, flat.type.to_pandas_dtype()).copy()


def _distinct_of(categories: NDArray[Any]) -> tuple[int, int, int]:
    mixed = np.random.default_rng(0).permutation(categories)  # an hour is more alike than the log is
    quarter, half, whole = (np.unique(mixed[: mixed.shape[0] // part]).shape[0] for part in (4, 2, 1))
    return quarter, half, whole
