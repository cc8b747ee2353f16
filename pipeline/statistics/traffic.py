"""Rows that move: under each policy, between ranks, and in a default run of each placement.

Policies and ranks are simulated on a trace of the shuffled training order, drawn from the whole log. That
order is of a hash of (seed, sample number), so its first samples are those with the lowest keys: one pass
over samples/ finds them, and no shards are needed. Memory grows with the trace.

Rows between ranks are counted in the trace, and expected from counts for the same samples. The batch is that
of the shards, divided among the ranks.

A default run is what `hotset train` would run on these shards without any option. The slots, the prefetch
depth and the order of batches are those of the run, and the planners are the ones that run, so what is
counted here is what the run counts. A long epoch is cut off after `EPOCH_LOOKUPS` lookups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import group_lookups, of_matrix
from ...stats.curves import most_frequent
from ...stats.exchange import (
    MOST_RANKS,
    RankedEpoch,
    count_exchange,
    count_remote_lookups,
    expected_exchange,
    mask_type,
    rank_masks,
    ranks_of_samples,
    striped_owners,
)
from ...stats.kernel import read_only
from ...stats.lookahead.planner import (
    POLICIES,
    CachePolicy,
    CacheSweep,
    StagingPlanner,
    cache_planner,
    deepest_prefetch,
    default_staging_bytes,
    distinct_stream,
    lookahead_planner,
    slots_of_widths,
    slots_to_try,
)
from ...stats.lookahead.step_plans import WINDOW_BYTES, RowStream, RowTraffic, Window
from ...stats.shuffle import epoch_order, keys_and_kinds
from ..errors import ConfigError
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import (
    PlanTotals,
    SamplesTotals,
    ShardFacts,
    ShardSettings,
    ShardsTotals,
    VocabularyTotals,
    by_feature,
    for_features,
)
from ..formats.ids import (
    ONE_EACH,
    BatchRows,
    ColdWidth,
    check_shards,
    cold_widths,
    read_batches,
    read_lookups,
    staged_sizes,
)
from ..runtime.tasks import run_tasks
from ..stages.pack import PackConfig
from ..stages.row_order import read_tables
from .folder import Inspected, Row, check_rows, packed_batch_size, read_shards

MAX_LOOKUPS = 1 << 23
"""Most lookups of a trace: 64 MiB of row numbers, and as much again while they are put in order."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Lookups of consecutive samples in the order of training."""

    rows: NDArray[np.int64]
    """(num_lookups,), rows of all tables numbered through."""
    offsets: NDArray[np.int64]
    """(num_samples + 1,), where the lookups of each sample begin."""

    @property
    def num_samples(self) -> int:
        """Samples drawn."""
        return int(self.offsets.shape[0]) - 1

    def batch_starts(self, batch_size: int) -> NDArray[np.int64]:
        """Return (num_batches + 1,) positions in ``rows`` where whole batches begin."""
        return self.offsets[:: max(1, batch_size)]


def draw_trace(inspected: Inspected, num_wanted: int, *, seed: int = 0) -> Trace:
    """Draw about ``num_wanted`` training samples, the first in shuffled order.

    Args:
        inspected: has the samples, of which those that train come first.
        num_wanted: fewer are drawn where the training part, or what a trace may hold, is smaller.
        seed: of the shuffle.
    """
    num_train = inspected.num_train
    num_lookups = max(1, len(by_feature(inspected.tables)))
    # Keys are uniform, so a share of the key range takes about that share of the samples.
    wanted = min(num_wanted, num_train, MAX_LOOKUPS // num_lookups)
    largest = largest_key(wanted / max(1, num_train))
    # Only files with training samples are read, the last of them up to where training ends.
    tasks = [(inspected.samples, *part, seed, largest) for part in inspected.train_parts()]
    parts = []
    done = 0
    with closing(run_tasks(draw_part, tasks, workers=inspected.resources.workers)) as drawn:
        for (*_, num_read, _, _), part in zip(tasks, drawn, strict=True):
            parts.append(part)
            done += num_read
            inspected.resources.progress("trace", done, num_train)
    keys, rows, lengths = (np.concatenate(found) for found in zip(_NOTHING, *parts, strict=True))
    # Samples in the order of their keys: take the lookups of each from where its file put them.
    order = np.argsort(keys, kind="stable")
    starts = np.cumsum(lengths) - lengths
    offsets = np.concatenate([[0], np.cumsum(lengths[order])])
    return Trace(rows[_ranges(starts[order], lengths[order])], offsets)


def largest_key(share: float) -> np.uint64:
    """Return the largest key of a share of the shuffled samples."""
    return np.uint64(2**64 - 1) if share >= 1 else np.uint64(int(share * 2**64))


_Part = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]
_NOTHING: _Part = (np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))


def draw_part(
    samples: Manifest, first: int, entry: FileEntry, stop: int, seed: int, largest: np.uint64
) -> _Part:
    """Return keys, rows and lookups of a file's samples up to ``largest``."""
    keys = np.empty(stop, np.uint64)
    kinds = np.empty(stop, np.uint8)
    keys_and_kinds(seed, first, first + stop, read_only(np.zeros(stop, np.uint8)), False, keys, kinds)
    chosen = np.flatnonzero(keys <= largest)
    keys = keys[chosen]
    tables = read_lookups(samples, entry, 0, stop)
    first_row_T = np.cumsum([0, *(table.num_rows for table in SamplesTotals.of(samples).tables)])
    # One lookup per table and sample: a matrix of rows, without a loop over samples.
    if all(table.offsets is ONE_EACH for table in tables):
        rows = np.stack([table.ids[chosen] for table in tables], axis=1) + first_row_T[:-1]
        return keys, rows.reshape(-1), np.full(chosen.shape[0], len(tables), np.int64)
    # With lists: table after table, then put into the order of samples.
    found = [_NOTHING[1]]
    places = [_NOTHING[1]]
    for table, base in zip(tables, first_row_T, strict=False):
        offsets = np.arange(stop + 1) if table.offsets is ONE_EACH else table.offsets
        sizes = np.diff(offsets)[chosen]
        found.append(table.ids[_ranges(offsets[chosen], sizes)] + base)
        places.append(np.repeat(np.arange(chosen.size), sizes))
    place = np.concatenate(places)
    rows = np.concatenate(found)[np.argsort(place, kind="stable")]
    return keys, rows, np.bincount(place, minlength=chosen.size)


def _ranges(starts: NDArray[np.integer[Any]], sizes: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the positions of ranges of so many elements, one range after another."""
    begins = np.cumsum(sizes) - sizes
    return np.repeat(starts - begins, sizes) + np.arange(sizes.sum())


NUM_BATCHES = 32
NUM_SIZES = 7


def miss_ratios(
    inspected: Inspected, *, batch_size: int | None = None, seed: int = 0, num_batches: int = NUM_BATCHES
) -> dict[str, Any]:
    """Count the rows that each policy loads again, by slots.

    A slot has the bytes of the plan's rows; tables of other widths count as this wide.

    Args:
        inspected: gives the places of rows in the order of importance, and the samples.
        batch_size: of the simulated training; None: that of the shards.
        seed: of the shuffle.
        num_batches: length of the trace; 32 batches of 2,048 take about 10 s CPU.

    Returns:
        ``batch_size``, ``num_batches``, ``num_needed`` (distinct rows of all batches), ``num_first_uses`` (of
        them, those never needed before), and ``curve``: policy, num_slots, bytes, num_refetched and
        refetched_share (of those needed, in [0, 1]; a first use is initialized in its slot). The curve is
        empty where there is no whole batch.
    """
    resources = inspected.resources
    batch_size = batch_size or packed_batch_size(inspected.folder) or PackConfig().batch_size
    drawn = draw_trace(inspected, num_batches * batch_size, seed=seed)
    starts = drawn.batch_starts(batch_size)
    found: dict[str, Any] = {
        "batch_size": batch_size,
        "num_batches": starts.shape[0] - 1,
        "prefetch": 0,
        "num_needed": 0,
        "num_first_uses": 0,
        "curve": [],
    }
    # Less than one whole batch: simulations would have no step.
    if starts.shape[0] < 2:
        return found
    stream = distinct_stream(drawn.rows, starts)
    # Number the rows that occur from 0, so that simulations need no room for the others.
    rows, keys = np.unique(stream.rows, return_inverse=True)
    sizes = slots_to_try(int(np.diff(stream.offsets).max()), rows.shape[0], NUM_SIZES)
    sweep = CacheSweep(RowStream(stream.offsets, keys), _places(inspected.vocabulary, rows), sizes[-1])
    curve = found["curve"]
    row_bytes = PlanTotals.of(inspected.plan).row_bytes
    # Results are in the order of POLICIES, each with one number for each size.
    for fetches in run_tasks(
        _run, [(sweep, policy, sizes) for policy in POLICIES], workers=resources.workers
    ):
        policy = POLICIES[len(curve) // len(sizes)]
        for size, again in zip(sizes, fetches, strict=True):
            curve.append(
                {
                    "policy": policy,
                    "num_slots": size,
                    "bytes": size * row_bytes,
                    "num_refetched": again,
                    "refetched_share": again / stream.rows.shape[0],
                }
            )
        resources.progress("policies", len(curve), len(POLICIES) * len(sizes))
    found["num_needed"] = int(stream.rows.shape[0])
    found["num_first_uses"] = int(rows.shape[0])
    return found


def _run(sweep: CacheSweep, policy: str, sizes: list[int]) -> list[int]:
    """Return the fetches of one policy at rising sizes."""
    found: list[int] = []
    for size in sizes:
        found.append(0 if found and found[-1] == 0 else sweep.refetches(policy, size))
    return found


def _places(vocabulary: Manifest, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place over all tables of rows numbered through, which ascend."""
    places = read_tables(vocabulary, "place")
    first_row_T = np.cumsum([0, *(place.shape[0] for place in places)])
    # Rows ascend over all tables, so those of one table are a slice.
    ends = np.searchsorted(rows, first_row_T)
    return np.concatenate(
        [
            place[rows[a:b] - first]
            for place, first, a, b in zip(places, first_row_T, ends, ends[1:], strict=False)
        ]
    )


_MOST_ROWS = 2**31 - 1
"""Rows are numbered by int32."""


def exchange_of_ranks(inspected: Inspected, ranks: Sequence[int]) -> dict[str, Any]:
    """Return what crosses between so many ranks.

    Raises:
        ConfigError: fewer ranks than 2 or too many, too few samples, or too many rows.
    """
    batch_size = packed_batch_size(inspected.folder) or PackConfig().batch_size
    for num_ranks in ranks:
        if not 2 <= num_ranks <= min(MOST_RANKS, batch_size):
            raise ConfigError(
                f"--ranks: want 2 to {min(MOST_RANKS, batch_size)} ranks for batches of {batch_size}, "
                f"got {num_ranks}"
            )
    num_rows = sum(table.num_rows for table in inspected.tables)
    if num_rows > _MOST_ROWS:
        raise ConfigError(f"--ranks: {num_rows:,} rows, at most {_MOST_ROWS:,} can be numbered")
    trace = draw_trace(inspected, inspected.num_train)
    if trace.num_samples == 0:
        raise ConfigError("--ranks: the log has no training samples")
    # For the whole epoch rows are expected by its counts; what is counted is the trace, which may be shorter.
    counts = np.concatenate([np.empty(0, np.int64), *inspected.counts])
    found: list[Row] = []
    for number, num_ranks in enumerate(ranks):
        inspected.resources.progress("ranks", number, len(ranks))
        starts = np.append(np.arange(0, trace.num_samples, batch_size), trace.num_samples)
        epoch = ranked_epoch(trace, starts, num_rows, batch_size, num_ranks)
        of_epoch = _expected(counts, inspected.num_train, batch_size, num_ranks)
        found.append(_row(epoch, of_epoch, batch_size))
    inspected.resources.progress("ranks", len(ranks), len(ranks))
    return {
        "batch_size": batch_size,
        "num_samples": trace.num_samples,
        "num_train_samples": inspected.num_train,
        "ranks": found,
    }


def ranked_epoch(
    trace: Trace, starts: NDArray[np.int64], num_rows: int, batch_size: int, num_ranks: int
) -> RankedEpoch:
    """Cut the samples of a trace into batches, and these among ranks.

    Args:
        trace: the samples of the epoch.
        starts: (num_batches + 1,), the first sample of each batch and the number of all.
        num_rows: of all tables.
        batch_size: of whole batches, of which each rank takes an equal part.
        num_ranks: ranks that take part.
    """
    keys: list[NDArray[np.int32]] = []
    masks = []
    remote_lookups = 0
    striped = striped_owners(num_rows, num_ranks)
    for first, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        # All tables are numbered through, so they are one table here.
        rows = trace.rows[trace.offsets[first] : trace.offsets[stop]].astype(np.int32)
        lookups = group_lookups(of_matrix(rows, np.array([num_rows])))
        # A sample is computed by one rank, and so are all its lookups.
        ranks_B = ranks_of_samples(stop - first, batch_size, num_ranks, num_ranks)
        ranks_N = np.repeat(ranks_B, np.diff(trace.offsets[first : stop + 1]))
        keys.append(lookups.rows_U)
        masks.append(rank_masks(lookups, ranks_N, num_ranks))
        remote_lookups += count_remote_lookups(lookups, ranks_N, striped[lookups.rows_U])
    return RankedEpoch(
        num_ranks=num_ranks,
        num_samples=trace.num_samples,
        num_steps=len(keys),
        keys=np.concatenate(keys),
        masks=np.concatenate([np.empty(0, mask_type(num_ranks)), *masks]),
        lookups_of_rows=np.bincount(trace.rows, minlength=num_rows),
        remote_lookups=remote_lookups,
    )


def _expected(
    lookups: NDArray[np.int64], num_samples: int, batch_size: int, num_ranks: int
) -> dict[str, float]:
    """Return the rows that a rank is expected to receive per step."""
    num_steps = -(-num_samples // batch_size)
    expected = asdict(expected_exchange(lookups, num_samples, num_steps, num_ranks))
    per_rank = num_ranks * num_steps
    return {name.replace("_", " "): found / per_rank for name, found in expected.items()}


def _row(epoch: RankedEpoch, of_epoch: dict[str, float], batch_size: int) -> Row:
    found = count_exchange(epoch)
    # From the plainest scheme to the least that any could send.
    counted = {
        "every lookup": 2 * epoch.remote_lookups,
        "deduplicated": found.deduplicated,
        "first uses computed": found.striped.rows,
        "owners by use": found.by_use.rows,
        "least possible": found.least,
    }
    # Next to its counts is the expectation for the trace, from its lookups.
    of_trace = (epoch.lookups_of_rows, epoch.num_samples, batch_size, epoch.num_ranks)
    expected = _expected(*of_trace)
    per_rank = epoch.num_ranks * epoch.num_steps
    return {
        "ranks": epoch.num_ranks,
        "rank_samples": epoch.num_samples / per_rank,
        "schemes": [
            {
                "scheme": name,
                "expected_of_epoch": of_epoch.get(name),
                "expected": expected.get(name),
                "counted": rows / per_rank,
            }
            for name, rows in counted.items()
        ],
    }


EPOCH_LOOKUPS = 1 << 24
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
    check_rows(totals.tables, shards, inspected.vocabulary)
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
    vector_bytes: int
    """Bytes of a sample's vectors, one per feature."""

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
            traffic.add(planner.plan_rest())
            to_fast += group.row_bytes * traffic.rows_to_fast
            to_slow += group.row_bytes * (traffic.rows_to_slow + planner.end_epoch().rows.size)
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
    check_shards(shards)
    totals = ShardsTotals.of(shards)
    packed = ShardSettings.of(shards)
    # Trainers number the batches of hot-only files first.
    facts = [(entry, shards.facts_of(ShardFacts, entry)) for _, entry in shards.parts()]
    files = [each for kind in ("hot_only", "mixed") for each in facts if each[1].kind == kind]
    batches = [(*file, number) for file in files for number in range(file[1].num_batches)]
    is_hot_only = np.array(
        [found.kind == "hot_only" or number in (found.hot_only_batches or ()) for _, found, number in batches]
    )
    # So many batches of the epoch's order that their lookups stay within the limit.
    order = epoch_order(is_hot_only, SEED, 0, spread=packed.is_grouped)
    num_lookups = max(1, sum(int(count.sum()) for count in inspected.counts))
    per_batch = max(1, num_lookups // max(1, inspected.num_train)) * packed.batch_size
    chosen = order[: max(1, EPOCH_LOOKUPS // per_batch)].tolist()
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
    vector_bytes = 4 * sum(for_features(totals.tables, totals.embedding_dims))
    return _Epoch(groups, prefetch, is_hot_only[chosen], samples_of_batch[chosen], order.size, vector_bytes)


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
