"""Counts what goes between the two tiers of a row width, by table; bytes by kind of work are the meter's.

A row is counted with its optimizer state, a vector or a gradient that travels for a row in place without.
Evaluation is left out of the counts by table.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..meter import Meter
from ..rows.tiers import Layout

Way = Literal["to_fast", "to_slow", "made"]
WAYS: tuple[Way, ...] = ("to_fast", "to_slow", "made")


class Traffic:
    """Of one executor; one thread at a time.

    Args:
        meter: of the run.
        slow: rows are named by their slots there.
    """

    def __init__(self, meter: Meter, slow: Layout) -> None:
        self.meter = meter
        self._slow = slow
        self.rows_F: dict[Way, NDArray[np.int64]] = {way: np.zeros(slow.num_tables, np.int64) for way in WAYS}
        """(num_tables,) rows and vectors each way, and rows made on the fast tier instead."""

    def rows(self, way: Way, rows_N: NDArray[np.int64], bytes_each: int, kind: str | None = None) -> None:
        """Rows of the slow tier, or vectors of such rows, went this way."""
        if rows_N.size == 0:
            return
        tables_N, _ = self._slow.rows_at(rows_N)
        self.by_table(way, np.bincount(tables_N, minlength=self._slow.num_tables), bytes_each, kind)

    def by_table(
        self, way: Way, counts_F: NDArray[np.int64], bytes_each: int, kind: str | None = None
    ) -> None:
        """So many of each table went this way."""
        kind = kind or self.meter.kind
        if way != "made":
            num_bytes = int(counts_F.sum()) * bytes_each
            self.meter.moved(**{way: num_bytes}, kind=kind)
        if kind != "evaluation":
            self.rows_F[way] += counts_F
