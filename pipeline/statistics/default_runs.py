"""The first epoch of every placement in a default run.

It is what `hotset train` would run on these shards without any option. The slots, the prefetch depth and the
order of batches are those of the run, and the planners are the ones that run, so what is counted here is what
the run counts. A long epoch is cut off after `MAX_LOOKUPS` lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from typing import Any

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
from ..cold_batches import BatchRows, ColdWidth, cold_widths, read_batches, refuse_other_shards, staged_sizes
from ..folders.manifest import Manifest, ShardFacts
from ..folders.totals import ShardSettings, ShardsTotals, VocabularyTotals
from ..runtime.tasks import run_tasks
from .folder import Inspected, read_shards, refuse_other_rows

MAX_LOOKUPS = 1 << 24
"""Lookups that are simulated at most: about 10 s CPU."""
SEED = 0
CACHE_POLICY: CachePolicy = "lfu"


def default_runs(inspected: Inspected) -> dict[str, Any]:
    """Return the bytes that each placement moves by default in epoch 0.

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
    vector_bytes = int(epoch.samples_of_batch.sum()) * epoch.vector_bytes
    dedup_bytes = sum(4 * group.cold.embedding_dim * group.rows.rows.size for group in epoch.groups)
    # Vectors up and gradients down: one per bag, or one per distinct row of a batch.
    placements = [
        epoch.moved("all-fast", epoch.bytes_of(lambda group: int(group.cold.last.sum()))),
        epoch.moved("hybrid", 0, vector_bytes, vector_bytes),
        epoch.moved("hybrid-dedup", 0, dedup_bytes, dedup_bytes),
        _lookahead(epoch),
    ]
    # fae needs the whole epoch, and the cache the counts of the whole training part.
    if epoch.is_hot_only.size == epoch.num_epoch_batches:
        placements.append(_fae(epoch))
    else:
        inspected.left_out.append("what the placement fae moves: the epoch is too long to be simulated whole")
    if VocabularyTotals.of(inspected.vocabulary).num_counted_samples is None:
        placements.append(_cache(inspected, epoch))
    else:
        inspected.left_out.append("what the placement cache moves: the counts are of some of the files")
    return {"settings": _settings(shards, epoch), "placements": placements}


@dataclass(frozen=True, slots=True)
class _Group:
    """The tables of one embedding_dim, and their rows in each batch."""

    cold: ColdWidth
    row_bytes: int
    num_slots: int
    rows: RowStream
    """The distinct rows of each batch; keys number all rows through."""
    cold_rows: RowStream
    """The cold rows of each mixed batch; keys number cold rows through."""

    @property
    def num_hot(self) -> int:
        """Rows before the first cold one of their table."""
        return int(self.cold.first.sum())


@dataclass(frozen=True, slots=True)
class _Epoch:
    """The first batches of the first epoch, in their order."""

    groups: list[_Group]
    prefetch: int
    is_hot_only: NDArray[np.bool_]
    samples_of_batch: NDArray[np.int64]
    num_epoch_batches: int

    @property
    def vector_bytes(self) -> int:
        """Bytes of a sample's vectors, one per table."""
        return sum(4 * group.cold.embedding_dim * len(group.cold.tables) for group in self.groups)

    def bytes_of(self, num_rows: Callable[[_Group], int]) -> int:
        """Return the bytes of so many rows of each group."""
        return sum(group.row_bytes * num_rows(group) for group in self.groups)

    @property
    def hot_bytes(self) -> int:
        """Bytes of the hot rows."""
        return self.bytes_of(lambda group: group.num_hot)

    @property
    def staging_bytes(self) -> int:
        """Bytes of the staging areas."""
        return self.bytes_of(lambda group: group.num_slots)

    def moved(
        self,
        placement: str,
        fast_bytes: int,
        to_fast: int = 0,
        to_slow: int = 0,
        staged: Sequence[RowTraffic] = (),
    ) -> dict[str, Any]:
        """Return the row of a placement."""
        num_samples = max(1, int(self.samples_of_batch.sum()))
        return {
            "placement": placement,
            "fast_bytes": fast_bytes,
            "bytes_to_fast": to_fast,
            "bytes_to_slow": to_slow,
            "bytes_to_fast_per_sample": to_fast / num_samples,
            "bytes_to_slow_per_sample": to_slow / num_samples,
            "rows_initialized": sum(found.rows_made for found in staged),
            "shortened": sum(found.shortened for found in staged),
            "split": sum(found.split for found in staged),
        }

    def planned(
        self, placement: str, fast_bytes: int, runs: Iterable[tuple[StagingPlanner, RowStream]]
    ) -> dict[str, Any]:
        """Return the row of a placement, from each group's planner and batches."""
        found = []
        to_fast = 0
        to_slow = 0
        for group, (planner, stream) in zip(self.groups, runs, strict=True):
            traffic = RowTraffic()
            traffic.add(planner.plan(stream))
            plans, residents = planner.finish()
            traffic.add(plans)
            to_fast += group.row_bytes * traffic.rows_to_fast
            to_slow += group.row_bytes * (traffic.rows_to_slow + residents.rows.size)
            found.append(traffic)
        return self.moved(placement, fast_bytes, to_fast, to_slow, found)


def _settings(shards: Manifest, epoch: _Epoch) -> dict[str, Any]:
    totals = ShardsTotals.of(shards)
    packed = ShardSettings.of(shards)
    num_slots = sum(group.num_slots for group in epoch.groups)
    return {
        "batch_size": packed.batch_size,
        "order": packed.order,
        "seed": SEED,
        "prefetch": epoch.prefetch,
        "hot_bytes": epoch.hot_bytes,
        "staging_bytes": epoch.staging_bytes,
        "num_slots": num_slots,
        "cache_slots": num_slots + sum(group.num_hot for group in epoch.groups),
        "cache_policy": CACHE_POLICY,
        "row_bytes": totals.row_bytes,
        "embedding_optimizer": totals.embedding_optimizer,
        "num_batches": epoch.is_hot_only.size,
        "num_epoch_batches": epoch.num_epoch_batches,
        "num_samples": int(epoch.samples_of_batch.sum()),
    }


def _read_epoch(shards: Manifest, inspected: Inspected) -> _Epoch:
    """Read the distinct rows of the first batches of epoch 0."""
    refuse_other_shards(shards)
    totals = ShardsTotals.of(shards)
    packed = ShardSettings.of(shards)
    # Trainers number the batches of hot-only files first.
    facts = [(entry, ShardFacts.of(shards, entry)) for entry in shards.files]
    files = [each for kind in ("hot_only", "mixed") for each in facts if each[1].kind == kind]
    batches = [(*file, number) for file in files for number in range(file[1].num_batches)]
    is_hot_only = np.array(
        [found.kind == "hot_only" or number in (found.hot_only_batches or ()) for _, found, number in batches]
    )
    # So many batches of the epoch's order that their lookups stay within the limit.
    order = epoch_order(is_hot_only, SEED, 0, spread=packed.is_grouped)
    num_lookups = max(1, sum(int(count.sum()) for count in inspected.counts))
    per_batch = max(1, num_lookups // max(1, inspected.num_train)) * packed.batch_size
    chosen = order[: max(1, MAX_LOOKUPS // per_batch)].tolist()
    # Each file is read once, for all rows of all groups.
    widths = cold_widths(shards, [0] * len(totals.tables))
    found: dict[int, list[BatchRows]] = {}
    numbers_of_file = [
        list(numbers) for _, numbers in groupby(sorted(chosen), lambda number: batches[number][0].path)
    ]
    tasks = [
        (batches[own[0]][0], [batches[number][2] for number in own], shards, widths)
        for own in numbers_of_file
    ]
    with closing(run_tasks(read_batches, tasks, workers=inspected.resources.workers)) as read:
        for done, (numbers, of_file) in enumerate(zip(numbers_of_file, read, strict=True), 1):
            found.update(zip(numbers, of_file, strict=True))
            inspected.resources.progress("runs", done, len(tasks))
    # The staging area is the one that training chooses.
    cold = cold_widths(shards)
    sizes = staged_sizes(shards, cold, totals.embedding_optimizer)
    num_bytes = default_staging_bytes(sizes, None)
    groups = []
    for place, (width, size, num_slots) in enumerate(
        zip(cold, sizes, slots_of_widths(sizes, num_bytes), strict=True)
    ):
        rows = _stream([found[number][place] for number in chosen])
        mixed = [found[number][place] for number in chosen if not is_hot_only[number]]
        cold_rows = _stream([_cold_rows(width, batch) for batch in mixed])
        groups.append(_Group(width, size.row_bytes, num_slots, rows, cold_rows))
    samples_of_batch = np.array(
        [min(packed.batch_size, entry.num_samples - n * packed.batch_size) for entry, _, n in batches]
    )
    prefetch = deepest_prefetch(sizes, num_bytes)
    return _Epoch(groups, prefetch, is_hot_only[chosen], samples_of_batch[chosen], order.size)


def _stream(batches: Sequence[BatchRows]) -> RowStream:
    return RowStream.of([rows for rows, _ in batches], [lookups for _, lookups in batches])


def _cold_rows(width: ColdWidth, batch: BatchRows) -> BatchRows:
    """Return the cold rows of a batch by their own keys, from all of its rows numbered through."""
    rows, lookups = batch
    ends = np.cumsum(width.last)
    table = np.searchsorted(ends, rows, side="right")
    behind_hot = rows - (ends - width.last + width.first)[table]
    is_cold = behind_hot >= 0
    return (behind_hot + width.base[table])[is_cold], lookups[is_cold]


def _fae(epoch: _Epoch) -> dict[str, Any]:
    """Count mixed batches as `hybrid`, and hot rows once each way."""
    num_bytes = int(epoch.samples_of_batch[~epoch.is_hot_only].sum()) * epoch.vector_bytes
    num_bytes += epoch.hot_bytes if epoch.is_hot_only.any() else 0
    return epoch.moved("fae", epoch.hot_bytes, num_bytes, num_bytes)


def _lookahead(epoch: _Epoch) -> dict[str, Any]:
    """Plan cold rows of mixed batches through the staging slots."""
    runs = []
    for group in epoch.groups:
        num_slots = max(1, group.num_slots)
        window = Window(num_slots, WINDOW_BYTES // len(epoch.groups))
        planner = lookahead_planner(
            max(1, group.cold.num_rows), num_slots, prefetch=epoch.prefetch, window=window, splits=True
        )
        runs.append((planner, group.cold_rows))
    # Hot rows have separate memory, in addition to the slots.
    return epoch.planned("lookahead", epoch.hot_bytes + epoch.staging_bytes, runs)


def _cache(inspected: Inspected, epoch: _Epoch) -> dict[str, Any]:
    """Plan all rows through the bytes of hot rows and staging."""
    runs = []
    for group in epoch.groups:
        # The rows of all tables of one group share the slots.
        counts = np.concatenate([inspected.counts[table] for table in group.cold.tables])
        # The cache begins with the most frequent rows, as a run with warm-up does.
        num_slots = max(1, group.num_slots + group.num_hot)
        warm = most_frequent(counts, num_slots)
        planner = cache_planner(
            CACHE_POLICY,
            counts.size,
            num_slots,
            prefetch=epoch.prefetch,
            warm_rows=warm,
            warm_counts=counts[warm],
            splits=True,
        )
        runs.append((planner, group.rows))
    slots_bytes = sum(
        group.row_bytes * planner.num_slots for group, (planner, _) in zip(epoch.groups, runs, strict=True)
    )
    return epoch.planned("cache", slots_bytes, runs)
