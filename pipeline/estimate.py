"""Estimate folder bytes, stage seconds and memory before a run.

Reads a few MiB of the raw logs to see how much text and how many samples they hold and how fast they parse.

Bytes follow from the formats and from this sample of the log; the number of distinct categories is
extrapolated. On generated logs of 0.06 to 3 M samples folders were within 1% of the estimate, counts and
vocabulary within 12%. Parsing is timed here; the seconds of other stages are the costs below, measured on one
core with a generated log of 500,000 samples.
"""

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

from ..stats.counting import distinct_at
from ..stats.id_tables import id_table_bytes
from ..stats.ranking import peeling
from .errors import KIB, MIB, ByteSize, InputError
from .formats.arrow_files import values_of
from .preprocess import PreprocessConfig
from .raw.log_parts import open_parts
from .raw.raw_file import RawFile
from .schema.schema import Schema, numbers_of
from .schema.schema_file import schema_of
from .stages.count import CountConfig, spans_of
from .stages.ingest import IngestConfig, hint_for
from .stages.pack import samples_per_file
from .stages.shuffle import RowLayout

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
    """Read at most ``most`` blocks: evenly from a plain file, the first ones of a compressed file."""
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


_LOOKUP_SECONDS = {"count": 11e-9, "encode": 9e-9, "split": 2.4e-9}
_ROW_SECONDS = 110e-9
"""Time of `rank` per row."""
_WORD_SECONDS = 6.5e-9
"""Time of `pack` per value of a shard."""
_ORDER_SECONDS = {"frequency": 0.0, "peel": 1.0e-6, "sampled": 4e-7}
"""Time of `rank` to order rows by other than their counts, per training sample of 26 lookups."""
_PEELED_LOOKUPS = 0.25
"""Share of lookups above the floor of peeling, in generated Kaggle logs of 2 M samples."""
_PART_OVERHEAD = 6_000
"""Bytes of an Arrow file without its values: names, types and positions of about forty columns."""
_COPY_OVERHEAD = 1_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """The bytes, seconds and memory of a run from scratch."""

    num_samples: float
    num_train: float
    num_rows: float
    folder_bytes: dict[str, float]
    """By stage."""
    core_seconds: dict[str, float]
    """By stage, on one core."""
    memory_bytes: dict[str, float]
    """Memory that each stage would hold without a cap, in addition to that of every process (bytes)."""


def estimate_run(sample: LogSample, config: PreprocessConfig, *, workers: int) -> Estimate:
    """Estimate bytes, seconds and memory of every stage; ``config``: resolved settings."""
    schema = schema_of(config.ingest.schema)
    samples = sum(sample.samples)
    has_label = config.ingest.label and schema.label is not None
    num_train = _training_samples(sample.samples, config.count)
    samples_of_files = [int(number) for number in sample.samples]
    spans = spans_of(int(num_train), config.count.count_last, samples_of_files) if num_train >= 1 else []
    lengths = [span.stop - span.first for span in spans]
    # Distinct categories are those counted; rows only those frequent enough, and one each for missing and
    # oov.
    rank = config.rank
    min_counts = numbers_of("feature_min_counts", rank.feature_min_counts, schema.sparse, rank.min_count)
    distinct = {name: _distinct(sample, name, sum(lengths)) for name in schema.sparse}
    rows = {name: _distinct(sample, name, sum(lengths) / least) + 2 for name, least in min_counts.items()}
    # A window of several files has the counts of each file and their sum.
    days = lengths if len(lengths) > 1 else []
    num_ids = len(schema.one_hot) + sample.list_lookups
    num_parts = sum(max(1.0, size / config.ingest.block_bytes) for size in sample.text_bytes)
    width = {name: sample.category_bytes[name] + 8 for name in schema.sparse}
    row_bytes = 8.1 + (16 if rank.rank_by == "sampled" else 0)
    shard_bytes = 4 * (has_label + len(schema.dense) + num_ids + len(schema.lists)) + 0.2
    words = _words(schema)
    num_files = samples * shard_bytes / max(1, 4 * words * samples_per_file(config.pack, words))
    folders = {
        "ingest": samples * sample.column_bytes + num_parts * _PART_OVERHEAD,
        "count": sum(width[name] * distinct[name] for name in schema.sparse)
        + sum(width[name] * _distinct(sample, name, length) for name in schema.sparse for length in days)
        + _COPY_OVERHEAD * len(schema.sparse) * (1 + len(days)),
        "rank": sum((width[name] + row_bytes) * rows[name] + _COPY_OVERHEAD for name in schema.sparse),
        "encode": samples * 4 * (num_ids + len(schema.lists)) + num_parts * _COPY_OVERHEAD,
        "split": samples + num_parts * _COPY_OVERHEAD,
        "pack": samples * shard_bytes + _COPY_OVERHEAD * (samples / config.pack.batch_size + num_files + 3),
    }
    num_rows = sum(rows.values())
    return Estimate(
        samples,
        num_train,
        num_rows,
        folders,
        _core_seconds(sample, sum(lengths), num_ids, num_rows, config),
        _memory(sample, distinct, rows, num_train, config, workers),
    )


def _training_samples(files: Sequence[float], config: CountConfig) -> float:
    if config.eval_files:
        num_left = sum(files[: -config.eval_files])
    else:
        num_left = sum(files) * (1 - config.eval_fraction)
    if config.valid_files:
        before = files[: len(files) - config.eval_files]
        return num_left - sum(before[-config.valid_files :])
    return num_left - sum(files) * (config.valid_fraction or 0)


def _distinct(sample: LogSample, name: str, num_samples: float) -> float:
    """Return the number of categories of one feature among ``num_samples`` samples."""
    lookups = sample.num_lookups[name]
    return distinct_at(num_samples * lookups / sample.num_sampled, sample.distinct[name], lookups)


def _words(schema: Schema) -> int:
    return RowLayout(len(schema.dense), len(schema.lists), len(schema.one_hot)).width


def _core_seconds(
    sample: LogSample, num_counted: float, num_ids: float, num_rows: float, config: PreprocessConfig
) -> dict[str, float]:
    schema = schema_of(config.ingest.schema)
    samples = sum(sample.samples)
    ordering = _ORDER_SECONDS[config.rank.rank_by] * num_counted
    return {
        "ingest": sum(sample.text_bytes) * sample.parse_seconds * 1.3,  # writing the columns is a third more
        "count": _LOOKUP_SECONDS["count"] * num_counted * num_ids,
        "rank": _ROW_SECONDS * num_rows + ordering,
        "encode": _LOOKUP_SECONDS["encode"] * samples * num_ids,
        "split": _LOOKUP_SECONDS["split"] * samples * num_ids,
        "pack": _WORD_SECONDS * samples * (_words(schema) - len(schema.sparse) + num_ids),
    }


def _memory(
    sample: LogSample,
    distinct: dict[str, float],
    rows: dict[str, float],
    num_train: float,
    config: PreprocessConfig,
    workers: int,
) -> dict[str, float]:
    """Return the most that each stage holds; the stages' `needed_bytes` is the least."""
    schema = schema_of(config.ingest.schema)
    samples = sum(sample.samples)
    block_bytes = config.ingest.block_bytes
    # A part has as many samples as a block has lines, on average.
    part_samples = min(samples, block_bytes * samples / max(1.0, sum(sample.text_bytes)))
    part = part_samples * max(sample.column_bytes, 4.0 * _words(schema))
    # Orders other than by frequency hold the rows of all tables, and lists of samples.
    num_rows = sum(rows.values())
    num_peeled = _PEELED_LOOKUPS * len(schema.sparse) * num_train
    ordering = {
        "frequency": 0.0,
        "peel": peeling.BYTES_PER_ROW * num_rows
        + peeling.BYTES_PER_SAMPLE * num_train
        + peeling.BYTES_PER_LOOKUP * num_peeled,
        "sampled": 24 * num_rows + num_train,
    }
    tables = (id_table_bytes(int(rows[name]), sample.category_bytes[name]) for name in schema.sparse)
    return {
        "ingest": workers * (2 * block_bytes + part),
        "count": sum(4 * 16 * max(4096.0, number) for number in distinct.values()),
        "rank": workers * 28 * max(rows.values(), default=0.0) + ordering[config.rank.rank_by],
        "encode": sum(tables) + workers * part,
        "split": workers * part_samples,
        "pack": samples * (4 * _words(schema) + 8) + workers * part,
    }
