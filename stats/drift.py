"""Measure the parts of a log: how hot sets age between them, and the numbers in its columns.

Rows of all tables are numbered consecutively (row = first_row[table] + id). Every row has one word of marks:
bit p means that part p would keep it hot, bit num_parts + p that part p looked it up. So one pass over the
ids measures the hot sets of all parts, with one random read per lookup and one word and one counter per row.
Ids are ranks over the whole log, so ties are broken by a hash and not by id: otherwise later parts would
decide between a part's rows of equal count.

Numeric columns have counts, sums, extremes and a histogram from one pass. A bin holds the float32 values that
share their upper 16 bits: sign, exponent and 7 bits of the fraction. So quantiles have a relative error below
2**-7 and integers up to 256 are exact, at 512 KiB of counts for a column of any length. Histograms add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kernel import kernel, read_only
from .ranking import hash_rows

MAX_PARTS = 32


def marks_dtype(num_parts: int) -> np.dtype[np.unsignedinteger]:
    """Return the narrowest word that has two bits for each part; raises ValueError above MAX_PARTS."""
    if num_parts > MAX_PARTS:
        raise ValueError(f"{num_parts} parts: want {MAX_PARTS} at most")
    return np.min_scalar_type((1 << (2 * num_parts)) - 1)


@kernel
def count_rows(ids_N: NDArray[np.int32], counts_T: NDArray[np.int32]) -> None:
    """Add the lookups of one table to the counts of its rows. Exact.

    Args:
        ids_N: (num_lookups,).
        counts_T: (num_embeddings,) out, lookups, added to.
    """
    for i in range(ids_N.shape[0]):
        counts_T[ids_N[i]] += 1


def _rows_from(
    counts_R: NDArray[np.int32], first_row_T: NDArray[np.int64], scale_F: NDArray[np.int64], least: int
) -> Iterator[tuple[slice, NDArray[np.bool_]]]:
    """Yield each table's rows, and which of them have lookups and ``count * scale`` of ``least`` or more."""
    for first, stop, scale in zip(first_row_T[:-1], first_row_T[1:], scale_F.tolist(), strict=True):
        rows = slice(first, stop)
        yield rows, counts_R[rows] >= max(1, -(-least // scale))


def mark_part(
    counts_R: NDArray[np.int32],
    first_row_T: NDArray[np.int64],
    row_bytes_F: NDArray[np.int64],
    budget_bytes: int,
    part: int,
    num_parts: int,
    marks_R: NDArray[np.unsignedinteger],
) -> int:
    """Mark the rows that one part looked up, and those it would keep hot under a budget.

    Hot are the rows with the most lookups of the part per byte, as many as fit in that order; rows of
    equal worth go by a hash of their number, rows without a lookup are never hot. Exact.

    Args:
        counts_R: (num_rows,), lookups of the part.
        first_row_T: (num_tables + 1,), first row of each table, then num_rows.
        row_bytes_F: (num_tables,), bytes of a row with its optimizer state.
        budget_bytes: bytes of all hot rows together.
        part: in [0, num_parts).
        marks_R: (num_rows,) out; its bits ``part`` and ``num_parts + part`` are set, none is cleared.

    Returns:
        Hot rows of the part.
    """
    word = marks_R.dtype.type
    for rows, is_seen in _rows_from(counts_R, first_row_T, np.ones_like(row_bytes_F), 1):
        marks_R[rows][is_seen] |= word(1 << (num_parts + part))
    scale_F = math.lcm(*row_bytes_F.tolist()) // row_bytes_F

    def taken(least: int) -> int:
        """Return the bytes of all rows of at least this worth."""
        found = _rows_from(counts_R, first_row_T, scale_F, least)
        return sum(
            int(np.count_nonzero(is_worth)) * width
            for (_, is_worth), width in zip(found, row_bytes_F.tolist(), strict=True)
        )

    # Worth is lookups per byte, as integers; bisect for the least worth whose rows all fit.
    low, high = 1, int(counts_R.max(initial=0)) * int(scale_F.max(initial=1)) + 1
    while low < high:
        middle = (low + high) // 2
        if taken(middle) <= budget_bytes:
            high = middle
        else:
            low = middle + 1
    for rows, is_worth in _rows_from(counts_R, first_row_T, scale_F, low):
        marks_R[rows][is_worth] |= word(1 << part)
    room = budget_bytes - taken(low)
    tied = _tied_rows(counts_R, first_row_T, row_bytes_F, scale_F, low - 1, room)
    marks_R[tied] |= word(1 << part)
    return int(np.count_nonzero(marks_R & word(1 << part)))


def _tied_rows(
    counts_R: NDArray[np.int32],
    first_row_T: NDArray[np.int64],
    row_bytes_F: NDArray[np.int64],
    scale_F: NDArray[np.int64],
    worth: int,
    room: int,
) -> NDArray[np.int64]:
    """Return the rows of exactly this worth that still fit, by the hash of their numbers."""
    if worth < 1:
        return np.zeros(0, np.int64)
    # All rows of that worth, of every table, although their widths differ.
    rows_of_tables = [
        first + np.flatnonzero(counts_R[first:stop] * scale == worth)
        for first, stop, scale in zip(first_row_T[:-1], first_row_T[1:], scale_F, strict=True)
    ]
    rows = np.concatenate(rows_of_tables)
    widths = np.repeat(row_bytes_F, [found.shape[0] for found in rows_of_tables])
    hashes = np.empty(rows.shape[0], np.uint64)
    # In the order of a hash, which prefers no table: by number the first tables would take all the room.
    hash_rows(rows, 0, hashes)
    order = np.argsort(hashes)
    return rows[order[np.cumsum(widths[order]) <= room]]


@kernel
def count_common(marks_R: NDArray[np.unsignedinteger], num_parts: int, common_PP: NDArray[np.int64]) -> None:
    """Count the rows that are hot in each pair of parts. Exact.

    Args:
        marks_R: (num_rows,), from `mark_part`.
        num_parts: as `mark_part` had it.
        common_PP: (num_parts, num_parts) out, rows, added to; its diagonal is each part's hot rows.
    """
    hot = marks_R.dtype.type((1 << num_parts) - 1)
    for row in range(marks_R.shape[0]):
        mark = np.int64(marks_R[row] & hot)
        if mark == 0:
            continue
        for p in range(num_parts):
            if mark >> p & 1:
                for q in range(num_parts):
                    common_PP[p, q] += mark >> q & 1


@kernel
def judge_lookups(
    ids_N: NDArray[np.int32],
    offsets: NDArray[np.int32],
    marks_T: NDArray[np.unsignedinteger],
    everywhere_B: NDArray[np.uint64],
    lookups_M: NDArray[np.int64],
) -> None:
    """Count lookups of one table by marks, and keep the bits common to each sample's rows.

    Exact.

    Args:
        ids_N: (num_lookups,); the lookups of sample i are ``ids_N[offsets[i]:offsets[i + 1]]``.
        offsets: (num_samples + 1,), or empty where each sample has one lookup.
        marks_T: (num_embeddings,), the table's part of what `mark_part` marked.
        everywhere_B: (num_samples,); bits that a lookup lacks are cleared.
        lookups_M: (num_bits,) out, lookups whose row has the bit, added to.
    """
    is_one_hot = offsets.shape[0] == 0
    num_bits = lookups_M.shape[0]
    for sample in range(everywhere_B.shape[0]):
        first = sample if is_one_hot else offsets[sample]
        stop = sample + 1 if is_one_hot else offsets[sample + 1]
        for i in range(first, stop):
            mark = np.uint64(marks_T[ids_N[i]])
            everywhere_B[sample] &= mark
            # Every bit that the row has: hot in a part, or looked up by one.
            for bit in range(num_bits):
                lookups_M[bit] += np.int64(mark >> np.uint64(bit) & np.uint64(1))


def count_bits(everywhere_B: NDArray[np.uint64], samples_P: NDArray[np.int64]) -> None:
    """Count the samples that have each bit. Exact.

    Args:
        everywhere_B: (num_samples,), from `judge_lookups` of all tables.
        samples_P: (num_parts,) out, added to.
    """
    for p in range(samples_P.shape[0]):
        samples_P[p] += np.count_nonzero(everywhere_B >> np.uint64(p) & np.uint64(1))


def mean_by_age(served_SP: NDArray[np.int64], total_P: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share that hot sets of age 0, 1, 2, … parts serve, over all pairs.

    Args:
        served_SP: (num_sets, num_parts); [s, p] is what the set chosen on part s serves of part p.
        total_P: (num_parts,), all there is in part p.

    Returns:
        (num_parts,), in [0, 1]; NaN where parts of that age have nothing.
    """
    num_sets, num_parts = served_SP.shape
    served = np.array([np.trace(served_SP, age) for age in range(num_parts)], np.float64)
    total = np.array([total_P[age : age + num_sets].sum() for age in range(num_parts)], np.float64)
    means: NDArray[np.float64] = np.divide(served, total, out=np.full(num_parts, np.nan), where=total > 0)
    return means


def cut_evenly(num_samples: int, num_parts: int) -> list[int]:
    """Return the first sample of each of ``num_parts`` parts as equal as can be, then ``num_samples``."""
    return [num_samples * part // num_parts for part in range(num_parts + 1)]


NUM_BINS = 1 << 16
_ZERO_BIN = 1 << 15
"""The bin of 0 and of the smallest positive numbers; the bins of negative ones are below."""
_LARGEST = float(np.finfo(np.float32).max)


@kernel
def add_to_summary(
    values: NDArray[np.float64],
    is_valid: NDArray[np.uint8],
    counts: NDArray[np.int64],
    numbers: NDArray[np.float64],
    histogram: NDArray[np.int64],
) -> None:
    """Count the values of a column into its summary, in place.

    Args:
        values: (num_samples,), float64 or int32, finite; beyond float32 they count as its largest number.
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        counts: (3,) values, values of 0, values below 0; added to.
        numbers: (3,) sum, least, greatest; the last two begin at infinity and minus infinity.
        histogram: (NUM_BINS,) values by bin; added to.

    Error:
        Counts and extremes are exact; the sum is a serial one in float64.

    Source:
        Bins of equal relative width, as in Masson et al., DDSketch, VLDB 12(12), 2019, section 2.
    """
    has_nulls = is_valid.shape[0] > 0
    for i in range(values.shape[0]):
        if has_nulls and not (is_valid[i >> 3] >> np.uint8(i & 7)) & 1:
            continue
        value = float(values[i])
        counts[0] += 1
        counts[1] += value == 0
        counts[2] += value < 0
        numbers[0] += value
        numbers[1] = min(numbers[1], value)
        numbers[2] = max(numbers[2], value)
        # The upper half of a float32 is its sign, exponent and seven bits: bins of equal relative width.
        bits = np.int64(np.float32(min(abs(value), _LARGEST)).view(np.uint32)) >> 16
        histogram[_ZERO_BIN - 1 - bits if value < 0 else _ZERO_BIN + bits] += 1


def bin_edge(number: int) -> float:
    """Return the edge of a bin that is nearest to 0."""
    # Bins of negative numbers mirror those of positive ones.
    bits = number - _ZERO_BIN if number >= _ZERO_BIN else _ZERO_BIN - 1 - number
    size = float(np.array([bits << 16], np.uint32).view(np.float32)[0])
    return size if number >= _ZERO_BIN else -size


@dataclass(frozen=True, slots=True)
class ValueSummary:
    """The summary of a column, or of a part of it."""

    counts: NDArray[np.int64]
    """(3,), see `add_to_summary`."""
    numbers: NDArray[np.float64]
    """(3,)."""
    bins: NDArray[np.int64]
    """(num_used_bins,), ascending, the bins that hold values."""
    bin_counts: NDArray[np.int64]
    """(num_used_bins,), values of each."""

    @classmethod
    def of(
        cls, values: NDArray[np.float64], is_valid: NDArray[np.uint8], histogram: NDArray[np.int64]
    ) -> ValueSummary:
        """Summarize the values of a part.

        Args:
            values: see `add_to_summary`.
            is_valid: see there.
            histogram: (NUM_BINS,) room to count in.
        """
        # Only the bins in use are kept: most of 65,536 are empty.
        counts = np.zeros(3, np.int64)
        numbers = np.array([0, np.inf, -np.inf])
        histogram[:] = 0
        add_to_summary(read_only(values), read_only(is_valid), counts, numbers, histogram)
        bins = np.flatnonzero(histogram)
        return cls(counts, numbers, bins, histogram[bins])

    def __add__(self, other: ValueSummary) -> ValueSummary:
        """Return the summary of the values of both."""
        bins, slots = np.unique(np.concatenate([self.bins, other.bins]), return_inverse=True)
        # Bins that only one of the two has keep their counts.
        bin_counts = np.zeros(bins.shape[0], np.int64)
        np.add.at(bin_counts, slots, np.concatenate([self.bin_counts, other.bin_counts]))
        numbers = np.array(
            [
                self.numbers[0] + other.numbers[0],
                min(self.numbers[1], other.numbers[1]),
                max(self.numbers[2], other.numbers[2]),
            ]
        )
        return ValueSummary(self.counts + other.counts, numbers, bins, bin_counts)

    def quantiles(self, shares: Sequence[float]) -> list[float]:
        """Return the least values that these shares of the values do not exceed, none where there are none.

        Args:
            shares: in [0, 1], rising.

        Error:
            Less than 2**-7 of the value, towards 0; integers up to 256 are exact. Numbers that float32 does
            not hold are as near as its largest and smallest ones.
        """
        if not self.counts[0]:
            return []
        # The bin of the value with each rank, counted from the least.
        up_to = np.cumsum(self.bin_counts)
        ranks = [max(1, int(np.ceil(share * int(self.counts[0])))) for share in shares]
        # An edge may be outside of the observed range: no quantile is.
        numbers = self.bins[np.searchsorted(up_to, ranks)]
        low, high = float(self.numbers[1]), float(self.numbers[2])
        return [min(max(bin_edge(int(number)), low), high) for number in numbers]

    def by_power_of_two(self) -> list[tuple[float, float, int]]:
        """Return how many values are between neighboring powers of two, away from 0: low, high, values.

        0 has a separate bin, as low and high; bins without values are left out.
        """
        # A bin is within one power of two, as it is a part of one exponent.
        edges = [bin_edge(int(number)) for number in self.bins]
        found: dict[tuple[float, float], int] = {}
        for edge, count in zip(edges, self.bin_counts.tolist(), strict=True):
            power = 2.0 ** np.floor(np.log2(abs(edge))) if edge else 0.0
            ends = (power, 2 * power) if edge >= 0 else (-2 * power, -power)
            found[ends] = found.get(ends, 0) + count
        return [(float(low), float(high), count) for (low, high), count in found.items()]
