"""The order in which rows get fast memory, and so the hot rows under any budget.

With rows of one width it is the vocabulary's order over all tables. With rows of several widths a
vocabulary by frequency is read by density, lookups per byte: still a prefix of every table, because within
a table rows have one width. A vocabulary in another order already knows its widths, and is taken as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...stats.ranking.ranking import num_hot_of_runs, num_hot_of_tables, runs_by_density, runs_of
from ..folders.manifest import Manifest
from ..folders.stage_totals import VocabularyTotals
from ..ranking.vocabulary_files import read_tables


class HotOrder:
    """Rows of all tables, the first to be hot first."""

    def __init__(self, vocabulary: Manifest, row_bytes: Sequence[int]) -> None:
        """``row_bytes``: per table, bytes of a row with its optimizer state."""
        self._row_bytes = list(row_bytes)
        # Positions are an order by lookups; with several widths the one by lookups per byte differs.
        by_density = len(set(row_bytes)) > 1 and VocabularyTotals.of(vocabulary).rank_by == "frequency"
        self._places = [] if by_density else read_tables(vocabulary, "place")
        if by_density:
            runs = [runs_of(counts) for counts in read_tables(vocabulary, "count")]
            self._table_of_run, self._lengths = runs_by_density(runs, self._row_bytes)

    def num_hot(self, budget_bytes: int) -> tuple[list[int], int]:
        """Hot rows of each table under a budget, and of all."""
        # A log without tables has no positions either, and nothing is hot.
        if self._places or not self._row_bytes:
            return num_hot_of_tables(self._places, self._row_bytes, budget_bytes)
        return num_hot_of_runs(self._table_of_run, self._lengths, self._row_bytes, budget_bytes)
