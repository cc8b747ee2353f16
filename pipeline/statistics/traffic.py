"""Rows that each policy loads, and rows that cross between ranks.

Both are simulated on a trace of the shuffled training order, drawn from the whole log. That order is of a
hash of (seed, sample number), so its first samples are those with the lowest keys: one pass over samples/
finds them, and no shards are needed. Memory grows with the trace.

Rows between ranks are counted in the trace, and expected from counts for the same samples. The batch is that
of the shards, divided among the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import group_lookups, of_matrix
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
from ...stats.lookahead.planner import POLICIES, CacheSweep, distinct_stream, slots_to_try
from ...stats.lookahead.step_plans import RowStream
from ...stats.shuffle import keys_and_kinds
from ..errors import ConfigError
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import PlanTotals, SamplesTotals
from ..formats.ids import ONE_EACH, read_lookups
from ..runtime.tasks import run_tasks
from ..stages.pack import PackConfig
from ..stages.row_order import read_tables
from .folder import Inspected, Row, packed_batch_size

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
    num_lookups = max(1, len(inspected.tables))
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
    keys_and_kinds(seed, first, first + stop, np.zeros(stop, np.uint8), False, keys, kinds)
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
        epoch = _epoch_of(trace, num_rows, batch_size, num_ranks)
        of_epoch = _expected(counts, inspected.num_train, batch_size, num_ranks)
        found.append(_row(epoch, of_epoch, batch_size))
    inspected.resources.progress("ranks", len(ranks), len(ranks))
    return {
        "batch_size": batch_size,
        "num_samples": trace.num_samples,
        "num_train_samples": inspected.num_train,
        "ranks": found,
    }


def _epoch_of(trace: Trace, num_rows: int, batch_size: int, num_ranks: int) -> RankedEpoch:
    """Cut the samples of a trace into batches, and these among ranks."""
    starts = np.append(np.arange(0, trace.num_samples, batch_size), trace.num_samples)
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
        offsets=np.cumsum([0, *(part.size for part in keys)]),
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
        "homes by use": found.by_use.rows,
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
