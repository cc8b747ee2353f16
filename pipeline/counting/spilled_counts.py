"""Counts of several tables that grow together in bounded memory.

Where they do not fit, the largest table is emptied into a run on disk, categories ascending; a table's runs
are merged at the end. The log is read once, whatever the cap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.count_merging import Counts
from ...stats.counting import CategoryCounter
from ..folders.output import Output
from ..folders.temporary_files import RunsFile
from .merged_counts import merged_counts


class SpilledCounts:
    """The tables one worker counts at a time; what they hold beyond ``max_bytes`` goes to runs on disk."""

    def __init__(self, names: list[str], max_bytes: int, output: Output) -> None:
        self.counters = {name: CategoryCounter() for name in names}
        self._max_bytes = max_bytes
        self._output = output
        self._runs: dict[str, RunsFile] = {}
        self._run_lengths: dict[str, list[int]] = {name: [] for name in names}

    def add(self, name: str, categories: NDArray[Any], is_valid: NDArray[np.uint8]) -> None:
        """Count the lookups of one part in one table."""
        self.counters[name].add(categories, is_valid, lambda: self._make_room(name))

    def _make_room(self, name: str) -> None:
        """Grow a full table, after emptying larger ones, or empty it."""
        counter = self.counters[name]
        # To grow, a table of twice the size stands beside the old one: three times its bytes more at most.
        while (
            sum(other.num_bytes for other in self.counters.values()) + 3 * counter.num_bytes > self._max_bytes
        ):
            # The largest frees the most for one run to merge; of equal ones the table that asks is emptied
            # itself.
            largest = max(self.counters, key=lambda other: self.counters[other].num_bytes)
            if self.counters[largest].num_bytes == counter.num_bytes:
                return self._spill(name)
            self._spill(largest)
        return counter.grow()

    def _spill(self, name: str) -> None:
        """Append what a table holds to its file of runs: categories, ascending, then their counts."""
        categories, counts = self.counters[name].take()
        lengths = self._run_lengths[name]
        if not lengths:
            self._runs[name] = RunsFile(self._output, f"{name}.runs")
        self._runs[name].append(categories, counts)
        lengths.append(categories.shape[0])

    def result(self, name: str, dtype: Any, earlier: list[Counts]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a table's categories, ascending, and their counts with those ``earlier``; drop the table."""
        lengths = self._run_lengths[name]
        if not lengths:
            categories, counts = self.counters.pop(name).take()
            if not earlier:
                return categories.astype(dtype), counts
            return merged_counts([*earlier, (categories, counts)], self._output, self._max_bytes, dtype)
        # The rest becomes the last run, so that its memory is free while the runs are merged.
        self._spill(name)
        del self.counters[name]
        # A run is its categories and then its counts, both of 64 bits: one mapping cut in two for each run.
        words = self._runs[name].map(np.uint64)
        runs = list(earlier)
        start = 0
        for length in lengths:
            middle = start + length
            stop = middle + length
            runs.append((words[start:middle], words[middle:stop].view(np.int64)))
            start = stop
        # The earlier counts are merged as if they were one more run; the file goes only when the sums are
        # out.
        merged = merged_counts(runs, self._output, self._max_bytes, dtype)
        self._runs.pop(name).remove()
        return merged
