"""Counts the rows that move between the two tiers of a row width, by table; bytes by kind of work are the
meter's.

A row is counted with its optimizer state, a vector or a gradient of a row used in place without.
Evaluation is left out of the counts by table.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..meter import Kind, Meter
from ..rows.tiers import Layout

Way = Literal["to_fast", "to_slow", "made"]
"""How a row came where it is needed; "made" rows got their initial values in place of a fetch. These are keys
of the run's summary."""
WAYS: tuple[Way, ...] = ("to_fast", "to_slow", "made")


class TrafficCounter:
    """The counts of one executor; for one thread at a time.

    Args:
        meter: that of the run.
        slow: layout of the slow tier, whose slots name the rows.
    """

    def __init__(self, meter: Meter, slow: Layout) -> None:
        self.meter = meter
        self._slow = slow
        self.rows_F: dict[Way, NDArray[np.int64]] = {way: np.zeros(slow.num_tables, np.int64) for way in WAYS}
        """(num_tables,) rows and vectors moved each way, and rows initialized on the fast tier."""

    def rows(self, way: Way, rows_N: NDArray[np.int64], bytes_each: int, kind: Kind | None = None) -> None:
        """Count rows of the slow tier, or vectors of such rows, that moved this way."""
        if rows_N.size == 0:
            return
        tables_N, _ = self._slow.rows_at(rows_N)
        self.by_table(way, np.bincount(tables_N, minlength=self._slow.num_tables), bytes_each, kind)

    def by_table(
        self, way: Way, counts_F: NDArray[np.int64], bytes_each: int, kind: Kind | None = None
    ) -> None:
        """Count so many of each table that moved this way."""
        kind = kind or self.meter.kind
        # Rows initialized on the fast tier move no byte between the tiers.
        if way != "made":
            num_bytes = int(counts_F.sum()) * bytes_each
            self.meter.moved(**{way: num_bytes}, kind=kind)
        if kind != "evaluation":
            self.rows_F[way] += counts_F
