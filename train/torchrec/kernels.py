"""The kernel that divides a rank's lookups into replicated rows and distinct sharded rows.

It writes the bags of each feature, then finds the distinct cold rows of each table: with a mark for each row
where the table is small against its lookups, else by a radix sort of ids with their places. So there is no
memory for each row of a table: 16 bytes for each lookup of the largest table, and marks of 4 bytes for at
most `MARKS_PER_LOOKUP` rows a lookup.

Shapes: B samples, F features and T tables of one embedding dimension, P = F * B bags, L lookups of features
with lists, N hot and M cold lookups, C distinct cold rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LOW_BITS, MOST_DIGIT_BITS, ROW_SHIFT, sort_by_digits
from ...stats.kernel import kernel

# ruff: noqa: N815  (arrays carry shape suffixes)

MARKS_PER_LOOKUP = 4
"""Rows of a table for each of its cold lookups up to which marks are faster than a sort."""


class SampleLookups(NamedTuple):
    """The lookups of a rank's samples in all tables; every id is known to be in its table."""

    ids_BF: NDArray[np.int32]
    """Ids of the one-hot features."""
    list_ids_L: NDArray[np.int32]
    """Ids of the features with lists, one feature after the other."""
    list_offsets_FB1: NDArray[np.int64]
    """Where the ids of each sample begin in ``list_ids_L``, and the end of the last, by such feature."""


class DividedTables(NamedTuple):
    """The features and tables of one embedding dimension."""

    column_F: NDArray[np.int64]
    """Column of ``ids_BF`` of each feature, or -1 - its row of ``list_offsets_FB1``."""
    first_feature_T1: NDArray[np.int64]
    """Where the features of each table begin, and the end of the last."""
    num_hot_T: NDArray[np.int64]
    """Replicated rows of each table."""
    num_rows_T: NDArray[np.int64]
    """Rows of each table."""


class DividedLookups(NamedTuple):
    """Places for what `divide_lookups` writes, each at least as long as needed."""

    hot_ids_N: NDArray[np.int64]
    """One longer than there are lookups; so is ``cold_places_M``."""
    hot_offsets_P1: NDArray[np.int64]
    cold_places_M: NDArray[np.int64]
    cold_offsets_P1: NDArray[np.int64]
    cold_ids_C: NDArray[np.int64]
    num_cold_T: NDArray[np.int32]
    """Distinct cold rows of each table."""


class Workspace(NamedTuple):
    """Memory of `divide_lookups` besides what it writes, for L lookups of the largest table."""

    keys_2L: NDArray[np.int64]
    marks_R: NDArray[np.int32]
    """At least as many as the largest table has rows, or `MARKS_PER_LOOKUP` for each of its lookups."""


def new_lookups(num_lookups: int, num_bags: int, num_tables: int) -> DividedLookups:
    """Return memory for what `divide_lookups` writes."""
    return DividedLookups(
        np.empty(num_lookups + 1, np.int64),
        np.empty(num_bags + 1, np.int64),
        np.empty(num_lookups + 1, np.int64),
        np.empty(num_bags + 1, np.int64),
        np.empty(num_lookups, np.int64),
        np.empty(num_tables, np.int32),
    )


def new_workspace(tables: DividedTables, lookups_T: NDArray[np.int64]) -> Workspace:
    """Return memory for `divide_lookups`; ``lookups_T`` are those of each table."""
    marks_T = np.minimum(tables.num_rows_T - tables.num_hot_T, MARKS_PER_LOOKUP * lookups_T)
    return Workspace(np.empty((2, lookups_T.max()), np.int64), np.empty(marks_T.max(), np.int32))


@kernel
def _divide_feature(
    lookups: SampleLookups,
    column: int,
    num_hot: int,
    first_hot: int,
    first_bag: int,
    divided: DividedLookups,
) -> None:
    """Append the hot and the cold lookups of one feature, and the offsets of its bags. Exact."""
    num_samples = lookups.ids_BF.shape[0]
    hot = np.uint64(divided.hot_offsets_P1[first_bag])
    cold = np.uint64(divided.cold_offsets_P1[first_bag])
    # Both places are written and one is kept: a branch would be guessed wrongly too often.
    if column >= 0:
        for sample in range(num_samples):
            row = np.int64(lookups.ids_BF[sample, column])
            is_hot = np.uint64(row < num_hot)
            divided.hot_ids_N[hot] = row + first_hot
            divided.cold_places_M[cold] = row - num_hot
            hot += is_hot
            cold += np.uint64(1) - is_hot
            divided.hot_offsets_P1[first_bag + sample + 1] = hot
            divided.cold_offsets_P1[first_bag + sample + 1] = cold
        return
    offsets_B1 = lookups.list_offsets_FB1[-1 - column]
    for sample in range(num_samples):
        for lookup in range(offsets_B1[sample], offsets_B1[sample + 1]):
            row = np.int64(lookups.list_ids_L[lookup])
            is_hot = np.uint64(row < num_hot)
            divided.hot_ids_N[hot] = row + first_hot
            divided.cold_places_M[cold] = row - num_hot
            hot += is_hot
            cold += np.uint64(1) - is_hot
        divided.hot_offsets_P1[first_bag + sample + 1] = hot
        divided.cold_offsets_P1[first_bag + sample + 1] = cold


@kernel
def _mark_distinct(
    ids_M: NDArray[np.int64], first: int, marks_R: NDArray[np.int32], distinct_C: NDArray[np.int64]
) -> int:
    """Do the same as `_sort_distinct` with a mark for each row of the table. Exact."""
    marks_R[:] = 0
    for lookup in range(ids_M.shape[0]):
        marks_R[ids_M[lookup]] = 1
    num_distinct = 0
    for row in range(marks_R.shape[0]):
        is_there = marks_R[row]
        marks_R[row] = num_distinct
        if is_there:
            distinct_C[num_distinct] = row
            num_distinct += 1
    for lookup in range(ids_M.shape[0]):
        ids_M[lookup] = first + marks_R[ids_M[lookup]]
    return num_distinct


@kernel
def _sort_distinct(
    ids_M: NDArray[np.int64],
    first: int,
    num_rows: int,
    keys_2L: NDArray[np.int64],
    distinct_C: NDArray[np.int64],
) -> int:
    """Replace cold ids by ``first`` plus their rank among the distinct ones, which are written, ascending.

    Args:
        ids_M: in [0, num_rows); at most 2**32.
        first: place of the first distinct id.
        num_rows: at most 2**31.
        keys_2L: workspace.
        distinct_C: written.

    Returns:
        The number of distinct ids. Exact.
    """
    num_lookups = ids_M.shape[0]
    bits = 0
    while (num_rows - 1) >> bits > 0:
        bits += 1
    num_digits = max((bits + MOST_DIGIT_BITS - 1) // MOST_DIGIT_BITS, 1)
    width = (bits + num_digits - 1) // num_digits
    low = np.int64((1 << width) - 1)
    counts_DR = np.zeros((num_digits, low + 1), np.int64)
    for lookup in range(num_lookups):
        row = ids_M[lookup]
        keys_2L[0, lookup] = (row << ROW_SHIFT) | lookup
        for digit in range(num_digits):
            counts_DR[digit, np.uint64((row >> (digit * width)) & low)] += 1

    keys_L = keys_2L[sort_by_digits(keys_2L, num_lookups, counts_DR, num_digits, width)]
    last = np.int64(-1)
    num_distinct = 0
    for lookup in range(num_lookups):
        row = keys_L[lookup] >> ROW_SHIFT
        if row != last:
            distinct_C[num_distinct] = row
            num_distinct += 1
            last = row
        ids_M[np.uint64(keys_L[lookup] & LOW_BITS)] = first + num_distinct - 1
    return num_distinct


@kernel
def divide_lookups(
    lookups: SampleLookups, tables: DividedTables, workspace: Workspace, divided: DividedLookups
) -> int:
    """Divide the lookups in the tables of one embedding dimension; return the number of distinct cold rows.

    Replicated rows are numbered table after table. A cold row is counted from the first one of its table,
    and the distinct ones of all features of a table are ascending, table after table. Exact.
    """
    num_samples = lookups.ids_BF.shape[0]
    divided.hot_offsets_P1[0] = 0
    divided.cold_offsets_P1[0] = 0
    first_hot = 0
    num_distinct = 0
    for table in range(tables.num_hot_T.shape[0]):
        num_hot = tables.num_hot_T[table]
        first_feature = tables.first_feature_T1[table]
        stop_feature = tables.first_feature_T1[table + 1]
        for feature in range(first_feature, stop_feature):
            column = tables.column_F[feature]
            _divide_feature(lookups, column, num_hot, first_hot, feature * num_samples, divided)
        first_hot += num_hot
        # The cold lookups of all features of the table.
        start = divided.cold_offsets_P1[first_feature * num_samples]
        stop = divided.cold_offsets_P1[stop_feature * num_samples]
        ids_M = divided.cold_places_M[start:stop]
        found_C = divided.cold_ids_C[num_distinct:]
        num_cold = tables.num_rows_T[table] - num_hot
        found = 0
        if stop > start and num_cold <= MARKS_PER_LOOKUP * (stop - start):
            found = _mark_distinct(ids_M, num_distinct, workspace.marks_R[:num_cold], found_C)
        elif stop > start:
            found = _sort_distinct(ids_M, num_distinct, num_cold, workspace.keys_2L, found_C)
        divided.num_cold_T[table] = found
        num_distinct += found
    return num_distinct


@kernel
def has_cold(ids_BF: NDArray[np.int32], num_hot_F: NDArray[np.int32]) -> bool:
    """Return whether a lookup of one-hot features is of a row that is not replicated. Exact."""
    for sample in range(ids_BF.shape[0]):
        # Without a branch inside a sample, the loop over its features becomes vector instructions.
        num_cold = 0
        for feature in range(ids_BF.shape[1]):
            num_cold += ids_BF[sample, feature] >= num_hot_F[feature]
        if num_cold:
            return True
    return False
