"""``generate``: a click log of any length with a real log's statistics.

A profile holds no sample and no raw value, only shares. Its JSON file has, for each column:

    ranks, shares   the share of the k most frequent values, interpolated linearly in log k; of a dense column
                    the share of the k smallest; missing values are no values
    missing         the share of missing values
    group, coupling columns of one group, within a class, share one uniform variable with this probability

and ``click``, the planted model in nats: the ``rate`` of clicks; the amplitude of each ``sparse`` column,
full in the first ``head_octaves`` of ranks and beyond them less by 1 / (1 + decay * octaves); for each
``dense`` column [slope per octave of 1 + max(x, 0), further effect per octave of distance from the middle,
the middle in octaves, effect of a missing value]; and ``pairs``: two sparse columns that interact, and the
deviation of their effect.

The dependence of columns is in a file of arrays of the same name, fields of `World`: a mixture of latent
classes ("cold visitor", "head of everything", ...), in each of which patterns of missing columns and buckets
of ranks have other shares. The shares of all classes together are exactly those of the JSON file: the drawn
marginals are those of the profile for any dependence and scale.

A profile of histories has other keys. The profile "criteo-kaggle" was fitted once, by EM,
to published aggregates of the whole log and a rank-coded part of it, and raked to the aggregates.

In the click model each category has a nearly normal effect and a hidden vector, both hashed from its table
and rank. A logit is the sum of the effects (full in the head of a table, weaker in the tail), of dot products
of hidden vectors for a few pairs of small tables, and of a slope and a kink for each integer. The planted
logit itself reaches an AUC of about 0.82 on the Kaggle profile (a test draws it).

A line is

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

import functools
import json
import struct
import zlib
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...stats.id_tables import mix64_pair
from ..errors import ConfigError, require_at_least
from ..folders.disk import whole_file
from ..runtime.tasks import num_workers
from .kernel import (
    COUPLING_BITS,
    GUIDE_BITS,
    MAX_SAMPLE_BYTES,
    NUM_SIGMOID,
    HistoryWorld,
    World,
    draw_samples,
    interpolate,
    log2,
    most_bytes,
    write_histories,
    write_samples,
)

PROFILES = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of lookups that the first k values get."""

    ranks: NDArray[np.float64]
    """(num_knots,); each k. The last is the number of distinct values."""

    shares: NDArray[np.float64]
    """(num_knots,), in [0, 1], the last 1."""

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Coverage:
        """Read ``ranks`` and ``shares``."""
        return cls(np.array(facts["ranks"], np.float64), np.array(facts["shares"], np.float64))

    @property
    def num_values(self) -> int:
        """Number of distinct values."""
        return int(self.ranks[-1])

    def at(self, num_values: int, ranks: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share of the first ``ranks`` of ``num_values`` values.

        Ranks are stretched on a log scale, so the first value keeps its share, the last one its place,
        and a given fraction of log k gets the share it had before.

        Args:
            ranks: (num_ranks,), in [0, num_values]; 0 gives 0.
        """
        positive = np.maximum(ranks, 1).astype(np.float64)
        stretch = _log2_of(self.num_values) / _log2_of(num_values) if num_values > 1 else 1.0
        full_ranks = np.where(ranks == num_values, _log2_of(self.num_values), log2(positive) * stretch)
        shares = interpolate(full_ranks, log2(self.ranks), self.shares)
        return np.where(ranks <= 0, 0.0, shares)


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a profile; values are numbered by rank or size."""

    name: str
    is_dense: bool
    smallest: int
    """The integer at rank 0 of a dense column; 0 for sparse ones."""
    present: Coverage
    """Coverage of the values that are not missing, among the fields that are not missing."""
    missing_share: float
    group: int
    """Number of the group of columns it is coupled with."""
    coupling: float
    """Probability of drawing from the group's variable rather than its own, in [0, 1]."""

    @property
    def num_rows(self) -> int:
        """Distinct values of a sparse column, missing among them; range of the values of a dense one."""
        has_missing_row = not self.is_dense and self.missing_share > 0
        return self.present.num_values + has_missing_row


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile, parsed from its files."""

    columns: tuple[Column, ...]
    classes: dict[str, NDArray[np.uint64]]
    """Fields of `World` that do not depend on the scale."""
    click: dict[str, Any]
    """The planted click model, as the file has it."""


def profile_names() -> list[str]:
    """Return the names of all profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.json"))


def profile_facts(name: str) -> dict[str, Any]:
    """Read a profile's file; raise ConfigError where there is none."""
    if name not in profile_names():
        raise ConfigError(f"no profile {name!r}", hint=f"use one of {', '.join(profile_names())}")
    facts: dict[str, Any] = json.loads((PROFILES / f"{name}.json").read_text())
    return facts


@functools.lru_cache(maxsize=4)
def load_profile(name: str) -> Profile:
    """Read a profile of Criteo's format; raises ConfigError."""
    facts = profile_facts(name)
    columns = [
        Column(
            name=column["name"],
            is_dense=kind == "dense",
            smallest=column.get("smallest", 0),
            present=Coverage.of(column),
            missing_share=column["missing"],
            group=column.get("group", 0),
            coupling=column.get("coupling", 0.0),
        )
        for kind in ("dense", "sparse")
        for column in facts[kind]
    ]
    with np.load(PROFILES / f"{name}.npz") as classes:
        return Profile(tuple(columns), dict(classes), facts["click"])


def _log2_of(value: int) -> float:
    return float(log2(np.array([value], np.float64))[0])


MIN_NUM_ROWS = 100
"""A scale never shrinks a table below this many rows."""

_ONE = 1 << 32
_RANKS_PER_OCTAVE = 16
_MAX_SLOPE = (1 << 44) - 1
_WORLD_SEED = 0x686F74736574
_CALIBRATION_SEED = 0x63616C69
_NUM_CALIBRATION = 1 << 16
_MAIN_DEVIATION = 147.8
_PAIR_DEVIATION = 170.0


def scaled_num_rows(num_rows: int, scale: float) -> int:
    """Return a table's rows at a scale; small tables keep theirs."""
    return min(num_rows, max(MIN_NUM_ROWS, int(num_rows / scale)))


@functools.lru_cache(maxsize=4)
def world_of(profile: str, scale: float = 1) -> World:
    """Return the tables of the profile called ``profile``, cardinalities divided by ``scale``."""
    found = load_profile(profile)
    columns = found.columns
    pieces = [_pieces(found, column, scale) for column in columns]
    starts, ranks, slopes, effects = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
    names = [column.name for column in columns]
    pairs = [(names.index(left), names.index(right)) for left, right, _ in found.click["pairs"]]
    # Shares are unsigned integers, which a random number of 64 bits is compared with.
    world = World(
        **found.classes,
        bucket_slopes=_bucket_slopes(found.classes["bucket_starts"], found.classes["bucket_ends"]),
        piece_starts=starts,
        piece_ranks=ranks,
        piece_slopes=slopes,
        piece_effects=effects,
        guide=_guides([starts for starts, *_ in pieces]),
        groups=np.array([column.group for column in columns], np.int64),
        couplings=np.array([round(column.coupling * (1 << COUPLING_BITS)) for column in columns], np.uint64),
        smallest=np.array([column.smallest for column in columns if column.is_dense], np.int64),
        keys=np.array([_key(number) for number in range(len(columns))], np.uint64),
        missing_effects=np.array([_missing_effect(found, column) for column in columns], np.int64),
        pairs=np.array(pairs, np.int64).reshape(-1, 2),
        pair_weights=np.array(
            [round(weight * 256 * 65536 / _PAIR_DEVIATION) for _, _, weight in found.click["pairs"]],
            np.int64,
        ),
        sigmoid=sigmoid_table(),
        intercept=0,
    )
    # The intercept is the one number that depends on all others: it sets the mean of the logits.
    return world._replace(intercept=_fitted_intercept(world, found.click["rate"]))


def _bucket_slopes(starts: NDArray[np.uint64], ends: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return (K, F, B) slopes from a bucket's width in the class's u to its width in the column's."""
    widths = np.diff(starts, append=np.uint64(_ONE), axis=1)
    # Shifted by 31 and doubled: a width of 2^32, shifted by 32, would not fit in 64 bits.
    class_widths = np.maximum(np.diff(ends, axis=2), np.uint64(1))
    slopes: NDArray[np.uint64] = (widths << np.uint64(31)) // class_widths * np.uint64(2)
    return np.minimum(slopes, np.uint64(_MAX_SLOPE))


def sigmoid_table() -> NDArray[np.uint64]:
    """Return click probabilities in u, from a logit of -NUM_SIGMOID / 512.

    Powers of exp(1/256) by repeated multiplication, so equal everywhere; off by at most 1e-12.
    """
    step = 1.0039138893383475734436
    powers = np.multiply.accumulate(np.full(NUM_SIGMOID // 2, step))
    above = powers / (1.0 + powers)
    below = 1.0 / (1.0 + powers)
    return _to_u(np.concatenate([below[::-1], [0.5], above[:-1]]))


def _fitted_intercept(world: World, click_rate: float) -> int:
    """Find the intercept, in 1/256, with which samples click at ``click_rate``."""
    ranks = np.empty((_NUM_CALIBRATION, world.groups.shape[0]), np.int64)
    logits = np.empty(_NUM_CALIBRATION, np.int64)
    labels = np.empty(_NUM_CALIBRATION, np.uint8)
    draw_samples(world, np.uint64(_CALIBRATION_SEED), 0, ranks, logits, labels)

    # Bisection: the expected clicks grow with the intercept.
    wanted = int(click_rate * _ONE) * _NUM_CALIBRATION
    low, high = -NUM_SIGMOID // 2, NUM_SIGMOID // 2
    while high - low > 1:
        middle = (low + high) // 2
        entries = np.clip(logits + middle + NUM_SIGMOID // 2, 0, NUM_SIGMOID - 1)
        if int(world.sigmoid[entries].sum()) > wanted:
            high = middle
        else:
            low = middle
    return low


def _pieces(
    profile: Profile, column: Column, scale: float
) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return starts, first ranks, slopes and effects of a column's pieces."""
    ranks = piece_ranks(column, scale)
    starts = _to_u(column.present.at(int(ranks[-1]), ranks))
    widths = np.maximum(np.diff(starts.astype(np.int64)), 1).astype(np.uint64)
    slopes = (np.diff(ranks).astype(np.uint64) << np.uint64(32)) // widths
    effects = (
        _dense_effects(profile, column, ranks) if column.is_dense else _amplitudes(profile, column, ranks)
    )
    return starts, ranks, np.append(slopes, np.uint64(0)), effects


def piece_ranks(column: Column, scale: float) -> NDArray[np.int64]:
    """Return the first ranks of pieces, then the number of present values.

    Each of the first 32 ranks is a piece, then every sixteenth of an octave, and each knot of the profile
    where the table keeps its rows.
    """
    num_values = column.present.num_values
    if not column.is_dense:
        # A missing value has a separate row, which is not one of the values.
        num_values = scaled_num_rows(column.num_rows, scale) - (column.num_rows - num_values)
    # Every rank up to some, then ever wider steps: a few hundred ranks describe millions of values.
    octaves = np.arange(_RANKS_PER_OCTAVE, 2 * _RANKS_PER_OCTAVE)[None, :] << np.arange(1, 30)[:, None]
    parts = [np.arange(2 * _RANKS_PER_OCTAVE), octaves.ravel(), np.array([num_values])]
    if num_values == column.present.num_values:
        parts.append(column.present.ranks.astype(np.int64))
    ranks = np.unique(np.concatenate(parts).astype(np.int64))
    return ranks[ranks <= num_values]


def _amplitudes(profile: Profile, column: Column, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return amplitudes times 2^16, which fall with octaves beyond the head."""
    click = profile.click
    octaves = np.maximum(log2(ranks.astype(np.float64) + 1.0) - click["head_octaves"], 0.0)
    decay = 1.0 / (1.0 + click["decay"] * octaves)
    return _to_fixed(click["sparse"].get(column.name, 0.0) * decay)


def _dense_effects(profile: Profile, column: Column, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return effects of dense values, in 1/256 nat."""
    slope, kink, middle, _ = profile.click["dense"][column.name]
    octaves = log2(np.maximum(ranks + column.smallest, 0).astype(np.float64) + 1.0) - middle
    nats = slope * octaves + kink * np.abs(octaves)
    effects: NDArray[np.int64] = np.rint(nats * 256.0).astype(np.int64)
    return effects


def _missing_effect(profile: Profile, column: Column) -> int:
    if column.is_dense:
        return round(float(profile.click["dense"][column.name][-1]) * 256)
    return int(_to_fixed(np.array([profile.click["sparse"].get(column.name, 0.0)]))[0])


def _to_fixed(nats: NDArray[np.float64]) -> NDArray[np.int64]:
    fixed: NDArray[np.int64] = np.rint(nats * (256.0 * 65536.0 / _MAIN_DEVIATION)).astype(np.int64)
    return fixed


def _guides(starts: list[NDArray[np.uint64]]) -> NDArray[np.int32]:
    """Return (F, 2^GUIDE_BITS) pieces of the least u with these bits."""
    leading = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << np.uint64(32 - GUIDE_BITS)
    guides = []
    first = 0
    for column_starts in starts:
        guides.append(first + np.searchsorted(column_starts, leading, side="right") - 1)
        first += column_starts.shape[0]
    return np.array(guides, np.int32)


def _key(number: int) -> np.uint64:
    """Return a column's key, which is equal for every log."""
    return np.uint64(mix64_pair(np.uint64(_WORLD_SEED), np.uint64(number)))


def _to_u(shares: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Return shares in [0, 1] in units of 2^-32, rounded down."""
    return np.floor(shares * _ONE).astype(np.uint64)


_SHARES = 1 << 10


@functools.lru_cache(maxsize=4)
def history_world_of(profile: str, scale: float = 1) -> HistoryWorld:
    """Return the tables of the profile called ``profile``, cardinalities divided by ``scale``."""
    facts = profile_facts(profile)
    item_edges, item_ends = _history_pieces(Coverage.of(facts["item_coverage"]), scale)
    category_edges, category_ends = _history_pieces(Coverage.of(facts["category_coverage"]), scale)
    return HistoryWorld(
        num_users=scaled_num_rows(facts["users"], scale),
        history_length=facts["history_length"],
        item_edges=item_edges,
        item_ends=item_ends,
        category_edges=category_edges,
        category_ends=category_ends,
        num_groups=facts["groups"],
        num_interests=facts["interests"],
        follow_share=int(facts["follow_share"] * _SHARES),
        short_share=int(facts["short_share"] * _SHARES),
    )


def header_of(*, has_label: bool) -> bytes:
    """Return the line of names that a log begins with."""
    return (b"label," if has_label else b"") + b"user,item,category\n"


def _history_pieces(coverage: Coverage, scale: float) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return edges of pieces of ranks, and shares before them."""
    num_rows = scaled_num_rows(coverage.num_values, scale)
    edges = [0]
    while edges[-1] < num_rows:
        edges.append(min(edges[-1] + max(edges[-1] // _RANKS_PER_OCTAVE, 1), num_rows))
    edges_P = np.array(edges, np.int64)
    ends_P = _to_u(coverage.at(num_rows, edges_P))
    ends_P[-1] = _ONE
    return edges_P, ends_P


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
