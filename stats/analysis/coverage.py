"""The share of a table's lookups that its most looked-up rows serve."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def falling(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``counts``, (num_rows,), in falling order: as they are where they already fall, else sorted."""
    if (counts[1:] <= counts[:-1]).all():
        return counts
    return np.sort(counts)[::-1]


def top_shares(counts: NDArray[np.int64], tops: Sequence[int]) -> list[float]:
    """Return the share of the lookups that the k most looked-up rows serve, for each k, in [0, 1].

    Args:
        counts: (num_rows,), lookups, descending.
        tops: numbers of rows; more than there are means all.
    """
    total = int(counts.sum())
    return [int(counts[:top].sum()) / total if total else 0.0 for top in tops]


def rows_for_shares(counts: NDArray[np.int64], shares: Sequence[float]) -> list[int]:
    """Return the fewest rows that serve at least each share of the lookups.

    Args:
        counts: (num_rows,), lookups, descending.
        shares: in [0, 1].
    """
    served = np.cumsum(counts)
    total = int(served[-1]) if served.shape[0] else 0
    wanted = [int(np.ceil(share * total)) for share in shares]
    return [int(np.searchsorted(served, lookups)) + 1 if lookups else 0 for lookups in wanted]


def most_frequent(counts: NDArray[np.int64], num_wanted: int) -> NDArray[np.int64]:
    """Return the rows with the most lookups, most first and ties in ascending order: (num_wanted,) or fewer.

    The beginning of a stable sort by falling counts, without sorting all of them.

    Args:
        counts: (num_rows,), lookups, in any order.
        num_wanted: more than there are rows means all.
    """
    num_rows = counts.shape[0]
    num_wanted = min(num_wanted, num_rows)
    if not num_wanted:
        return np.zeros(0, np.int64)
    least = np.partition(counts, num_rows - num_wanted)[num_rows - num_wanted]
    above = np.flatnonzero(counts > least)
    ties = np.flatnonzero(counts == least)[: num_wanted - above.shape[0]]
    rows = np.concatenate([above, ties])
    found: NDArray[np.int64] = rows[np.lexsort((rows, -counts[rows]))]
    return found


def coverage_points(num_rows: int, per_decade: int) -> list[int]:
    """Return the numbers of rows to sample a coverage curve at: even in their logarithm, with 1 and all.

    Args:
        num_rows: rows of the table.
        per_decade: points between 1 and 10 rows, between 10 and 100, and so on.
    """
    if num_rows < 1:
        return []
    num_points = int(np.ceil(np.log10(num_rows) * per_decade)) + 1
    return sorted({int(rows) for rows in np.geomspace(1, num_rows, num_points).round()} | {1, num_rows})
