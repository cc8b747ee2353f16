"""The next fetch of every row that is written back, over all epochs of a run, found from the run's end.

A row that leaves memory is needed again by one fetch, and step plans say by which. Fetches of the run are
numbered from 0 in the order they are made, without the first uses, whose rows are initialized and not
fetched. So the number of the next fetch is where a row has to be: consecutive numbers form a group of
batches, and the rows of a group are read together.

Rows may be many more than memory has room for: the pass can be made for a range of them at a time, 8 bytes a
row of the range.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel

NO_FETCH = -1
"""The next fetch of a row that is not fetched again."""


class RowMoves(NamedTuple):
    """The arrays of `StepPlans` that say which rows move."""

    fetch_offsets: NDArray[np.int64]
    fetch_rows: NDArray[np.int32]
    fetch_is_first: NDArray[np.bool_]
    write_back_offsets: NDArray[np.int64]
    write_back_rows: NDArray[np.int32]
    is_split: NDArray[np.bool_]


@kernel
def find_next_fetches(
    moves: RowMoves,
    end: int,
    first_row: int,
    next_of_row: NDArray[np.int64],
    of_write_backs: NDArray[np.int64],
    of_splits: NDArray[np.int64],
) -> int:
    """Find the next fetch of the rows written back by some steps, from the last to the first of them. Exact.

    Args:
        moves: the steps.
        end: number of the first fetch after them.
        first_row: rows from here to ``first_row + next_of_row.size`` are looked at, the others left out.
        next_of_row: (rows of the range,), next fetch of each after these steps; that before them on return.
        of_write_backs: (num_write_backs,), written for rows of the range.
        of_splits: (num_fetches,), or 0 where no step is split; next fetch of the rows of split steps, which
            are written back after the step; written for rows of the range.

    Returns:
        The number of the first fetch of these steps.
    """
    number = end
    stop_row = first_row + next_of_row.size
    for step in range(moves.is_split.size - 1, -1, -1):
        first, stop = moves.fetch_offsets[step], moves.fetch_offsets[step + 1]
        # A split step writes all its rows back when it is over.
        if moves.is_split[step]:
            for i in range(first, stop):
                row = moves.fetch_rows[i]
                if first_row <= row < stop_row:
                    of_splits[i] = next_of_row[row - first_row]
        # An item writes back before it fetches, so backward its fetches come first.
        for i in range(stop - 1, first - 1, -1):
            row = moves.fetch_rows[i]
            number -= not moves.fetch_is_first[i]
            if first_row <= row < stop_row:
                next_of_row[row - first_row] = NO_FETCH if moves.fetch_is_first[i] else number
        for i in range(moves.write_back_offsets[step], moves.write_back_offsets[step + 1]):
            row = moves.write_back_rows[i]
            if first_row <= row < stop_row:
                of_write_backs[i] = next_of_row[row - first_row]
    return number


@kernel
def find_next_of_residents(
    rows: NDArray[np.int64],
    first_row: int,
    next_of_row: NDArray[np.int64],
    of_residents: NDArray[np.int64],
) -> None:
    """Write the next fetch of rows that an epoch's end writes back; arguments as in `find_next_fetches`."""
    for i in range(rows.size):
        if first_row <= rows[i] < first_row + next_of_row.size:
            of_residents[i] = next_of_row[rows[i] - first_row]


def cut_groups(fetches_of_items: NDArray[np.int64], capacity: int) -> NDArray[np.int64]:
    """Cut the fetches of a run into groups of whole items, as long as each has at most ``capacity`` fetches.

    Args:
        fetches_of_items: (num_items,), fetches of each transfer item, at most ``capacity``.
        capacity: fetches of a group.

    Returns:
        (num_groups + 1,), the number of the first fetch of each group, and that after the last; at least one
        group.
    """
    ends = np.concatenate([[0], np.cumsum(fetches_of_items)])
    if fetches_of_items.max(initial=0) > capacity:
        raise ValueError(f"an item fetches {fetches_of_items.max()} rows, a group holds {capacity}")
    bounds = [0]
    while bounds[-1] < ends[-1]:
        bounds.append(int(ends[np.searchsorted(ends, bounds[-1] + capacity, side="right") - 1]))
    return np.array(bounds if len(bounds) > 1 else [0, 0], np.int64)
