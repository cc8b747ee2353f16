"""Peeling as `hotset bench stats` measures it: with the kernels, and a reference with a heap."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.peeling import PeelMemory, peel
from ...stats.ranking.sample_lists import Entries, entry_order, list_rows
from ...stats.ranking.sample_lists import Incidence as PeelIncidence


@dataclass(frozen=True, slots=True)
class Incidence:
    """Which samples look up which rows, each row counted once per sample."""

    row_starts: NDArray[np.int64]
    """(num_rows + 1,); where each row's samples start in ``row_samples``."""
    row_samples: NDArray[np.uint32]
    """(num_pairs,); the samples of each row, ascending."""
    num_samples: int

    @classmethod
    def of(cls, lookups: NDArray[np.int64], lookups_per_sample: int) -> Incidence:
        """Split a stream of lookups into samples; a remainder at the end is not used."""
        num_samples = lookups.size // lookups_per_sample
        rows = np.unique(lookups[: num_samples * lookups_per_sample], return_inverse=True)[1]
        # A pair is one number, row first, so that unique also sorts by row and then by sample.
        pairs = np.unique(rows * num_samples + np.repeat(np.arange(num_samples), lookups_per_sample))
        num_rows = int(rows.max()) + 1
        starts = np.searchsorted(pairs, np.arange(num_rows + 1) * num_samples)
        return cls(starts, (pairs % num_samples).astype(np.uint32), num_samples)

    @property
    def num_rows(self) -> int:
        return int(self.row_starts.size) - 1


def peel_with_kernels(log: Incidence) -> NDArray[np.int32]:
    """Return all rows, those least worth keeping first."""
    starts = log.row_starts
    samples = log.row_samples
    ends = starts[1:].copy()
    sample_starts = np.zeros(log.num_samples + 1, np.int64)
    sample_rows = np.empty(samples.size, np.int32)
    # The same log by samples, as the kernel walks both ways.
    list_rows(starts, ends, samples, sample_starts, sample_rows)
    rows = np.empty(log.num_rows, np.int32)
    lone_samples = np.empty(log.num_rows, np.uint32)
    num_lone = entry_order(starts, ends, samples, log.num_samples, rows, lone_samples)
    entries = Entries(rows, lone_samples[:num_lone])
    # One width for all rows, so that the order is by samples alone.
    widths = np.array([64])
    width_of_row = np.zeros(log.num_rows, np.uint8)
    memory = PeelMemory(np.empty(log.num_rows, np.int32), np.empty(log.num_rows + samples.size, np.int32))
    dropped = np.empty(log.num_rows, np.int32)
    incidence = PeelIncidence(starts, ends, samples, sample_starts, sample_rows)
    no_budgets = np.empty(0, np.int64)
    part = (0, log.num_rows, no_budgets)
    peel(incidence, width_of_row, widths, entries, *part, memory, dropped, no_budgets)
    return dropped


def peel_with_a_heap(log: Incidence) -> list[int]:
    """Return the same order, up to ties, with sets and a heap whose stale entries are skipped."""
    # Both directions of the incidence: samples of each row, and rows of each sample.
    samples_of_rows = np.split(log.row_samples, log.row_starts[1:-1])
    samples_of = [set(samples.tolist()) for samples in samples_of_rows]
    rows_of: list[list[int]] = [[] for _ in range(log.num_samples)]
    for row, samples in enumerate(samples_of):
        for sample in samples:
            rows_of[sample].append(row)
    heap = [(len(samples), row) for row, samples in enumerate(samples_of)]
    heapq.heapify(heap)
    is_dropped = [False] * log.num_rows
    dropped = []
    while heap:
        # An entry is stale where its row has lost samples since; a newer entry stands in the heap.
        worth, row = heapq.heappop(heap)
        if is_dropped[row] or worth != len(samples_of[row]):
            continue
        is_dropped[row] = True
        dropped.append(row)
        # Its samples can no longer be fully hot, so they are worth nothing to their other rows.
        for sample in list(samples_of[row]):
            for other in rows_of[sample]:
                if not is_dropped[other]:
                    samples_of[other].discard(sample)
                    heapq.heappush(heap, (len(samples_of[other]), other))
    return dropped
