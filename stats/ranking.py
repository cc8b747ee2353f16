"""Rank rows by counts, and find the hot rows of budgets.

Rows of one count are adjacent, and the distinct counts of a table grow like the root of its lookups. So a few
thousand runs of equal counts describe everything except which category has which row, which takes one more
pass over the categories.

Hot rows and fully hot samples under many budgets take one pass over the lookups. The hot sets of rising
budgets are nested, so a row has a level: the first budget that makes it hot. A sample's level is the highest
of its rows'. One byte per row serves any order, prefixes of ids or not.

FAE's calibrator takes hot rows from a sample of the log. It counts lookups in 5% of the samples and searches
the threshold of access under which the hot rows fit the budget; how many rows pass one it estimates, with
confidence intervals, from 35 chunks of 1024 counters of each large table. Exact counts make all of this
unnecessary; it is here to be compared with.

Source:
    Adnan et al., PVLDB 15(1), section 4 (sampler, profiler, statistical optimizer), for the calibrator.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counting import CategoryCounter
from .id_tables import mix64_pair
from .kernel import kernel, read_only

_NO_NULLS = read_only(np.zeros(0, np.uint8))
_CHUNK = 1 << 18
_SMALL_COUNTS = 1 << 12


@dataclass(frozen=True, slots=True)
class RankedRuns:
    """The rows of one table, most important first, in runs of one count; a row's position is its id."""

    counts: NDArray[np.int64]
    """(num_runs,), lookups of each row of a run; falling."""
    lengths: NDArray[np.int64]
    """(num_runs,), rows."""
    missing_id: int
    """Row of missing lookups; the oov row where they are too few for their own row."""
    oov_id: int
    """Row shared by rare and unknown categories; every table has one."""
    oov_count: int
    """Lookups of the oov row."""

    @property
    def num_rows(self) -> int:
        """Rows of the table."""
        return int(self.lengths.sum())

    @property
    def starts(self) -> NDArray[np.int64]:
        """(num_runs,), the id of the first row of each run."""
        return np.cumsum(self.lengths) - self.lengths


def rank_by_frequency(counts: NDArray[np.int64], num_missing: int, min_count: int) -> RankedRuns:
    """Order a table's rows by falling count; ties by category, missing first and oov last.

    Args:
        counts: (num_categories,), lookups of each category, in the order of categories.
        num_missing: lookups without a category; 0 means that there is no such row.
        min_count: categories with fewer lookups share the oov row, and so do missing ones.
    """
    has_missing = num_missing >= max(min_count, 1)
    oov_count = 0 if has_missing else num_missing
    counter = CategoryCounter()
    # Count the counts themselves: rows per distinct count, for categories frequent enough for their own row.
    for first in range(0, counts.shape[0], _CHUNK):
        chunk = counts[first : first + _CHUNK]
        has_own = chunk >= min_count
        counter.add(chunk[has_own].view(np.uint64), _NO_NULLS)
        oov_count += int(chunk[~has_own].sum())
    # The rows of oov and of missing lookups are in runs like any other.
    extra = [oov_count, *([num_missing] if has_missing else [])]
    counter.add(np.array(extra, np.uint64), _NO_NULLS)
    rising_counts, rising_lengths = counter.take()
    run_counts = rising_counts[::-1].astype(np.int64)
    lengths = rising_lengths[::-1].copy()
    starts = np.cumsum(lengths) - lengths
    # Ties: oov is the last of its run, missing the first.
    oov_run = int(np.searchsorted(-run_counts, -oov_count))
    oov_id = int(starts[oov_run] + lengths[oov_run]) - 1
    missing_id = int(starts[np.searchsorted(-run_counts, -num_missing)]) if has_missing else oov_id
    return RankedRuns(run_counts, lengths, missing_id, oov_id, oov_count)


def place_categories(
    categories: NDArray[Any],
    counts: NDArray[np.int64],
    min_count: int,
    ranked: RankedRuns,
    rows: NDArray[Any],
) -> None:
    """Write each category that has its own row to that row.

    Args:
        categories: (num_categories,), ascending; uint32 or uint64.
        counts: (num_categories,), lookups of each.
        min_count: as given to `rank_by_frequency`.
        ranked: the order that it returned.
        rows: (num_rows,) out; the rows of missing and oov are left as they are.
    """
    # Missing lookups may occupy the first row of a run; oov occupies the last, which is never reached.
    next_row = ranked.starts
    if ranked.missing_id != ranked.oov_id:
        next_row[np.flatnonzero(next_row == ranked.missing_id)] += 1
    run_of_small = np.searchsorted(-ranked.counts, -np.arange(_SMALL_COUNTS))
    _place_categories(
        read_only(categories),
        read_only(counts),
        min_count,
        ranked.counts,
        run_of_small,
        next_row,
        rows,
    )


@kernel
def _place_categories(
    categories: NDArray[np.uint32],
    counts: NDArray[np.int64],
    min_count: int,
    run_counts: NDArray[np.int64],
    run_of_small: NDArray[np.int64],
    next_row: NDArray[np.int64],
    rows: NDArray[np.uint32],
) -> None:
    """See `place_categories`; ``run_of_small`` saves small counts the search for their run."""
    for i in range(categories.shape[0]):
        count = counts[i]
        if count < min_count:
            continue
        if count < run_of_small.shape[0]:
            run = run_of_small[count]
        else:
            # Runs fall by count: the first one whose count is not above this one.
            low, high = 0, run_counts.shape[0] - 1
            while low < high:
                middle = (low + high) // 2
                if run_counts[middle] > count:
                    low = middle + 1
                else:
                    high = middle
            run = low
        # Categories are in order, so each run stays in order.
        rows[next_row[run]] = categories[i]
        next_row[run] += 1


@kernel
def expand_runs(
    firsts: NDArray[np.int64], lengths: NDArray[np.int64], step: int, values: NDArray[np.int64]
) -> None:
    """Write ``first, first + step, first + 2 * step, ...`` for each run to ``values``, (lengths.sum(),)."""
    i = 0
    for run in range(firsts.shape[0]):
        for offset in range(lengths[run]):
            values[i] = firsts[run] + step * offset
            i += 1


def runs_of(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the runs of adjacent rows of one count: the count and the length of each.

    Args:
        counts: (num_rows,).
    """
    if counts.shape[0] == 0:
        return counts[:0], np.zeros(0, np.int64)
    starts = np.concatenate([[0], np.flatnonzero(counts[1:] != counts[:-1]) + 1])
    return counts[starts], np.diff(starts, append=counts.shape[0])


Runs = tuple[NDArray[np.int64], NDArray[np.int64]]
"""The runs of one table: lookups of each row of a run, falling, and rows of each run; (num_runs,) both."""


def first_places(tables: Sequence[Runs], row_bytes: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the places of runs in the order of all rows by falling lookups per byte; ties by table, then id.

    Args:
        tables: runs of each.
        row_bytes: per table, bytes of a row; only their ratios count.

    Returns:
        Per table (num_runs,): the place of the first row of each run; the others follow it. Exact: where
        widths differ, integers of any size are compared.
    """
    if not tables:
        return []
    counts = np.concatenate([counts for counts, _ in tables])
    lengths = np.concatenate([lengths for _, lengths in tables])
    if len(set(row_bytes)) <= 1:
        order = np.argsort(-counts, kind="stable")
    else:
        # Lookups per byte times the common multiple of all widths: integers, so no two differ by rounding.
        scale = math.lcm(*row_bytes)
        scales = [scale // width for (rows, _), width in zip(tables, row_bytes, strict=True) for _ in rows]
        density = [count * factor for count, factor in zip(counts.tolist(), scales, strict=True)]
        order = np.array(sorted(range(len(density)), key=lambda run: -density[run]), np.int64)
    firsts = np.empty(lengths.shape[0], np.int64)
    firsts[order] = np.cumsum(lengths[order]) - lengths[order]
    return np.split(firsts, np.cumsum([counts.shape[0] for counts, _ in tables])[:-1])


RowsOfPrefix = Callable[[int], list[int]]
"""How many rows of each table are among the first so many of all tables, in some order."""


def prefixes_of_places(places: Sequence[NDArray[np.int64]]) -> RowsOfPrefix:
    """Return the rows of prefixes; ``places``: per table (num_rows,), ascending, over all tables."""
    return lambda prefix: [int(np.searchsorted(place, prefix)) for place in places]


def prefixes_of_runs(tables: Sequence[Runs], row_bytes: Sequence[int]) -> RowsOfPrefix:
    """Return the rows of prefixes in the order of `first_places`."""
    firsts = first_places(tables, row_bytes)
    return lambda prefix: [
        int(np.clip(prefix - first, 0, lengths).sum())
        for first, (_, lengths) in zip(firsts, tables, strict=True)
    ]


def num_hot_of_tables(
    rows_of: RowsOfPrefix, num_rows: int, row_bytes: Sequence[int], budget_bytes: int
) -> tuple[list[int], int]:
    """Find the longest prefix of the order over all tables whose rows fit in ``budget_bytes``.

    Args:
        rows_of: rows of each table in a prefix.
        num_rows: of all tables.
        row_bytes: per table, bytes of a row with its optimizer state.
        budget_bytes: bytes of all hot rows together.

    Returns:
        Hot rows of each table, and of all. Exact.
    """

    def bytes_of(prefix: int) -> int:
        return sum(count * width for count, width in zip(rows_of(prefix), row_bytes, strict=True))

    # The bytes of a prefix rise with its length.
    longest = bisect_right(range(1, num_rows + 1), budget_bytes, key=bytes_of)
    return rows_of(longest), longest


def bytes_of_prefix_serving(
    rows_of: RowsOfPrefix,
    num_rows: int,
    row_bytes: Sequence[int],
    counts: Sequence[NDArray[np.int64]],
    percent: int,
) -> int:
    """Return the bytes of the shortest prefix of the order over all tables that serves some lookups.

    Args:
        rows_of: rows of each table in a prefix.
        num_rows: of all tables.
        row_bytes: per table, bytes of a row with its optimizer state.
        counts: per table (num_rows,), lookups of each row.
        percent: the least share of all lookups, in whole percent, 1 to 100.

    Returns:
        Bytes of the rows, 0 where there are no lookups. Exact.
    """
    total = sum(int(table.sum()) for table in counts)
    # The prefix `short` serves too little, `enough` does not. Each step counts the rows from `short` to the
    # middle, half of what is left: all steps together read a row once.
    short = 0
    enough = num_rows if total else 0
    served = 0
    rows = [0] * len(counts)
    while enough - short > 1:
        middle = (short + enough) // 2
        reached = rows_of(middle)
        parts = zip(counts, rows, reached, strict=True)
        more = sum(int(table[start:stop].sum()) for table, start, stop in parts)
        if 100 * (served + more) >= percent * total:
            enough = middle
        else:
            short = middle
            served += more
            rows = reached
    return sum(number * width for number, width in zip(rows_of(enough), row_bytes, strict=True))


@kernel
def largest_ids(ids: NDArray[np.int32], largest: NDArray[np.uint32]) -> None:
    """Raise ``largest``, (num_features,), to the largest of ``ids``, (num_samples, num_features).

    Ids count as unsigned numbers, so that a negative one is larger than any table. Exact.
    """
    num_features = np.uint64(ids.shape[1])
    for i in range(np.uint64(ids.shape[0])):  # unsigned: a signed index is not vectorised
        for feature in range(num_features):
            largest[feature] = max(largest[feature], np.uint32(ids[i, feature]))


@kernel
def tag_hot_samples(ids: NDArray[np.int32], num_hot: NDArray[np.int64], is_hot: NDArray[np.uint8]) -> int:
    """Write 1 for each sample all of whose lookups hit hot rows, else 0.

    Args:
        ids: (num_samples, num_features).
        num_hot: (num_features,); a row is hot when its id is smaller.
        is_hot: (num_samples,) out.

    Returns:
        Fully hot samples. Exact.
    """
    total = 0
    for i in range(ids.shape[0]):
        num_cold = 0
        for f in range(ids.shape[1]):
            num_cold += ids[i, f] >= num_hot[f]
        is_hot[i] = num_cold == 0
        total += num_cold == 0
    return total


MAX_BUDGETS = 255
_CHUNK_ROWS = 1 << 20


def levels_of_prefixes(num_hot_L: NDArray[np.int64], num_rows: int) -> NDArray[np.uint8]:
    """Return the level of each row of a table whose hot rows are its first ids.

    Args:
        num_hot_L: (num_budgets,), not falling; at most MAX_BUDGETS.
        num_rows: rows of the table.

    Returns:
        (num_rows,); num_budgets where no budget makes the row hot.
    """
    if num_hot_L.shape[0] > MAX_BUDGETS:
        raise ValueError(f"{num_hot_L.shape[0]} budgets: want {MAX_BUDGETS} at most")
    ends = np.minimum(np.append(num_hot_L, num_rows), num_rows)
    lengths = np.diff(ends, prepend=0)
    return np.repeat(np.arange(ends.shape[0], dtype=np.uint8), lengths)


@kernel
def raise_levels(
    ids_N: NDArray[np.int32],
    offsets: NDArray[np.int32],
    level_T: NDArray[np.uint8],
    level_B: NDArray[np.uint8],
    lookups_L: NDArray[np.int64],
) -> None:
    """Count the lookups of one table by level, and raise each sample's level to that of its rows. Exact.

    Args:
        ids_N: (num_lookups,); the lookups of sample i are ``ids_N[offsets[i]:offsets[i + 1]]``.
        offsets: (num_samples + 1,), or empty where each sample has one lookup.
        level_T: (num_embeddings,), level of each row.
        level_B: (num_samples,), level of each sample, raised.
        lookups_L: (num_budgets + 1,) out, added to.
    """
    is_one_hot = offsets.shape[0] == 0
    for sample in range(level_B.shape[0]):
        first = sample if is_one_hot else offsets[sample]
        stop = sample + 1 if is_one_hot else offsets[sample + 1]
        for i in range(first, stop):
            level = level_T[ids_N[i]]
            lookups_L[level] += 1
            level_B[sample] = max(level_B[sample], level)


def levels_by_count(
    counts_R: NDArray[np.int32],
    first_row_T: NDArray[np.int64],
    row_bytes_F: NDArray[np.int64],
    budgets_L: NDArray[np.int64],
    seed: int,
) -> NDArray[np.uint8]:
    """Return the level of each row where rows are hot by falling count, as many as fit.

    Args:
        counts_R: (num_rows,), of rows of all tables; those of 0 are last.
        first_row_T: (num_tables + 1,), first row of each table, then num_rows.
        row_bytes_F: (num_tables,), bytes of a row.
        budgets_L: (num_budgets,), bytes, rising.
        seed: seed of the hash that decides between equal counts.

    Returns:
        (num_rows,); num_budgets where no budget makes the row hot.

    Error:
        Exact for rows with a count. Those without are not sorted: where a hash lies among all hashes stands
        for its place, so about sqrt(num_rows) of them too many or too few are hot.

    Source:
        FAE as released: the rows with the highest counts in a sample of the log, all tables together.
    """
    # Rows with a count: sorted, and the bytes up to each compared with the budgets.
    # Rows with lookups are first, by falling count; equal counts by hash.
    rows = np.flatnonzero(counts_R)
    hashes = np.empty(rows.shape[0], np.uint64)
    hash_rows(rows, seed, hashes)
    order = rows[np.lexsort((hashes, -counts_R[rows].astype(np.int64)))]
    table_of_row = np.searchsorted(first_row_T, order, side="right") - 1
    # A row is hot under every budget that its bytes and those of all rows before it fit in.
    used = np.cumsum(row_bytes_F[table_of_row])
    levels = np.empty(counts_R.shape[0], np.uint8)
    levels[order] = np.searchsorted(budgets_L, used)
    # Rows without one follow, spread by their hashes over the bytes that are left.
    num_rows_F = np.diff(first_row_T)
    seen_F = np.bincount(table_of_row, minlength=row_bytes_F.shape[0])
    left_bytes = float(((num_rows_F - seen_F) * row_bytes_F).sum())
    before = float(used[-1]) if used.size else 0.0
    for table, row_bytes in enumerate(row_bytes_F.tolist()):
        for first in range(int(first_row_T[table]), int(first_row_T[table + 1]), _CHUNK_ROWS):
            chunk = counts_R[first : min(first + _CHUNK_ROWS, int(first_row_T[table + 1]))]
            rest = first + np.flatnonzero(chunk == 0)
            hashes = np.empty(rest.shape[0], np.uint64)
            hash_rows(rest, seed, hashes)
            # In expectation a row ends at its hash's share of the bytes that are left.
            ends = before + hashes * (2.0**-64 * (left_bytes - row_bytes)) + row_bytes
            levels[rest] = np.searchsorted(budgets_L, ends)
    return levels


@kernel
def hash_rows(rows: NDArray[np.int64], seed: int, hashes: NDArray[np.uint64]) -> None:
    """Write a hash of each row's number and the seed: an order that is independent of counts."""
    for i in range(rows.shape[0]):
        hashes[i] = mix64_pair(np.uint64(seed), np.uint64(rows[i]))


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
