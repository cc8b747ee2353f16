"""Curves of a folder's counts: what the first rows of a table serve, and what every budget makes hot.

FAE chooses by counts of a sample of the log; its curve is that of its released code, which takes the rows
with the highest counts in 5 % of the samples, all tables together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.coverage import coverage_points, top_shares
from ..stats.drift import count_rows
from ..stats.hot_levels import levels_by_count
from .encode import iterate_parts
from .hot_curve import Levels
from .lookups import ONE_EACH, read_lookups
from .manifest import FileEntry, Manifest
from .stretch import choose_samples, largest_key
from .tasks import run_tasks

POINTS_PER_DECADE = 6
SMALLEST_BUDGET = 1 << 14
FAE_SHARE = 0.05
"""Of the log that FAE counts."""


def coverage(names: Sequence[str], counts: Sequence[NDArray[np.int64]]) -> list[dict[str, Any]]:
    """Per table and number of its most looked-up rows: table, num_rows, lookup_share in [0, 1]."""
    found = []
    for name, count in zip(names, counts, strict=True):
        falling = count if bool((count[1:] <= count[:-1]).all()) else np.sort(count)[::-1]
        points = coverage_points(falling.shape[0], POINTS_PER_DECADE)
        shares = top_shares(falling, points)
        found += [
            {"table": name, "num_rows": rows, "lookup_share": share}
            for rows, share in zip(points, shares, strict=True)
        ]
    return found


def budgets_up_to(num_bytes: int, also: Sequence[int] = ()) -> list[int]:
    """Budgets for a curve: every half power of two from 16 KiB, and the bytes of all rows."""
    sizes, size = {num_bytes, *also}, float(SMALLEST_BUDGET)
    while size < num_bytes:
        sizes.add(round(size))
        size *= 2**0.5
    return sorted(sizes)


def sampled_levels(
    samples: Manifest,
    row_bytes: Sequence[int],
    budgets: Sequence[int],
    num_train: int,
    *,
    share: float = FAE_SHARE,
    seed: int = 0,
    workers: int = 0,
) -> Levels:
    """Levels of rows where a sample of the training part decides, per table."""
    num_rows = [table["num_rows"] for table in samples.totals["tables"]]
    first_row_T = np.cumsum([0, *num_rows])
    counts_R = np.zeros(int(first_row_T[-1]), np.int32)
    tasks = (
        (samples, entry, first, min(num_train - first, entry.num_samples), seed, largest_key(share))
        for first, entry in iterate_parts(samples)
        if first < num_train
    )
    for drawn in run_tasks(_draw_ids, tasks, workers=workers):
        for ids, first in zip(drawn, first_row_T, strict=False):
            count_rows(ids, counts_R[first:])
    widths_R = np.repeat(np.array(row_bytes, np.int64), num_rows)
    levels = levels_by_count(counts_R, widths_R, np.array(budgets, np.int64), seed)
    return np.split(levels, first_row_T[1:-1])


def _draw_ids(
    samples: Manifest, entry: FileEntry, first: int, stop: int, seed: int, largest: np.uint64
) -> list[NDArray[np.int32]]:
    """Per table, the look-ups of the samples of one file that are drawn."""
    chosen, _ = choose_samples(first, stop, seed, largest)
    tables = read_lookups(samples, entry, 0, stop)
    return [
        table.ids[chosen]
        if table.offsets is ONE_EACH
        else np.concatenate([table.ids[:0], *(table.of_samples(i, i + 1).ids for i in chosen.tolist())])
        for table in tables
    ]
