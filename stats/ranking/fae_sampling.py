"""FAE's calibrator: hot rows from a sample of the log.

A threshold is found with confidence intervals. The paper counts lookups in 5% of the samples and searches the
threshold of access under which the hot rows fit the budget; how many rows pass one it estimates from 35
chunks of 1024 counters of each large table. Exact counts make all of this unnecessary; it is here to be
compared with.

Source: Adnan et al., PVLDB 15(1), section 4 (sampler, profiler, statistical optimizer).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..id_tables import mix64_pair
from ..kernel import kernel

NUM_CHUNKS = 35
CHUNK_ROWS = 1024
_QUANTILE = 3.6007157973864294
"""The t with P(|T| <= t) = 0.999 for Student's distribution with ``NUM_CHUNKS - 1`` degrees of freedom."""
LARGE_TABLE_BYTES = 1 << 20
"""Smaller tables are hot as a whole."""
_SEARCH_STEPS = 100


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of a number of rows, or of bytes."""

    low: float
    middle: float
    high: float


def estimate_rows(chunk_counts: NDArray[np.int64], num_chunks: float) -> Interval:
    """Estimate the rows of a table that pass a threshold, from those that pass in some of its chunks.

    The t-interval of the mean with the correction for a finite population, times the number of chunks.

    Args:
        chunk_counts: (n,), rows that pass in each chunk looked at; n is `NUM_CHUNKS`.
        num_chunks: chunks of the whole table; with ``n`` or fewer the interval is a point.

    Source:
        Adnan et al., section 4.2 (n = 35 chunks of 1024 counters, 99.9 %).
    """
    n = chunk_counts.shape[0]
    total = int(chunk_counts.sum())
    mean = total / n
    # The sample variance from integer sums, then the half width with the finite population correction.
    variance = (int((chunk_counts * chunk_counts).sum()) - total * mean) / (n - 1)
    left = max(0.0, (num_chunks - n) / num_chunks)
    half = _QUANTILE * math.sqrt(max(0.0, left * variance / n))
    return Interval(max(0.0, mean - half) * num_chunks, mean * num_chunks, (mean + half) * num_chunks)


def is_permutation(positions: NDArray[np.int64]) -> bool:
    """Return whether (num_rows,) ``positions`` are each of 0 to ``num_rows - 1`` once."""
    return np.array_equal(np.sort(positions), np.arange(positions.shape[0]))


def draw_chunks(num_chunks: int, wanted: int, seed: int) -> NDArray[np.int64]:
    """Draw ``wanted`` different chunks of ``num_chunks``, or all of them; ascending."""
    keys = [int(mix64_pair(np.uint64(seed), np.uint64(chunk))) for chunk in range(num_chunks)]
    chosen = sorted(range(num_chunks), key=keys.__getitem__)[:wanted]
    return np.array(sorted(chosen), np.int64)


@dataclass(frozen=True, slots=True)
class ProfiledTable:
    """One large table, as the search knows it."""

    num_rows: int
    row_bytes: int
    accesses: float
    """Sampled lookups that a threshold of 1 stands for: all of the log's, times the sampling rate."""
    chunks: NDArray[np.int64]
    """(n, CHUNK_ROWS) sampled counts of n chunks; (1, num_rows) of all rows of a table without more."""

    @classmethod
    def of(cls, counters: NDArray[np.int64], row_bytes: int, accesses: float, seed: int) -> ProfiledTable:
        """``counters``: (num_rows,), sampled lookups in the order of the counter array, FAE's by first
        appearance in the log."""
        num_chunks = counters.shape[0] // CHUNK_ROWS
        if num_chunks <= NUM_CHUNKS:
            return cls(counters.shape[0], row_bytes, accesses, counters.reshape(1, -1))
        starts = draw_chunks(num_chunks, NUM_CHUNKS, seed) * CHUNK_ROWS
        chunks = counters[starts[:, None] + np.arange(CHUNK_ROWS)]
        return cls(counters.shape[0], row_bytes, accesses, chunks)

    def cut_off(self, threshold: float) -> int:
        """The fewest sampled lookups of a row that passes."""
        return math.ceil(threshold * self.accesses)

    def estimate(self, threshold: float) -> Interval:
        """Rows that pass."""
        counts = (self.chunks >= self.cut_off(threshold)).sum(axis=1)
        if counts.shape[0] == 1:
            return Interval(*(float(counts[0]),) * 3)
        return estimate_rows(counts, self.num_rows / CHUNK_ROWS)


def estimate_bytes(tables: Sequence[ProfiledTable], threshold: float) -> Interval:
    """Estimate the bytes of the rows of all large tables that pass; ends of the intervals are added up."""
    found = [(table.estimate(threshold), table.row_bytes) for table in tables]
    return Interval(
        sum(rows.low * width for rows, width in found),
        sum(rows.middle * width for rows, width in found),
        sum(rows.high * width for rows, width in found),
    )


def find_threshold(tables: Sequence[ProfiledTable], budget_bytes: int) -> float:
    """Return the least threshold, a share of a table's lookups, whose rows fit by the interval's upper end.

    0 where all rows fit. The paper gives no rule for its steps; this bisects on a logarithmic scale between
    less than one lookup of the sample and more than all.
    """
    if sum(table.num_rows * table.row_bytes for table in tables) <= budget_bytes:
        return 0.0
    # Bisect: at ``high`` the rows fit, at ``low`` they do not.
    low, high = 0.5 / max(max((table.accesses for table in tables), default=1.0), 1.0), 2.0
    if estimate_bytes(tables, low).high <= budget_bytes:
        return low
    for _ in range(_SEARCH_STEPS):
        middle = math.sqrt(low * high)
        if estimate_bytes(tables, middle).high <= budget_bytes:
            high = middle
        else:
            low = middle
    return high


@kernel
def draw_samples(
    num_samples: int, rate: float, seed: int, with_replacement: bool, times: NDArray[np.uint8]
) -> int:
    """Draw samples, and write how many times each is drawn.

    Args:
        num_samples: samples to draw from.
        rate: share of them that is drawn, in [0, 1].
        seed: seed of the draw.
        with_replacement: ``rate * num_samples`` draws, as the released code does; else each sample by itself,
            at most once, as in the paper.
        times: (num_samples,) zeros; out.

    Returns:
        Draws in all.
    """
    drawn = 0
    if with_replacement:
        drawn = int(rate * num_samples)
        for draw in range(drawn):
            # 53 random bits are a uniform number in [0, 1), as a float64 holds them all.
            bits = mix64_pair(np.uint64(seed), np.uint64(draw)) >> np.uint64(11)
            times[int(np.float64(bits) * 2.0**-53 * num_samples)] += np.uint8(1)
        return drawn
    # Without replacement each sample is drawn or not, by a separate random number.
    for sample in range(num_samples):
        bits = mix64_pair(np.uint64(seed), np.uint64(sample)) >> np.uint64(11)
        if np.float64(bits) * 2.0**-53 < rate:
            times[sample] = 1
            drawn += 1
    return drawn


@kernel
def add_drawn(
    ids: NDArray[np.int32],
    offsets: NDArray[np.int32],
    times: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> None:
    """Count the lookups of drawn samples.

    Args:
        ids: (num_lookups,), of one table.
        offsets: (num_samples + 1,); sample i has the lookups from ``offsets[i]`` to ``offsets[i + 1]``.
        times: (num_samples,), how many times each sample is drawn.
        counts: (num_embeddings,) out, added to.
    """
    for sample in range(times.shape[0]):
        if times[sample]:
            for i in range(offsets[sample], offsets[sample + 1]):
                counts[ids[i]] += times[sample]


@kernel
def number_by_appearance(ids: NDArray[np.int32], next_number: int, numbers: NDArray[np.int32]) -> int:
    """Number the rows of a table in the order of their first lookup, exactly.

    Args:
        ids: (num_lookups,), in log order.
        next_number: rows that lookups before these have numbered.
        numbers: (num_embeddings,) in and out; -1 for a row without a number.

    Returns:
        Rows that have a number now.
    """
    for i in range(ids.shape[0]):
        if numbers[ids[i]] < 0:
            numbers[ids[i]] = next_number
            next_number += 1
    return next_number
