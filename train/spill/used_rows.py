"""How many rows a run ever uses in each part of the row numbers, and ranges of rows cut by that.

A row that no batch uses is never written back: its value is made from its number. Where tables are many times
the memory most rows are such, and cut by used rows there are a tenth or a hundredth of the ranges. Counted
are cells of consecutive rows: 64 KiB of counts at most, for any number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel

_MOST_CELLS = 1 << 13
_LEAST_CELL_ROWS = 64
_PART_ROWS = 1 << 17
"""Rows that are counted at a time."""


class UsedRows:
    """Counts of the rows that are ever used, by cells of consecutive rows.

    Args:
        num_rows: rows are below it.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.cell_rows = max(-(-num_rows // _MOST_CELLS), _LEAST_CELL_ROWS)
        """Rows of a cell."""
        self._counts_C = np.zeros(-(-num_rows // self.cell_rows), np.int64)

    @classmethod
    def all_of(cls, num_rows: int) -> UsedRows:
        """Take every row as used."""
        used = cls(num_rows)
        firsts_C = np.arange(used._counts_C.size) * used.cell_rows
        used._counts_C[:] = np.minimum(num_rows - firsts_C, used.cell_rows)
        return used

    @property
    def total(self) -> int:
        """All rows counted."""
        return int(self._counts_C.sum())

    @property
    def num_bytes(self) -> int:
        """Memory of the counts."""
        return self._counts_C.nbytes

    def add(self, rows_N: NDArray[Any]) -> None:
        """Count rows, none of which was counted before."""
        for first in range(0, rows_N.size, _PART_ROWS):
            cells_N = rows_N[first : first + _PART_ROWS] // self.cell_rows
            self._counts_C += np.bincount(cells_N, minlength=self._counts_C.size)

    def cut(self, rows_of_tables: Sequence[int], most_used: int, most_rows: int) -> NDArray[np.int64]:
        """Return where ranges of rows begin that lie in one table each, and have at most ``most_used`` used
        rows, or at most ``most_rows`` rows, or are of one cell.

        Returns:
            (num_ranges + 1,), int64, from 0 to the number of all rows; at least one range.
        """
        bounds = np.zeros(self._counts_C.size + 2 * len(rows_of_tables) + 2, np.int64)
        rows_T = np.array(rows_of_tables, np.int64)
        num_ranges = cut_cells(self._counts_C, self.cell_rows, rows_T, most_used, most_rows, bounds)
        return bounds[: max(num_ranges, 1) + 1].copy()


@kernel
def cut_cells(
    counts_C: NDArray[np.int64],
    cell_rows: int,
    rows_T: NDArray[np.int64],
    most_used: int,
    most_rows: int,
    bounds_H1: NDArray[np.int64],
) -> int:
    """Cut tables into ranges of whole cells, or what of a cell is in the table.

    Args:
        counts_C: (num_cells,); used rows of each cell, at most.
        cell_rows: rows of a cell.
        rows_T: (num_tables,); rows of each table.
        most_used: used rows of a range that is not of a single cell,
        most_rows: unless it has no more rows than these.
        bounds_H1: (at least num_cells + 2 * num_tables + 1,); ``bounds[0]`` is 0, the end of each range is
            written behind it.

    Returns:
        The number of ranges.
    """
    num_ranges = 0
    row = np.int64(0)
    for table in range(rows_T.size):
        table_stop = row + rows_T[table]
        first = row
        used = np.int64(0)
        while row < table_stop:
            # A cell that two tables share counts in each, as far as its rows there could all be used.
            stop = min((row // cell_rows + 1) * cell_rows, table_stop)
            count = min(counts_C[row // cell_rows], stop - row)
            if row > first and used + count > most_used and stop - first > most_rows:
                num_ranges += 1
                bounds_H1[num_ranges] = row
                first = row
                used = np.int64(0)
            used += count
            row = stop
        if first < table_stop:
            num_ranges += 1
            bounds_H1[num_ranges] = table_stop
    return num_ranges
