"""Counts, sums, extremes and histograms of numeric columns in one pass.

A bin holds the float32 values that share their upper 16 bits: sign, exponent and 7 bits of the fraction. So
quantiles have a relative error below 2**-7 and integers up to 256 are exact, at 512 KiB of counts for a
column of any length. Histograms of parts add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kernel import kernel, read_only

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
