"""Counts to ids: the order of importance within a table and over all tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class RankedTable:
    """The rows of one table, most important first; a row's position is its id."""

    categories: NDArray[np.uint64]
    """(num_rows,); 0 for the rows of missing and oov."""
    counts: NDArray[np.int64]
    """(num_rows,), look-ups; descending."""
    missing_id: int
    """Row of missing look-ups; the oov row where they are too few to have their own."""
    oov_id: int
    """Row shared by rare and unknown categories; every table has one."""


def rank_by_frequency(
    categories: NDArray[np.uint64], counts: NDArray[np.int64], num_missing: int, min_count: int
) -> RankedTable:
    """Order a table's categories by falling count; ties by category, missing first and oov last.

    Args:
        categories: (num_categories,), ascending.
        counts: (num_categories,), look-ups of each.
        num_missing: look-ups without a category; 0 means that there is no such row.
        min_count: categories with fewer look-ups share the oov row, and so do missing ones.
    """
    has_own = counts >= min_count
    has_missing = num_missing >= max(min_count, 1)
    missing, oov = [num_missing] if has_missing else [], [0 if has_missing else num_missing]
    oov[0] += int(counts[~has_own].sum())
    zero = np.zeros(1, np.uint64)
    rows = np.concatenate([zero[: len(missing)], categories[has_own], zero])
    totals = np.concatenate([missing, counts[has_own], oov]).astype(np.int64)
    order = np.argsort(-totals, kind="stable")
    oov_id = int(np.flatnonzero(order == rows.shape[0] - 1)[0])
    missing_id = int(np.flatnonzero(order == 0)[0]) if has_missing else oov_id
    return RankedTable(rows[order], totals[order], missing_id, oov_id)


def places_over_all_tables(counts_of_tables: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Each row's place in the order over all tables by falling count; ties by table, then id.

    Rows of one count stand together in their table, so only these runs are sorted: the distinct counts
    of a log grow like the root of its look-ups.

    Args:
        counts_of_tables: per table (num_rows,), descending.

    Returns:
        Per table (num_rows,) int64, ascending; over all tables a permutation of 0 ... num_rows - 1.
    """
    starts = [np.flatnonzero(np.diff(counts, prepend=-1)) for counts in counts_of_tables]
    lengths = [
        np.diff(start, append=len(counts)) for start, counts in zip(starts, counts_of_tables, strict=True)
    ]
    run_counts = np.concatenate([c[s] for c, s in zip(counts_of_tables, starts, strict=True)])
    run_lengths = np.concatenate(lengths)
    order = np.argsort(-run_counts, kind="stable")
    first_places = np.empty(run_lengths.shape[0], np.int64)
    first_places[order] = np.cumsum(run_lengths[order]) - run_lengths[order]
    places, taken = [], 0
    for start, length in zip(starts, lengths, strict=True):
        first = first_places[taken : taken + start.shape[0]]
        places.append(np.repeat(first - start, length) + np.arange(length.sum()))
        taken += start.shape[0]
    return places
