"""Rows that would cross between ranks in training: expected from counts, and counted in a trace.

The batch is that of the shards, divided among the ranks. Rows are counted along the shuffled order of
training, in its first samples as far as a trace holds them; what is expected is of the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import group_lookups, of_matrix
from ...stats.exchange import (
    MOST_RANKS,
    RankedEpoch,
    count_remote_lookups,
    mask_type,
    rank_masks,
    ranks_of_samples,
    striped_owners,
)
from ...stats.exchange_volume import count_exchange, expected_exchange
from ..errors import ConfigError
from ..stages.pack import PackConfig
from .inspected_folder import Inspected, packed_batch_size
from .training_trace import Trace, draw_trace

_MOST_ROWS = 2**31 - 1
"""Rows are numbered by int32."""


class SchemeRow(TypedDict):
    """The rows that one rank receives in a step, vectors and gradients, the mean over ranks and steps."""

    scheme: str
    expected_of_epoch: float | None
    """Expected over the whole training part; None: there is no formula for the scheme."""
    expected: float | None
    """Expected over the samples that were counted."""
    counted: float


class RanksRow(TypedDict):
    """The exchange of so many ranks."""

    ranks: int
    rank_samples: float
    """Samples that each rank computes per step."""
    schemes: list[SchemeRow]


class RankStatistics(TypedDict):
    """The exchange by the number of ranks, and what was counted."""

    batch_size: int
    num_samples: int
    num_train_samples: int
    ranks: list[RanksRow]


def exchange_of_ranks(inspected: Inspected, ranks: Sequence[int]) -> RankStatistics:
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
    trace = draw_trace(inspected.samples, inspected.num_train, inspected.num_train, inspected.resources)
    if trace.num_samples == 0:
        raise ConfigError("--ranks: the log has no training samples")
    # For the whole epoch rows are expected by its counts; what is counted is the trace, which may be shorter.
    counts = np.concatenate([np.empty(0, np.int64), *inspected.counts])
    found: list[RanksRow] = []
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
    """Return the expected rows of each scheme that one rank receives in a step."""
    num_steps = -(-num_samples // batch_size)
    expected = asdict(expected_exchange(lookups, num_samples, num_steps, num_ranks))
    per_rank = num_ranks * num_steps
    return {name.replace("_", " "): found / per_rank for name, found in expected.items()}


def _row(epoch: RankedEpoch, of_epoch: dict[str, float], batch_size: int) -> RanksRow:
    found = count_exchange(epoch)
    # From the plainest scheme to the least that any could send.
    counted = {
        "every lookup": 2 * epoch.remote_lookups,
        "deduplicated": found.deduplicated,
        "first uses computed": found.striped.rows,
        "homes by use": found.by_use.rows,
        "least possible": found.least,
    }
    # Beside its counts stands what is expected of the trace itself, from its own lookups.
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
