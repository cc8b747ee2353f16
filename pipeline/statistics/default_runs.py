"""The first epoch of every placement in a default run.

It is what `hotset train` would run on these shards without any option. The slots, the prefetch depth and the
order of batches are those of the run, and the planners are the ones that run, so what is counted here is what
the run counts. A long epoch is cut off after `MAX_LOOKUPS` lookups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ...stats.curves import most_frequent
from ...stats.lookahead.planner import (
    CachePolicy,
    StagingPlanner,
    cache_planner,
    deepest_prefetch,
    default_staging_bytes,
    lookahead_planner,
    slots_of_widths,
)
from ...stats.lookahead.step_plans import RowStream, RowTraffic
from ...stats.lookahead.window import WINDOW_BYTES, Window
from ...stats.shuffle import epoch_order
from ..cold_batches import ColdWidth, FoundRows, cold_widths, read_batches, refuse_other_shards, staged_sizes
from ..errors import ByteSize
from ..folders.manifest import Manifest, ShardFacts
from ..folders.totals import ShardSettings, ShardsTotals, VocabularyTotals
from ..runtime.tasks import run_tasks
from .folder import Inspected, read_shards, refuse_other_rows

MAX_LOOKUPS = 1 << 24
"""Lookups that are simulated at most: about 10 s CPU."""
SEED = 0
CACHE_POLICY: CachePolicy = "lfu"


class RunSettings(TypedDict, total=False):
    """The settings of the simulated runs, see `default_runs`; empty where there is no run to simulate."""

    batch_size: int
    order: str
    seed: int
    prefetch: int
    hot_bytes: int
    staging_bytes: int
    num_slots: int
    cache_slots: int
    cache_policy: str
    row_bytes: int
    embedding_optimizer: str
    num_batches: int
    num_epoch_batches: int
    num_samples: int


class MovedRow(TypedDict):
    """The rows that one placement moves, see `default_runs`."""

    placement: str
    fast_bytes: int
    bytes_to_fast: int
    bytes_to_slow: int
    bytes_to_fast_per_sample: float
    bytes_to_slow_per_sample: float
    rows_initialized: int
    shortened: int
    split: int


class DefaultRuns(TypedDict):
    """The placements with the settings that training has by default."""

    settings: RunSettings
    placements: list[MovedRow]


def default_runs(inspected: Inspected) -> DefaultRuns:
    """Bytes that each placement moves in the first epoch with the settings `hotset train` has by default.

    Returns:
        ``settings``: batch_size, seed, prefetch, hot_bytes (of the rows that are hot), staging_bytes and
        num_slots (of the staging area), cache_slots, cache_policy, row_bytes, embedding_optimizer,
        num_batches that were simulated, num_epoch_batches there are, and num_samples; ``placements``: per
        placement fast_bytes (memory for rows), bytes_to_fast and
        bytes_to_slow, both per sample too, rows_initialized at their first use, and how many transfers were
        shortened and batches split. Both are empty before `pack`. ``fae`` has the fewest switches, those of
        ``--fae-variant code``, as the test loss decides on others; it is missing where the epoch is cut off.

    Raises:
        ManifestError: the shards are damaged.
    """
    # Without shards or training batches there is no run to count.
    shards = read_shards(inspected.folder)
    if shards is None:
        inspected.left_out.append("what the placements move: there are no shards yet (hotset pack)")
        return {"settings": {}, "placements": []}
    totals = ShardsTotals.of(shards)
    refuse_other_rows(totals.tables, shards, inspected.vocabulary)
    if not totals.batches.hot_only + totals.batches.mixed:
        inspected.left_out.append("what the placements move: the shards have no training batches")
        return {"settings": {}, "placements": []}
    # The distinct rows are read once, and every placement is counted on them.
    epoch = _read_epoch(shards, inspected)
    areas = _staging_areas(shards)
    placements = [
        _Moved("all-fast", _row_bytes(areas, epoch.num_rows)),
        _in_place(shards, epoch, areas, deduplicates=False),
        _in_place(shards, epoch, areas, deduplicates=True),
        _lookahead(epoch, areas),
    ]
    # fae needs the whole epoch, and the cache the counts of the whole training part.
    if epoch.is_whole:
        placements.append(_fae(epoch, areas))
    else:
        inspected.left_out.append("what the placement fae moves: the epoch is too long to be simulated whole")
    if VocabularyTotals.of(inspected.vocabulary).num_counted_samples is None:
        placements.append(_cache(inspected, epoch, areas))
    else:
        inspected.left_out.append("what the placement cache moves: the counts are of some of the files")
    return {
        "settings": _settings(shards, epoch, areas),
        "placements": [moved.row(epoch.num_samples) for moved in placements],
    }


@dataclass(frozen=True, slots=True)
class StagingArea:
    """The staging area of one row width, and how far transfers run ahead."""

    width: ColdWidth
    row_bytes: int
    num_slots: int
    prefetch: int


def _staging_areas(shards: Manifest) -> list[StagingArea]:
    """Return each row width of ``shards`` with its share of the staging bytes of training."""
    refuse_other_shards(shards)
    widths = cold_widths(shards)
    sizes = staged_sizes(shards, widths, ShardsTotals.of(shards).embedding_optimizer)
    num_bytes = ByteSize(default_staging_bytes(sizes, None))
    prefetch = deepest_prefetch(sizes, num_bytes)
    return [
        StagingArea(width, size.row_bytes, num_slots, prefetch)
        for width, size, num_slots in zip(widths, sizes, slots_of_widths(sizes, num_bytes), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Epoch:
    """The first batches of the first epoch, in their order."""

    streams: list[RowStream]
    """Per width the distinct rows of each batch; keys number all its rows through."""
    is_hot_only: NDArray[np.bool_]
    """(num_batches,)."""
    samples_of_batch: NDArray[np.int64]
    """(num_batches,)."""
    num_epoch_batches: int
    num_rows: list[int]
    """Rows of each width, hot and cold."""

    @property
    def num_samples(self) -> int:
        """Samples of these batches."""
        return int(self.samples_of_batch.sum())

    @property
    def is_whole(self) -> bool:
        """Whether these are all batches of the epoch."""
        return int(self.is_hot_only.shape[0]) == self.num_epoch_batches


@dataclass(frozen=True, slots=True)
class _Moved:
    """The rows that one placement moves."""

    placement: str
    fast_bytes: int
    """Memory for rows on the fast tier."""
    to_fast_bytes: int = 0
    to_slow_bytes: int = 0
    rows_initialized: int = 0
    shortened: int = 0
    split: int = 0

    def row(self, num_samples: int) -> MovedRow:
        """The row of the series."""
        return {
            "placement": self.placement,
            "fast_bytes": self.fast_bytes,
            "bytes_to_fast": self.to_fast_bytes,
            "bytes_to_slow": self.to_slow_bytes,
            "bytes_to_fast_per_sample": self.to_fast_bytes / max(1, num_samples),
            "bytes_to_slow_per_sample": self.to_slow_bytes / max(1, num_samples),
            "rows_initialized": self.rows_initialized,
            "shortened": self.shortened,
            "split": self.split,
        }


def _settings(shards: Manifest, epoch: _Epoch, areas: Sequence[StagingArea]) -> RunSettings:
    totals = ShardsTotals.of(shards)
    packed = ShardSettings.of(shards)
    # A hot row is one before the first cold one of its table.
    hot = [int(area.width.first.sum()) for area in areas]
    return {
        "batch_size": packed.batch_size,
        "order": packed.order,
        "seed": SEED,
        "prefetch": areas[0].prefetch,
        "hot_bytes": _row_bytes(areas, hot),
        "staging_bytes": _row_bytes(areas, [area.num_slots for area in areas]),
        "num_slots": sum(area.num_slots for area in areas),
        "cache_slots": sum(area.num_slots for area in areas) + sum(hot),
        "cache_policy": CACHE_POLICY,
        "row_bytes": totals.row_bytes,
        "embedding_optimizer": totals.embedding_optimizer,
        "num_batches": epoch.is_hot_only.shape[0],
        "num_epoch_batches": epoch.num_epoch_batches,
        "num_samples": epoch.num_samples,
    }


def _row_bytes(areas: Sequence[StagingArea], num_rows: Sequence[int]) -> int:
    return sum(area.row_bytes * number for area, number in zip(areas, num_rows, strict=True))


def _read_epoch(shards: Manifest, inspected: Inspected) -> _Epoch:
    """Read the distinct rows of the first batches of epoch 0."""
    refuse_other_shards(shards)
    totals = ShardsTotals.of(shards)
    packed = ShardSettings.of(shards)
    # Trainers number the batches of hot-only files first.
    facts = [(entry, ShardFacts.of(shards, entry)) for entry in shards.files]
    files = [(entry, found) for kind in ("hot_only", "mixed") for entry, found in facts if found.kind == kind]
    is_hot_only = np.concatenate(
        [
            np.isin(np.arange(found.num_batches), found.hot_only_batches or ()) | (found.kind == "hot_only")
            for _, found in files
        ]
    )
    # So many batches of the epoch's order that their lookups stay within the limit.
    order = epoch_order(is_hot_only, SEED, 0, spread=packed.is_grouped)
    num_lookups = max(1, sum(int(count.sum()) for count in inspected.counts))
    per_batch = max(1, num_lookups // max(1, inspected.num_train)) * packed.batch_size
    chosen = order[: max(1, MAX_LOOKUPS // per_batch)]

    # The batches that are wanted, file by file, and the numbers by which the epoch knows them.
    widths = cold_widths(shards, [0] * len(totals.tables))
    is_wanted = np.zeros(is_hot_only.shape[0], np.bool_)
    is_wanted[chosen] = True
    tasks = []
    first = 0
    for entry, found in files:
        numbers = np.flatnonzero(is_wanted[first : first + found.num_batches])
        if numbers.size:
            tasks.append((entry, numbers.tolist(), shards, widths))
        first += found.num_batches
    # Files are read in any order: each batch goes to its position in the epoch.
    position_of = np.full(is_hot_only.shape[0], -1, np.int64)
    position_of[np.flatnonzero(is_wanted)] = np.arange(chosen.shape[0])
    parts: list[list[FoundRows]] = [[] for _ in widths]
    for _, found_of_widths in run_tasks(read_batches, tasks, workers=inspected.resources.workers):
        for part, of_width in zip(parts, found_of_widths, strict=True):
            part.append(of_width)
        inspected.resources.progress("runs", len(parts[0]), len(tasks))
    streams = [_in_order(part, position_of[chosen]) for part in parts]
    return _Epoch(
        streams,
        is_hot_only[chosen],
        np.concatenate([_batch_samples(entry.num_samples, shards) for entry, _ in files])[chosen],
        order.shape[0],
        [width.num_rows for width in widths],
    )


def _batch_samples(num_samples: int, shards: Manifest) -> NDArray[np.int64]:
    """(num_batches,): samples of each batch of a file, of which the last may be short."""
    size = ShardSettings.of(shards).batch_size
    return np.minimum(size, num_samples - np.arange(0, num_samples, size))


def _in_order(parts: list[FoundRows], positions: NDArray[np.int64]) -> RowStream:
    """Return the batches of all files in the order of ``positions``."""
    sizes = np.concatenate([part.sizes for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    lookups = np.concatenate([part.lookups for part in parts])
    # Where each batch begins in what was read, and where it is to begin in the epoch.
    starts = np.cumsum(sizes) - sizes
    offsets = np.concatenate([[0], np.cumsum(sizes[positions])]).astype(np.int64)
    # Each row comes from its own place, shifted by as much as its batch moves.
    take = np.repeat(starts[positions] - offsets[:-1], sizes[positions]) + np.arange(offsets[-1])
    return RowStream(offsets, rows[take].astype(np.int64), lookups[take].astype(np.int64))


def _in_place(shards: Manifest, epoch: _Epoch, areas: Sequence[StagingArea], *, deduplicates: bool) -> _Moved:
    """Vectors up and gradients down: one per bag, or one per distinct row of a batch."""
    # Without deduplication a sample costs a vector for each table, whatever rows it looks up.
    if not deduplicates:
        num_bytes = epoch.num_samples * _vector_bytes(areas)
        return _Moved("hybrid", 0, num_bytes, num_bytes)
    num_bytes = sum(
        4 * area.width.embedding_dim * stream.rows.shape[0]
        for area, stream in zip(areas, epoch.streams, strict=True)
    )
    return _Moved("hybrid-dedup", 0, num_bytes, num_bytes)


def _vector_bytes(areas: Sequence[StagingArea]) -> int:
    """Return the bytes of the vectors that a sample gives the model: one per table."""
    return sum(4 * area.width.embedding_dim * len(area.width.tables) for area in areas)


def _fae(epoch: _Epoch, areas: Sequence[StagingArea]) -> _Moved:
    """Mixed batches as `hybrid`, then all hot-only ones, with one copy of the hot rows each way."""
    hot_bytes = _row_bytes(areas, [int(area.width.first.sum()) for area in areas])
    num_bytes = int(epoch.samples_of_batch[~epoch.is_hot_only].sum()) * _vector_bytes(areas)
    num_bytes += hot_bytes if epoch.is_hot_only.any() else 0
    return _Moved("fae", hot_bytes, num_bytes, num_bytes)


def _lookahead(epoch: _Epoch, areas: Sequence[StagingArea]) -> _Moved:
    """Cold rows of mixed batches through the staging slots, those with the farthest next use leave."""
    hot_bytes = _row_bytes(areas, [int(area.width.first.sum()) for area in areas])
    staged = []
    for area, stream in zip(areas, epoch.streams, strict=True):
        cold = _cold_rows(stream, ~epoch.is_hot_only, area.width)
        num_slots = max(1, area.num_slots)
        window = Window(num_slots, WINDOW_BYTES // len(areas))
        planner = lookahead_planner(
            max(1, area.width.num_rows), num_slots, prefetch=area.prefetch, window=window, splits=True
        )
        staged.append(_run(planner, cold))
    # Hot rows have separate memory, in addition to the slots.
    slots = [area.num_slots for area in areas]
    return _sum("lookahead", hot_bytes + _row_bytes(areas, slots), areas, staged)


def _cold_rows(stream: RowStream, is_mixed: NDArray[np.bool_], width: ColdWidth) -> RowStream:
    """Return the cold rows of the mixed batches, by the keys of cold rows."""
    # Rows are numbered through all tables here, cold rows through the cold ones alone.
    first_key = np.cumsum(width.last) - width.last  # of each table, where all rows are numbered through
    table = np.searchsorted(first_key, stream.rows, side="right") - 1
    ids = stream.rows - first_key[table]
    batch = np.repeat(np.arange(is_mixed.shape[0]), np.diff(stream.offsets))
    # Only mixed batches need cold rows; the others leave the epoch.
    is_cold = (ids >= width.first[table]) & is_mixed[batch]
    sizes = np.bincount(batch[is_cold], minlength=is_mixed.shape[0])[is_mixed]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = (ids - width.first[table] + width.base[table])[is_cold]
    assert stream.lookups is not None
    return RowStream(offsets, rows, stream.lookups[is_cold])


def _cache(inspected: Inspected, epoch: _Epoch, areas: Sequence[StagingArea]) -> _Moved:
    """All rows through slots for as many bytes as hot rows and staging together, filled by frequency."""
    staged = []
    slots = []
    for area, stream in zip(areas, epoch.streams, strict=True):
        # The rows of all tables of one width share the slots.
        counts = np.concatenate([inspected.counts[table] for table in area.width.tables])
        num_slots = max(1, area.num_slots + int(area.width.first.sum()))
        # The cache begins with the most frequent rows, as a run with warm-up does.
        warm = most_frequent(counts, num_slots)
        planner = cache_planner(
            CACHE_POLICY,
            counts.shape[0],
            num_slots,
            prefetch=area.prefetch,
            warm_rows=warm,
            warm_counts=counts[warm],
            splits=True,
        )
        staged.append(_run(planner, stream))
        slots.append(num_slots)
    return _sum("cache", _row_bytes(areas, slots), areas, staged)


def _run(planner: StagingPlanner, stream: RowStream) -> RowTraffic:
    rows = RowTraffic()
    rows.add(planner.plan(stream))
    plans, residents = planner.finish()
    rows.add(plans)
    rows.rows_to_slow += residents.rows.size
    return rows


def _sum(
    placement: str, fast_bytes: int, areas: Sequence[StagingArea], staged: Sequence[RowTraffic]
) -> _Moved:
    return _Moved(
        placement,
        fast_bytes,
        _row_bytes(areas, [found.rows_to_fast for found in staged]),
        _row_bytes(areas, [found.rows_to_slow for found in staged]),
        sum(found.rows_made for found in staged),
        sum(found.shortened for found in staged),
        sum(found.split for found in staged),
    )
