"""The order in which rows get fast memory, and so the hot rows under any budget.

With rows of one width it is the vocabulary's order over all tables. With rows of several widths a
vocabulary by frequency is read by density, look-ups per byte: still a prefix of every table, because within
a table rows have one width. A vocabulary in another order already knows its widths, and is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.frequency_ranking import runs_by_density, runs_of
from ...stats.ranking.hot_rows import num_hot_of_runs, num_hot_of_tables
from ..folders.manifest import Manifest
from ..formats.arrow_files import read_batch, values_of


class HotOrder:
    """Rows of all tables, the first to be hot first."""

    def __init__(self, vocabulary: Manifest, row_bytes: Sequence[int]) -> None:
        """``row_bytes``: per table, bytes of a row with its optimizer state."""
        self._row_bytes = list(row_bytes)
        by_density = len(set(row_bytes)) > 1 and "rank_by" not in vocabulary.totals
        self._places = [] if by_density else read_tables(vocabulary, "place")
        if by_density:
            runs = [runs_of(counts) for counts in read_tables(vocabulary, "count")]
            self._table_of_run, self._lengths = runs_by_density(runs, self._row_bytes)

    def num_hot(self, budget_bytes: int) -> tuple[list[int], int]:
        """Hot rows of each table under a budget, and of all."""
        if self._places or not self._row_bytes:
            return num_hot_of_tables(self._places, self._row_bytes, budget_bytes)
        return num_hot_of_runs(self._table_of_run, self._lengths, self._row_bytes, budget_bytes)


def row_bytes_of(totals: Mapping[str, Any]) -> list[int]:
    """Bytes of a row of each table of a plan or of shards, from the totals of its manifest."""
    return [int(table.get("row_bytes", totals["row_bytes"])) for table in totals["tables"]]


def read_tables(vocabulary: Manifest, column: str) -> list[NDArray[np.int64]]:
    """Per table (num_rows,): ``count`` or ``place`` of each row."""
    entries = {entry.path: entry for entry in vocabulary.files}
    names = [table["name"] for table in vocabulary.totals["tables"]]
    batches = [read_batch(vocabulary, entries[f"{name}.arrow"]) for name in names]
    return [values_of(batch.column(column), np.int64) for batch in batches]
