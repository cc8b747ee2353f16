"""Curves of a folder's counts: what the first rows of a table serve, and the budgets to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ...stats.analysis.coverage import coverage_points, top_shares

POINTS_PER_DECADE = 6
SMALLEST_BUDGET = 1 << 14


class CoverageRow(TypedDict):
    """The lookups that the most looked-up rows of a table serve."""

    table: str
    num_rows: int
    lookup_share: float
    """Share of the table's lookups, in [0, 1]."""


def coverage(names: Sequence[str], counts: Sequence[NDArray[np.int64]]) -> list[CoverageRow]:
    """Per table and number of its most looked-up rows: table, num_rows, lookup_share in [0, 1]."""
    found: list[CoverageRow] = []
    for name, count in zip(names, counts, strict=True):
        # Sorting millions of counts is what takes time here, and by frequency they fall already.
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
    sizes = {num_bytes, *also}
    size = float(SMALLEST_BUDGET)
    while size < num_bytes:
        sizes.add(round(size))
        size *= 2**0.5
    return sorted(sizes)
