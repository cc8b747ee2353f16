"""Peeling as `hotset bench stats` measures it: the kernels' side, and a plain version with a heap."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.peeling import entry_order, list_rows, peel


@dataclass(frozen=True, slots=True)
class Incidence:
    """Which samples look up which rows, a row counted once a sample."""

    row_starts: NDArray[np.int64]
    """(num_rows + 1,)."""
    row_samples: NDArray[np.uint32]
    """(num_pairs,), ascending for each row."""
    num_samples: int

    @classmethod
    def of(cls, lookups: NDArray[np.int64], lookups_per_sample: int) -> Incidence:
        """Cut a stream of look-ups into samples; what is left over at the end is not used."""
        num_samples = lookups.size // lookups_per_sample
        rows = np.unique(lookups[: num_samples * lookups_per_sample], return_inverse=True)[1]
        pairs = np.unique(rows * num_samples + np.repeat(np.arange(num_samples), lookups_per_sample))
        num_rows = int(rows.max()) + 1
        starts = np.searchsorted(pairs, np.arange(num_rows + 1) * num_samples)
        return cls(starts, (pairs % num_samples).astype(np.uint32), num_samples)

    @property
    def num_rows(self) -> int:
        return int(self.row_starts.size) - 1


def peel_with_kernels(log: Incidence) -> NDArray[np.int32]:
    """All rows, the least worth keeping first."""
    starts, samples = log.row_starts, log.row_samples
    ends = starts[1:].copy()
    sample_starts, sample_rows = np.zeros(log.num_samples + 1, np.int64), np.empty(samples.size, np.int32)
    list_rows(starts, ends, samples, sample_starts, sample_rows)
    entries, dropped = np.empty(log.num_rows, np.int32), np.empty(log.num_rows, np.int32)
    entry_order(starts, ends, samples, log.num_samples, entries)
    widths, width_of_row = np.array([64]), np.zeros(log.num_rows, np.uint8)
    rows = (0, log.num_rows)
    peel(starts, ends, samples, sample_starts, sample_rows, width_of_row, widths, entries, *rows, dropped)
    return dropped


def peel_with_a_heap(log: Incidence) -> list[int]:
    """The same with sets and a heap whose stale entries are passed over; ties fall otherwise."""
    cuts = np.split(log.row_samples, log.row_starts[1:-1])
    samples_of = [set(samples.tolist()) for samples in cuts]
    rows_of: list[list[int]] = [[] for _ in range(log.num_samples)]
    for row, samples in enumerate(samples_of):
        for sample in samples:
            rows_of[sample].append(row)
    heap = [(len(samples), row) for row, samples in enumerate(samples_of)]
    heapq.heapify(heap)
    is_dropped, dropped = [False] * log.num_rows, []
    while heap:
        worth, row = heapq.heappop(heap)
        if is_dropped[row] or worth != len(samples_of[row]):
            continue
        is_dropped[row] = True
        dropped.append(row)
        for sample in list(samples_of[row]):
            for other in rows_of[sample]:
                if not is_dropped[other]:
                    samples_of[other].discard(sample)
                    heapq.heappush(heap, (len(samples_of[other]), other))
    return dropped
