"""``generate``: a click log of any length with a real log's statistics.

    label <tab> I1 ... I13 <tab> C1 ... C26 <newline>      8 hexadecimal digits per category, missing = empty

A sample is a function of (profile, seed, sample number) alone, so a log can be written in parallel, continued
later (``start``) and reproduced elsewhere: the bytes depend on integer arithmetic and, in the tables built
from the profile, on IEEE additions, multiplications and divisions in a fixed order, nothing else. (Compressed
bytes also depend on the zlib that Python was built with.) Categories, their effects on clicks and the
pairs that interact belong to the profile, not to the seed: logs of two seeds are from one world.

Kept of the real log ("criteo-kaggle") are each table's coverage by its k hottest rows, missing patterns,
the integers' quantiles, and that cold lookups occur together: 48 / 64 / 73% of samples are fully hot where
hot means a lookup probability of at least 1e-5 / 1e-6 / 1e-7; independent columns would give 9 / 22 / 37%
and the real log has 48 / 62 / 71%. Not kept are time (trends, repeats of a visitor) and which categories of
two columns belong together, beyond their ranks.
"""

from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import ConfigError, require_at_least
from ..folders.whole_file import whole_file
from ..runtime.tasks import num_workers
from .kernel import MAX_SAMPLE_BYTES, HistoryWorld, World, most_bytes, write_histories, write_samples
from .world import header_of, history_world_of, profile_facts, world_of

CHUNK_SAMPLES = 1 << 14
"""Samples per task; their text is 4 MB. Part of the compressed format: each chunk is deflated by itself."""

_TASKS_PER_WORKER = 2
_MAX_SAMPLE = 1 << 62
_GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # deflate, no name, time 0, unknown system
_GZIP_LEVEL = 1
_DEFLATE_END = b"\x03\x00"


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerateConfig:
    """Which log to generate: its text is a function of these fields."""

    profile: str = "criteo-kaggle"
    """Profile, the aggregates that the log is drawn from: criteo-kaggle, or taobao, a log of histories in
    CSV."""

    samples: int = 1_000_000
    """Number of samples (lines) to write."""

    seed: int = 0
    """Seed of the log, in [0, 2^64)."""

    scale: float = 1
    """Divisor of the cardinalities, for small tests; tables of at most 100 rows keep theirs. 1 or more."""

    start: int = field(default=0, metadata={"no_option": True})
    """Number of the first sample: continues a log that ends before it."""

    label: bool = field(default=True, metadata={"help": "Write lines without a label."})
    """Whether each line begins with the label."""

    def __post_init__(self) -> None:
        require_at_least("samples", self.samples, 0)
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed must be in [0, 2^64), got {self.seed}")
        require_at_least("scale", self.scale, 1)
        require_at_least("start", self.start, 0)
        if self.start + self.samples > _MAX_SAMPLE:
            raise ConfigError(f"start + samples must be at most 2^62, got {self.start + self.samples}")
        profile_facts(self.profile)


@dataclass(frozen=True, slots=True)
class GenerateSummary:
    """Size of a log that was written."""

    num_samples: int
    num_clicks: int
    """Samples with label 1; 0 in a log without labels."""
    num_bytes: int
    """Bytes of the text, before compression."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some samples in a row, written as text."""

    text: memoryview
    deflated: bytes | None
    num_samples: int
    num_clicks: int


def generate(
    config: GenerateConfig,
    out: Path,
    *,
    workers: int = 0,
    progress: Callable[[int], None] | None = None,
    overwrite: bool = False,
) -> GenerateSummary:
    """Write the log to ``out``, compressed where its name ends in ``.gz``.

    The file appears whole or not at all. Memory holds a few chunks per worker, whatever the length.

    Args:
        config: which log.
        out: file to write.
        workers: threads; 0 is one per core.
        progress: called with the number of samples written so far.
        overwrite: replace ``out`` where it exists.

    Raises:
        HotsetError: ``out`` exists and is not to be replaced, or cannot be written.
    """
    is_gzip = out.suffix == ".gz"
    # Closed where the file cannot be written: an error would keep the chunks, and with them threads.
    with whole_file(out, overwrite=overwrite) as file, closing(_chunks(config, is_gzip, workers)) as chunks:
        return _write(chunks, file, is_gzip, progress)


def world_of_config(config: GenerateConfig) -> World | HistoryWorld:
    """Return the tables that a config draws from."""
    is_of_histories = profile_facts(config.profile).get("kind") == "histories"
    world_of_kind = history_world_of if is_of_histories else world_of
    return world_of_kind(config.profile, config.scale)


def _chunks(config: GenerateConfig, deflate: bool, workers: int) -> Generator[Chunk]:
    """Yield the log's chunks in order, made a few ahead."""
    world = world_of_config(config)
    if isinstance(world, HistoryWorld):
        header = memoryview(header_of(has_label=config.label))
        yield Chunk(header, _deflated(header) if deflate else None, 0, 0)
    end = config.start + config.samples
    pending: deque[Future[Chunk]] = deque()
    count = num_workers(workers)
    with ThreadPoolExecutor(count) as pool:
        try:
            # The oldest chunk is given out first, so the log is in order whichever ends first.
            for start in range(config.start, end, CHUNK_SAMPLES):
                num_samples = min(CHUNK_SAMPLES, end - start)
                pending.append(pool.submit(write_chunk, config, world, start, num_samples, deflate))
                # Enough tasks wait to keep all workers busy, and few enough to bound the memory.
                if len(pending) >= count * _TASKS_PER_WORKER:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            # The reader may stop early; what is not begun yet is not begun any more.
            for future in pending:
                future.cancel()


def write_chunk(
    config: GenerateConfig, world: World | HistoryWorld, start: int, num_samples: int, deflate: bool
) -> Chunk:
    """Write ``num_samples`` samples as text, and compressed with ``deflate``."""
    if isinstance(world, HistoryWorld):
        out = np.empty(num_samples * most_bytes(world), np.uint8)
        write: Callable[..., tuple[int, int]] = write_histories
    else:
        out = np.empty(num_samples * MAX_SAMPLE_BYTES, np.uint8)
        write = write_samples
    num_bytes, num_clicks = write(world, np.uint64(config.seed), start, num_samples, config.label, out)
    text = out[:num_bytes].data
    return Chunk(text, _deflated(text) if deflate else None, num_samples, num_clicks)


def _deflated(text: memoryview) -> bytes:
    # A full flush ends the chunk at a byte boundary, so that chunks can be joined.
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return compressor.compress(text) + compressor.flush(zlib.Z_FULL_FLUSH)


def _write(
    chunks: Iterator[Chunk], file: BinaryIO, is_gzip: bool, progress: Callable[[int], None] | None
) -> GenerateSummary:
    """Write chunks one after another; deflated ones become a single gzip member."""
    num_samples = 0
    num_clicks = 0
    num_bytes = 0
    checksum = 0
    # Deflated chunks end at byte boundaries, so one header and one trailer make them a whole file.
    if is_gzip:
        file.write(_GZIP_HEADER)
    for chunk in chunks:
        if chunk.deflated is not None:
            checksum = zlib.crc32(chunk.text, checksum)
        file.write(chunk.text if chunk.deflated is None else chunk.deflated)
        num_samples += chunk.num_samples
        num_clicks += chunk.num_clicks
        num_bytes += len(chunk.text)
        if progress is not None:
            progress(num_samples)
    if is_gzip:
        file.write(_DEFLATE_END + struct.pack("<II", checksum, num_bytes & 0xFFFFFFFF))
    return GenerateSummary(num_samples, num_clicks, num_bytes)
