"""Lookups by row as they are stored, and the check that turns them back into those of a batch.

What is stored is read and never trusted: every number is held against the ids of the batch, in 3 ns a lookup,
where grouping anew takes 12. Shapes: F tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .batch_lookups import BatchLookups
from .lookups_by_row import LookupsByRow, unset_lookups

LONG_LOOKUPS = 256
"""A row with more lookups in a batch than this has a long list, which a GPU sums in several programs. The
host does not: its threads share the rows of a batch, and a row has the lookups of one table at most."""


class StoredLookups(NamedTuple):
    """The stored lookups of a batch: lists of all its tables, one behind the other. Nothing is trusted."""

    order: NDArray[Any]
    """(num_lookups,) uint16 or int32; numbers among the lookups of the table."""
    order_offsets: NDArray[np.int64]
    """(num_tables + 1,), from 0 to num_lookups, ascending; those of the other lists likewise."""
    rows: NDArray[np.int32]
    row_offsets: NDArray[np.int64]
    starts: NDArray[Any]
    """(num_rows,) as ``order``; where the lookups of each row begin among those of its table."""
    long_rows: NDArray[np.int32]
    """Positions among the rows of a table of those with more than ``LONG_LOOKUPS`` lookups."""
    long_offsets: NDArray[np.int64]


@kernel
def _place_lookups(
    stored: StoredLookups,
    tables_F: NDArray[np.int64],
    batch: BatchLookups,
    ids_L: NDArray[np.int32],
    found: LookupsByRow,
) -> int:
    """Turn numbers within tables into positions, and hold every one of them against the ids of the batch.

    Rows ascend in a table, and lookups in a row; each lookup has the id of its row, and there are as many as
    the batch has. So every lookup of the batch is listed once, whatever is stored.

    Args:
        stored: of a batch, all tables.
        tables_F: which of these tables ``batch`` is of, ascending, each below their number.
        batch: the lookups of these tables.
        ids_L: as many as a table has lookups, workspace.
        found: written, see `_group_lookups`.

    Returns:
        The number of distinct rows; -1 - f where the lists of table f are not those of the batch. Exact.
    """
    num_tables = tables_F.shape[0]
    num_found = 0
    for feature in range(num_tables):
        table = tables_F[feature]
        fault = -1 - feature
        first = batch.offsets_F1[feature]
        num_lookups = batch.offsets_F1[feature + 1] - first
        first_row = stored.row_offsets[table]
        num_rows = stored.row_offsets[table + 1] - first_row
        first_order = stored.order_offsets[table]
        next_long = stored.long_offsets[table]
        # As many lookups as the batch has, and no row without one.
        if stored.order_offsets[table + 1] - first_order != num_lookups or num_rows > num_lookups:
            return fault
        # The ids of this table alone, which stay in a cache while they are looked at in another order.
        for i in range(num_lookups):
            position = i * num_tables + feature
            if batch.positions_N.shape[0]:
                position = np.int64(batch.positions_N[np.uint64(first + i)])
            ids_L[np.uint64(i)] = batch.ids_N[np.uint64(position)]
        found.first_F1[feature] = num_found
        last_row = np.int64(-1)
        start = np.int64(0)
        for i in range(num_rows):
            # The row and the range of its lookups.
            row = np.int64(stored.rows[first_row + i])
            stop = num_lookups
            if i + 1 < num_rows:
                stop = np.int64(stored.starts[first_row + i + 1])
            if row <= last_row or row >= batch.num_rows_F[feature]:
                return fault
            if np.int64(stored.starts[first_row + i]) != start or stop <= start or stop > num_lookups:
                return fault
            found.rows_U[num_found] = np.int32(row)
            found.starts_U1[num_found] = np.int32(first + start)
            num_found += 1
            # A row with many lookups stands in the list of long rows, in its turn.
            if stop - start > LONG_LOOKUPS:
                if next_long >= stored.long_offsets[table + 1] or stored.long_rows[next_long] != i:
                    return fault
                next_long += 1
            # Its lookups: in the table, ascending, and of this row.
            last = np.int64(-1)
            for k in range(start, stop):
                number = np.int64(stored.order[np.uint64(first_order + k)])
                if number <= last or number >= num_lookups:
                    return fault
                position = number * num_tables + feature
                if batch.positions_N.shape[0]:
                    position = np.int64(batch.positions_N[np.uint64(first + number)])
                if ids_L[np.uint64(number)] != row:
                    return fault
                found.order_N[np.uint64(first + k)] = np.int32(position)
                last = number
            last_row = row
            start = stop
        if start != num_lookups or next_long != stored.long_offsets[table + 1]:
            return fault
    found.first_F1[num_tables] = num_found
    found.starts_U1[num_found] = np.int32(batch.ids_N.shape[0])
    return num_found


def place_lookups(stored: StoredLookups, tables: NDArray[np.int64], batch: BatchLookups) -> LookupsByRow:
    """Return the lookups of ``batch`` by row, from what is stored of it.

    Args:
        stored: of the batch, with all its tables; not trusted, but for offsets that ascend within its lists.
        tables: which of them ``batch`` is of, ascending.
        batch: the lookups; ids within their tables.

    Raises:
        ValueError: it is not what `group_lookups` finds; the number of the table is the only argument.
    """
    most = int((stored.row_offsets[tables + 1] - stored.row_offsets[tables]).sum())
    found = unset_lookups(batch.ids_N.shape[0], most, tables.shape[0])
    # One type of arrays, so that the kernel is compiled once; the copies are a twentieth of its time.
    plain = stored._replace(
        order=stored.order.astype(np.int32),
        starts=stored.starts.astype(np.int32),
        rows=np.require(stored.rows, requirements="W"),
        long_rows=np.require(stored.long_rows, requirements="W"),
    )
    ids_L = np.empty(int(np.diff(batch.offsets_F1).max(initial=0)), np.int32)
    num_rows = _place_lookups(plain, tables, batch, ids_L, found)
    if num_rows < 0:
        raise ValueError(int(tables[-1 - num_rows]))
    return found
