"""Counts to ids: the order of importance within a table and over all tables.

Rows of one count stand together, and the distinct counts of a table grow like the root of its lookups: a
few thousand runs of equal counts say everything but which category has which row, and that is one more
pass over the categories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..counting.category_counter import CategoryCounter
from ..kernel import kernel, read_only

_NO_NULLS = read_only(np.zeros(0, np.uint8))
_CHUNK = 1 << 18
_SMALL_COUNTS = 1 << 12


@dataclass(frozen=True, slots=True)
class RankedRuns:
    """The rows of one table, most important first, in runs of one count; a row's position is its id."""

    counts: NDArray[np.int64]
    """(num_runs,), lookups of each row of a run; falling."""
    lengths: NDArray[np.int64]
    """(num_runs,), rows."""
    missing_id: int
    """Row of missing lookups; the oov row where they are too few for their own row."""
    oov_id: int
    """Row shared by rare and unknown categories; every table has one."""
    oov_count: int
    """Lookups of the oov row."""

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return int(self.lengths.sum())

    @property
    def starts(self) -> NDArray[np.int64]:
        """(num_runs,), the id of the first row of each run."""
        return np.cumsum(self.lengths) - self.lengths


def rank_by_frequency(counts: NDArray[np.int64], num_missing: int, min_count: int) -> RankedRuns:
    """Order a table's rows by falling count; ties by category, missing first and oov last.

    Args:
        counts: (num_categories,), lookups of each category, in the order of categories.
        num_missing: lookups without a category; 0 means that there is no such row.
        min_count: categories with fewer lookups share the oov row, and so do missing ones.
    """
    has_missing = num_missing >= max(min_count, 1)
    oov_count = 0 if has_missing else num_missing
    counter = CategoryCounter()
    # Count the counts themselves: rows per distinct count, for categories frequent enough for their own row.
    for first in range(0, counts.shape[0], _CHUNK):
        chunk = counts[first : first + _CHUNK]
        has_own = chunk >= min_count
        counter.add(chunk[has_own].view(np.uint64), _NO_NULLS)
        oov_count += int(chunk[~has_own].sum())
    # The rows of oov and of missing lookups stand in runs like any other.
    extra = [oov_count, *([num_missing] if has_missing else [])]
    counter.add(np.array(extra, np.uint64), _NO_NULLS)
    rising_counts, rising_lengths = counter.take()
    run_counts = rising_counts[::-1].astype(np.int64)
    lengths = rising_lengths[::-1].copy()
    starts = np.cumsum(lengths) - lengths
    # Ties: oov is the last of its run, missing the first.
    oov_run = int(np.searchsorted(-run_counts, -oov_count))
    oov_id = int(starts[oov_run] + lengths[oov_run]) - 1
    missing_id = int(starts[np.searchsorted(-run_counts, -num_missing)]) if has_missing else oov_id
    return RankedRuns(run_counts, lengths, missing_id, oov_id, oov_count)


def place_categories(
    categories: NDArray[Any],
    counts: NDArray[np.int64],
    min_count: int,
    ranked: RankedRuns,
    rows: NDArray[Any],
) -> None:
    """Write each category that has its own row to that row.

    Args:
        categories: (num_categories,), ascending; uint32 or uint64.
        counts: (num_categories,), lookups of each.
        min_count: as given to `rank_by_frequency`.
        ranked: the order that it returned.
        rows: (num_rows,) out; the rows of missing and oov are left as they are.
    """
    # The first row of a run may be taken by missing lookups; the last by oov, which is never reached.
    next_row = ranked.starts
    if ranked.missing_id != ranked.oov_id:
        next_row[np.flatnonzero(next_row == ranked.missing_id)] += 1
    run_of_small = np.searchsorted(-ranked.counts, -np.arange(_SMALL_COUNTS))
    _place_categories(categories, counts, min_count, ranked.counts, run_of_small, next_row, rows)


@kernel
def _place_categories(
    categories: NDArray[np.uint32],
    counts: NDArray[np.int64],
    min_count: int,
    run_counts: NDArray[np.int64],
    run_of_small: NDArray[np.int64],
    next_row: NDArray[np.int64],
    rows: NDArray[np.uint32],
) -> None:
    """See `place_categories`; ``run_of_small`` saves small counts the search for their run."""
    for i in range(categories.shape[0]):
        count = counts[i]
        if count < min_count:
            continue
        if count < run_of_small.shape[0]:
            run = run_of_small[count]
        else:
            # Runs fall by count: the first one whose count is not above this one.
            low, high = 0, run_counts.shape[0] - 1
            while low < high:
                middle = (low + high) // 2
                if run_counts[middle] > count:
                    low = middle + 1
                else:
                    high = middle
            run = low
        # Categories come in order, so each run stays in order.
        rows[next_row[run]] = categories[i]
        next_row[run] += 1


@kernel
def expand_runs(
    firsts: NDArray[np.int64], lengths: NDArray[np.int64], step: int, values: NDArray[np.int64]
) -> None:
    """Write ``first, first + step, first + 2 * step, ...`` for each run to ``values``, (lengths.sum(),)."""
    i = 0
    for run in range(firsts.shape[0]):
        for offset in range(lengths[run]):
            values[i] = firsts[run] + step * offset
            i += 1


def runs_of(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of one count that stand together: the count and the length of each run.

    Args:
        counts: (num_rows,).
    """
    if counts.shape[0] == 0:
        return counts[:0], np.zeros(0, np.int64)
    starts = np.concatenate([[0], np.flatnonzero(counts[1:] != counts[:-1]) + 1])
    return counts[starts], np.diff(starts, append=counts.shape[0])


Runs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The runs of one table: lookups of each row of a run, falling, and rows of each run; (num_runs,) both."""


def order_of_runs(tables: Sequence[Runs], row_bytes: Sequence[int]) -> NDArray[np.int64]:
    """Return the runs of all tables by falling lookups per byte; ties by table, then id.

    Args:
        tables: runs of each.
        row_bytes: per table, bytes of a row; only their ratios count.

    Returns:
        (num_runs of all tables,), positions in the tables' runs one behind the other. Exact: where widths
        differ, whole numbers of any size are compared.
    """
    counts = np.concatenate([counts for counts, _ in tables]) if tables else np.zeros(0, np.int64)
    if len(set(row_bytes)) <= 1:
        return np.argsort(-counts, kind="stable")
    # Lookups per byte times the common multiple of all widths: whole numbers, so no two differ by rounding.
    scale = math.lcm(*row_bytes)
    scales = [scale // width for (rows, _), width in zip(tables, row_bytes, strict=True) for _ in rows]
    density = [count * factor for count, factor in zip(counts.tolist(), scales, strict=True)]
    return np.array(sorted(range(len(density)), key=lambda run: -density[run]), np.int64)


def first_places(tables: Sequence[Runs], row_bytes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the places in the order over all tables that `order_of_runs` gives.

    Returns:
        Per table (num_runs,): the place of the first row of each run; the others follow it.
    """
    lengths = np.concatenate([lengths for _, lengths in tables])
    order = order_of_runs(tables, row_bytes)
    firsts = np.empty(lengths.shape[0], np.int64)
    firsts[order] = np.cumsum(lengths[order]) - lengths[order]
    return np.split(firsts, np.cumsum([counts.shape[0] for counts, _ in tables])[:-1])


def runs_by_density(
    tables: Sequence[Runs], row_bytes: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the table of each run, and its rows, in the order that `order_of_runs` gives."""
    order = order_of_runs(tables, row_bytes)
    numbers = [np.full(counts.shape[0], table, np.int64) for table, (counts, _) in enumerate(tables)]
    lengths = [lengths for _, lengths in tables]
    if not tables:
        return order, order
    return np.concatenate(numbers)[order], np.concatenate(lengths)[order]
