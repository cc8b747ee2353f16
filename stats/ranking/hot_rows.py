"""The rows that are hot under a byte budget, and the samples that are fully hot."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel


def num_hot_of_tables(
    places: list[NDArray[np.int64]], row_bytes: list[int], budget_bytes: int
) -> tuple[list[int], int]:
    """Find the longest prefix of the order over all tables whose rows fit in ``budget_bytes``.

    Args:
        places: per table (num_rows,), ascending; places over all tables, as the vocabulary stores them.
        row_bytes: per table, bytes of a row with its optimizer state.
        budget_bytes: bytes of all hot rows together.

    Returns:
        Hot rows of each table, and how many places the prefix takes. Exact.
    """
    # The bytes of a prefix rise with its length.
    num_rows = sum(place.shape[0] for place in places)
    longest = bisect_right(
        range(1, num_rows + 1), budget_bytes, key=lambda prefix: _bytes_of_prefix(places, row_bytes, prefix)
    )
    return [int(np.searchsorted(place, longest)) for place in places], longest


def _bytes_of_prefix(places: list[NDArray[np.int64]], row_bytes: list[int], prefix: int) -> int:
    rows = (int(np.searchsorted(place, prefix)) for place in places)
    return sum(count * width for count, width in zip(rows, row_bytes, strict=True))


def num_hot_of_runs(
    table_of_run: NDArray[np.int64], lengths: NDArray[np.int64], row_bytes: Sequence[int], budget_bytes: int
) -> tuple[list[int], int]:
    """Find the longest prefix of rows, run after run, that fits in ``budget_bytes``.

    Args:
        table_of_run: (num_runs,), most important first; the runs of a table in the order of its ids.
        lengths: (num_runs,), rows.
        row_bytes: per table.
        budget_bytes: bytes of all hot rows together.

    Returns:
        Hot rows of each table, and of all. Exact.
    """
    # Whole runs that fit, and as many rows of the next one as the rest of the budget holds.
    widths = np.array(row_bytes, np.int64)[table_of_run]
    # Bytes up to the end of each run of rows.
    ends = np.cumsum(lengths * widths)
    whole = int(np.searchsorted(ends, budget_bytes, side="right"))
    taken = lengths.copy()
    if whole < lengths.shape[0]:
        # Of the first run that does not fit as a whole, as many rows as do.
        left = budget_bytes - (int(ends[whole - 1]) if whole else 0)
        taken[whole] = left // int(widths[whole])
        taken[whole + 1 :] = 0
    num_hot = np.zeros(len(row_bytes), np.int64)
    np.add.at(num_hot, table_of_run, taken)
    return num_hot.tolist(), int(taken.sum())


@kernel
def largest_ids(ids: NDArray[np.int32], largest: NDArray[np.uint32]) -> None:
    """Raise ``largest``, (num_features,), to the largest of ``ids``, (num_samples, num_features).

    Ids count as unsigned numbers, so that a negative one is larger than any table. Exact.
    """
    num_features = np.uint64(ids.shape[1])
    for i in range(np.uint64(ids.shape[0])):  # unsigned: a signed index is not vectorised
        for feature in range(num_features):
            largest[feature] = max(largest[feature], np.uint32(ids[i, feature]))


@kernel
def tag_hot_samples(ids: NDArray[np.int32], num_hot: NDArray[np.int64], is_hot: NDArray[np.uint8]) -> int:
    """Write 1 for each sample all of whose lookups hit hot rows, else 0.

    Args:
        ids: (num_samples, num_features).
        num_hot: (num_features,); a row is hot when its id is smaller.
        is_hot: (num_samples,) out.

    Returns:
        Fully hot samples. Exact.
    """
    total = 0
    for i in range(ids.shape[0]):
        num_cold = 0
        for f in range(ids.shape[1]):
            num_cold += ids[i, f] >= num_hot[f]
        is_hot[i] = num_cold == 0
        total += num_cold == 0
    return total
