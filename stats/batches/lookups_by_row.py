"""The lookups of a batch grouped by row: its distinct rows in order of (table, id), and the lookups of each.

A radix sort of each table's ids groups a batch in some 12 ns per lookup. It serves lookups (each row is read
once), sums of gradients (each row's lookups lie together, in sample order) and planners (distinct rows
without a hash table). Shapes: F tables, N lookups, U distinct rows, L lookups of a table, D digits, R values
of a digit.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .batch_lookups import BatchLookups

_MOST_DIGIT_BITS = 11
"""2,048 counters, 16 KiB: they stay in the first-level cache."""
_LEAST_DIGIT_BITS = 4
_MOST_DIGITS = 8
_ROW_SHIFT = 32
_LOW_BITS = (1 << 32) - 1


class LookupsByRow(NamedTuple):
    """The lookups of a batch, row after row."""

    order_N: NDArray[np.int32]
    """The lookups of each row, ascending: positions among the lookups of the batch; or numbers among those of
    the table (`group_lookups`), which are sample numbers where each sample has one."""
    rows_U: NDArray[np.int32]
    """Ids of the distinct rows, ascending in each table, table after table."""
    starts_U1: NDArray[np.int32]
    """Where the lookups of each row begin in ``order``, and the end of the last."""
    first_F1: NDArray[np.int64]
    """Where the rows of each table begin in ``rows``, and the end of the last."""

    @property
    def num_rows(self) -> int:
        """Distinct rows of the batch."""
        return int(self.rows_U.size)

    @property
    def counts_U(self) -> NDArray[np.int32]:  # noqa: N802
        """Lookups of each distinct row."""
        return np.diff(self.starts_U1)


@kernel
def _sort_table(
    batch: BatchLookups,
    table: int,
    is_local: bool,
    keys_2L: NDArray[np.int64],
    counts_DR: NDArray[np.int64],
) -> int:
    """Sort the lookups of one table by id, stably: ``keys_2L[result]`` are ``id << 32 | lookup``.

    Args:
        batch: the lookups.
        table: which of the tables.
        is_local: number lookups within the table rather than by position.
        keys_2L: (2, at least the lookups of the table), written.
        counts_DR: (_MOST_DIGITS, 2 ** _MOST_DIGIT_BITS), workspace.

    Returns:
        Which half of ``keys`` is sorted; -1 - the position of a lookup whose id is outside the table.
    """
    first = batch.offsets_F1[table]
    num_lookups = batch.offsets_F1[table + 1] - first
    num_tables = batch.num_rows_F.shape[0]
    # Digits of equal width, few where there are few lookups: counters are summed up for each table.
    # How many bits the largest id has.
    bits = 0
    while (batch.num_rows_F[table] - 1) >> bits > 0:
        bits += 1
    most = _LEAST_DIGIT_BITS
    while num_lookups >> most > 0 and most < _MOST_DIGIT_BITS:
        most += 1
    num_digits = (bits + most - 1) // most
    width = 0
    if num_digits:
        width = (bits + num_digits - 1) // num_digits
    low = np.int64((1 << width) - 1)

    # One pass reads the ids, checks them and counts every digit.
    counts_DR[:num_digits, : low + 1] = 0
    for i in range(num_lookups):
        position = i * num_tables + table
        if batch.positions_N.shape[0]:
            position = np.int64(batch.positions_N[first + i])
        row = np.int64(batch.ids_N[position])
        if row < 0 or row >= batch.num_rows_F[table]:
            return -1 - int(position)
        keys_2L[0, i] = (row << _ROW_SHIFT) | (i if is_local else position)
        for digit in range(num_digits):
            counts_DR[digit, np.uint64((row >> (digit * width)) & low)] += 1

    # Then one pass a digit, the lowest first.
    # The keys go back and forth between two halves; counters become the first position of each digit's value.
    half = 0
    for digit in range(num_digits):
        counts = counts_DR[digit]
        total = np.int64(0)
        for i in range(low + 1):
            count = counts[i]
            counts[i] = total
            total += count
        source = keys_2L[half]
        target = keys_2L[1 - half]
        shift = np.int64(_ROW_SHIFT + digit * width)
        # In their order, so that equal digits keep the order of the digits below them.
        for i in range(num_lookups):
            key = source[i]
            value = np.uint64((key >> shift) & low)
            target[np.uint64(counts[value])] = key
            counts[value] += 1
        half = 1 - half
    return half


@kernel
def _group_lookups(
    batch: BatchLookups,
    is_local: bool,
    keys_2L: NDArray[np.int64],
    counts_DR: NDArray[np.int64],
    found: LookupsByRow,
) -> int:
    """Fill ``found``, whose ``rows`` and ``starts`` are as long as if every lookup had a row of its own.

    Returns:
        -1 - the position of a lookup whose id is outside its table, or the number of distinct rows. Exact.
    """
    # Tables one after another; a row begins where the sorted id differs from the one before.
    num_rows = 0
    for table in range(batch.num_rows_F.shape[0]):
        first = batch.offsets_F1[table]
        found.first_F1[table] = num_rows
        half = _sort_table(batch, table, is_local, keys_2L, counts_DR)
        if half < 0:
            return half
        keys = keys_2L[half]
        last = np.int64(-1)
        for i in range(batch.offsets_F1[table + 1] - first):
            row = keys[i] >> _ROW_SHIFT
            found.order_N[first + i] = np.int32(keys[i] & _LOW_BITS)
            if row != last:
                found.rows_U[num_rows] = np.int32(row)
                found.starts_U1[num_rows] = np.int32(first + i)
                num_rows += 1
                last = row
    # One start more than rows, so that each row's lookups end where the next one's begin.
    found.first_F1[batch.num_rows_F.shape[0]] = num_rows
    found.starts_U1[num_rows] = np.int32(batch.ids_N.shape[0])
    return num_rows


def unset_lookups(num_lookups: int, num_rows: int, num_tables: int) -> LookupsByRow:
    """Allocate the lookups of a batch by row."""
    return LookupsByRow(
        np.empty(num_lookups, np.int32),
        np.empty(num_rows, np.int32),
        np.empty(num_rows + 1, np.int32),
        np.empty(num_tables + 1, np.int64),
    )


def group_lookups(batch: BatchLookups, *, is_local: bool = False) -> LookupsByRow:
    """Return the lookups of a batch by row.

    Args:
        batch: the lookups.
        is_local: number lookups within their table, as they are stored, rather than by position.

    Raises:
        IndexError: the id of a lookup is outside its table; its position is the only argument.
    """
    num_lookups = batch.ids_N.shape[0]
    most = int(np.diff(batch.offsets_F1).max(initial=0))
    found = unset_lookups(num_lookups, num_lookups, batch.num_rows_F.shape[0])
    keys_2L = np.empty((2, most), np.int64)
    counts_DR = np.empty((_MOST_DIGITS, 1 << _MOST_DIGIT_BITS), np.int64)
    num_rows = _group_lookups(batch, is_local, keys_2L, counts_DR, found)
    if num_rows < 0:
        raise IndexError(-1 - num_rows)
    # Copies, because most of what was allocated for rows is not used.
    return found._replace(
        rows_U=found.rows_U[:num_rows].copy(), starts_U1=found.starts_U1[: num_rows + 1].copy()
    )
