"""Curves of lookups over rows, expected traffic, and slopes of speed.

A coverage curve gives the share of a table's lookups that its most looked-up rows serve, and from it the size
that reaches a share.

`fit_zipf` describes a table's lookups as FBGEMM does: heavy hitters, then Zipf's law. The k-th most frequent
row after the H heavy hitters has a probability proportional to (k + q)**-s, k counted from 0 over all rows. A
fit needs sums over all rows for each q. Rows of equal count are adjacent, so these are differences of
log-gamma functions, and the time of a fit depends on the distinct counts and not on the number of rows.

`log_slope` is the slope of speed over a factor of a model, both logarithmic: an elasticity of -1 halves the
speed where the factor doubles. Its interval covers 95 % under normal residuals of a power law. Few points
make it wide, and the verdict then stays undecided.

Distinct rows of a batch: lookups are modelled as independent draws, so a row of probability p is needed in a
batch of n with probability 1 - (1 - p)**n. Rows of equal probability count together (a log has few distinct
counts), so any log's tables take a few thousand numbers. `mean_unique_rows` counts the rows of real batches,
to measure their distance from independent draws. A buffer size that is large enough follows from the same
numbers.

Rows that one epoch loads into a staging area, from the counts of rows alone: a log is trained in a random
order, so the lookups of a row that has ``c`` of them are any ``c`` of its samples, and the chance that a
window of samples meets the row follows from ``c``. (Independent draws would treat a row that is looked up
once as one of many that might have been, and see it return.) An epoch starts with an empty area, so every row
is loaded at least once. Measured against the step plans of whole epochs (Criteo Kaggle, 110,000 real samples
in batches of 512; 300,000 generated ones in batches of 512 and 2,048; slots for 2 to 32% of the rows): 0.997
to 1.005 times the rows that lookahead loads, 0.91 to 1.02 times those of a cache that evicts the least
frequently used one.

Source:
    Erdogan et al., SCARS, arXiv 2411.01611, for expected unique rows; the formulas are derived from linearity
    of expectation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .batch_rows import find_distinct
from .kernel import kernel


def falling(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``counts``, (num_rows,), in falling order: as they are where they already fall, else sorted."""
    if (counts[1:] <= counts[:-1]).all():
        return counts
    return np.sort(counts)[::-1]


def top_shares(counts: NDArray[np.int64], tops: Sequence[int]) -> list[float]:
    """Return the share of the lookups that the k most looked-up rows serve, for each k, in [0, 1].

    Args:
        counts: (num_rows,), lookups, descending.
        tops: numbers of rows; more than there are means all.
    """
    total = int(counts.sum())
    return [int(counts[:top].sum()) / total if total else 0.0 for top in tops]


def rows_for_shares(counts: NDArray[np.int64], shares: Sequence[float]) -> list[int]:
    """Return the fewest rows that serve at least each share of the lookups.

    Args:
        counts: (num_rows,), lookups, descending.
        shares: in [0, 1].
    """
    served = np.cumsum(counts)
    total = int(served[-1]) if served.shape[0] else 0
    wanted = [int(np.ceil(share * total)) for share in shares]
    return [int(np.searchsorted(served, lookups)) + 1 if lookups else 0 for lookups in wanted]


def most_frequent(counts: NDArray[np.int64], num_wanted: int) -> NDArray[np.int64]:
    """Return the rows with the most lookups, most first and ties in ascending order: (num_wanted,) or fewer.

    The beginning of a stable sort by falling counts, without sorting all of them.

    Args:
        counts: (num_rows,), lookups, in any order.
        num_wanted: more than there are rows means all.
    """
    num_rows = counts.shape[0]
    num_wanted = min(num_wanted, num_rows)
    if not num_wanted:
        return np.zeros(0, np.int64)
    least = np.partition(counts, num_rows - num_wanted)[num_rows - num_wanted]
    above = np.flatnonzero(counts > least)
    ties = np.flatnonzero(counts == least)[: num_wanted - above.shape[0]]
    rows = np.concatenate([above, ties])
    found: NDArray[np.int64] = rows[np.lexsort((rows, -counts[rows]))]
    return found


def coverage_points(num_rows: int, per_decade: int) -> list[int]:
    """Return row counts of a coverage curve, evenly spaced by logarithm, with 1 and all.

    Args:
        num_rows: rows of the table.
        per_decade: points between 1 and 10 rows, between 10 and 100, and so on.
    """
    if num_rows < 1:
        return []
    num_points = int(np.ceil(np.log10(num_rows) * per_decade)) + 1
    return sorted({int(rows) for rows in np.geomspace(1, num_rows, num_points).round()} | {1, num_rows})


def first_to_reach(sizes: Sequence[int], shares: Sequence[float], wanted: float) -> int | None:
    """Return the smallest of the rising ``sizes`` whose share is at least ``wanted``; None where none is."""
    return next((size for size, share in zip(sizes, shares, strict=True) if share >= wanted), None)


def share_at(sizes: Sequence[int], shares: Sequence[float], size: float) -> float:
    """Return the share at ``size``, between the points of a curve by logarithm; at most the last one."""
    return float(np.interp(np.log2(max(size, 1)), np.log2(sizes), shares))


def gain_of(sizes: Sequence[int], shares: Sequence[float], size: float, more: float) -> float:
    """Return how much the share rises from ``size`` to ``size + more``, between points by logarithm.

    Args:
        sizes: rising, above 0.
        shares: at those sizes; beyond the last one nothing is gained.
        size: where to look.
        more: what is added to it.
    """
    at, after = np.interp(np.log2([size, size + more]), np.log2(sizes), shares)
    return float(after - at)


MOST_HITTERS = 20
"""Heavy hitters at most, FBGEMM's own limit."""
_HITTER_SHARE = 0.9
"""Share of the lookups that is enough for them."""
_LEAST_S, _MOST_S, _STEP_S = 0.01, 2.0, 0.01
_Q_REGULARIZER = 1e-4
_FACTORS = (1.0, 5.0)
"""Bounds of the least heavy hitter's probability, as a multiple of that of the first row after it."""
_DIRECT_TERMS = 64
"""Terms of the normalizing sum that are added one by one; the rest is an integral with its corrections."""


@dataclass(frozen=True, slots=True)
class ZipfFit:
    """The parameters of FBGEMM's generator of lookups, and how far it is from the counts."""

    heavy_hitters: tuple[float, ...]
    """Shares of the lookups of the most frequent rows, falling."""
    q: float
    s: float
    error: float
    """Share of the lookups, in [0, 1], that the fit gives to other rows (total variation distance)."""
    worst_coverage_error: float
    """Largest difference between the share of lookups of the first k rows and that of the fit, over all k."""


def fit_zipf(counts: NDArray[np.int64]) -> ZipfFit:
    """Fit heavy hitters and Zipf's law to the lookups of a table by the greatest likelihood.

    Args:
        counts: (num_rows,); lookups, descending; rows without lookups are left out.

    Returns:
        The best of FBGEMM's grid of q and s. Exact but for the normalizing sum, which has a relative error
        below 1e-6.

    Source:
        FBGEMM's IndicesEstimator (src/tbe/eeg), which samples; here the counts are exact.
    """
    used = counts[counts > 0]
    total = int(used.sum())
    if total == 0:
        return ZipfFit((), 1.0, _LEAST_S, 0.0, 0.0)
    # Add hitters until they serve most lookups.
    served = np.cumsum(used[:MOST_HITTERS]) / total
    num_hitters = min(int(np.searchsorted(served, _HITTER_SHARE, side="right")) + 1, served.size)
    hitters = tuple(float(count) / total for count in used[:num_hitters])
    rest = used[num_hitters:]
    if rest.size == 0:
        return ZipfFit(hitters, 1.0, _LEAST_S, 0.0, 0.0)

    # Runs of rows with the same count.
    starts = np.flatnonzero(np.diff(rest, prepend=rest[0] + 1))
    bounds = np.append(starts, rest.size) + num_hitters
    shares = rest[starts] / total
    share = float(rest.sum()) / total
    exponents = np.arange(_LEAST_S, _MOST_S, _STEP_S)
    best: tuple[float, float, float] | None = None
    # Consistent with the hitters first, as FBGEMM wants it; any fit where none is.
    for is_consistent in (True, False):
        for q in _grid_of_q():
            log_sum = float(sum_log_ranks(bounds, shares, q))
            norms = _norms(exponents, q + num_hitters, rest.size)
            likelihoods = -share * np.log(norms) - exponents * log_sum - _Q_REGULARIZER * q
            if is_consistent:
                first = share / norms * (q + num_hitters) ** -exponents
                ratios = hitters[-1] / first
                likelihoods[(ratios < _FACTORS[0]) | (ratios > _FACTORS[1])] = -math.inf
            place = int(np.argmax(likelihoods))
            if likelihoods[place] > -math.inf and (best is None or likelihoods[place] > best[0]):
                best = (float(likelihoods[place]), q, float(exponents[place]))
        if best is not None:
            break
    assert best is not None
    _, q, s = best
    error, worst = _errors(bounds, shares, share, q, s)
    return ZipfFit(hitters, q, s, error, worst)


@kernel
def sum_log_ranks(bounds: NDArray[np.int64], shares: NDArray[np.float64], q: float) -> float:
    """Return the sum over rows of their share times log(rank + q).

    Args:
        bounds: (num_runs + 1,), ascending; ranks where runs of rows with one share begin, and the end.
        shares: (num_runs,); share of the lookups of each row of a run.
        q: at least 1.

    Error:
        That of ``lgamma``, some 1e-15 of its value.
    """
    found = 0.0
    for run in range(shares.size):
        logs = math.lgamma(bounds[run + 1] + q) - math.lgamma(bounds[run] + q)
        found += shares[run] * logs
    return found


def _grid_of_q() -> list[float]:
    """Return FBGEMM's values of q: from 1 to 100,000, four for each unit of a decade."""
    return [first + step * first / 4 for first in 10.0 ** np.arange(5) for step in range(36)]


def _norms(s: NDArray[np.float64], first: float, count: int) -> NDArray[np.float64]:
    """Return the sum of (first + k)**-s for k from 0 to before ``count``, for each s."""
    direct = min(count, _DIRECT_TERMS)
    total: NDArray[np.float64] = ((first + np.arange(direct)) ** -s[:, None]).sum(axis=1)
    if count == direct:
        return total
    # Euler and Maclaurin's formula for the rest, whose terms change little from one to the next.
    low, high = first + direct, first + count - 1
    # At s = 1 the integral is a logarithm, and expm1 is exact near it.
    power = 1 - s
    span = math.log(high / low)
    is_one = np.abs(power) < 1e-12
    safe = np.where(is_one, 1.0, power)
    integral = np.where(is_one, span, low**safe * np.expm1(safe * span) / safe)
    ends = (low**-s + high**-s) / 2
    slopes = s * (low ** (-s - 1) - high ** (-s - 1)) / 12
    return total + integral + ends + slopes


def _errors(
    bounds: NDArray[np.int64], shares: NDArray[np.float64], share: float, q: float, s: float
) -> tuple[float, float]:
    """Return the total variation distance of a fit, and its largest error of a cumulative share.

    Rows are looked at in chunks, so that memory does not grow with the table.
    """
    (norm,) = _norms(np.array([s]), float(bounds[0]) + q, int(bounds[-1] - bounds[0]))
    distance = 0.0
    worst = 0.0
    difference = 0.0
    for first in range(int(bounds[0]), int(bounds[-1]), 1 << 20):
        ranks = np.arange(first, min(first + (1 << 20), int(bounds[-1])))
        fitted = share / norm * (ranks + q) ** -s
        actual = shares[np.searchsorted(bounds, ranks, side="right") - 1]
        differences = actual - fitted
        distance += float(np.abs(differences).sum())
        running = difference + np.cumsum(differences)
        worst = max(worst, float(np.abs(running).max()))
        difference = float(running[-1])
    return distance / 2, worst


SUPPORTED = "supported"
CONTRADICTED = "contradicted"
UNDECIDED = "undecided"

_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306)
"""Student's t at 97.5 % by degrees of freedom, from 1 up."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with half of its 95 % interval; infinite where the error is unknown."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """Lower end."""
        return self.value - self.error

    @property
    def high(self) -> float:
        """Upper end."""
        return self.value + self.error

    def lies_in(self, low: float, high: float) -> bool | None:
        """Return whether all of it is between two numbers; None if only a part is."""
        if low <= self.low and self.high <= high:
            return True
        return False if self.high < low or high < self.low else None


def log_slope(points: Sequence[tuple[float, float]]) -> Interval:
    """Return ``d log y / d log x`` of a power law through points (x, y), two or more, all above 0.

    Error:
        The interval of least squares, by Student's t; infinite for two points.
    """
    x, y = np.log(np.array(points, np.float64)).T
    # A line through centered points has one unknown, its slope; its error follows from the residuals.
    x = x - x.mean()
    slope = float(x @ y / (x @ x))
    degrees = len(points) - 2
    if not degrees:
        return Interval(slope, math.inf)
    residual = y - y.mean() - slope * x
    deviation = math.sqrt(float(residual @ residual) / degrees / float(x @ x))
    return Interval(slope, _T_95[min(degrees, len(_T_95)) - 1] * deviation)


def verdict(claims: Sequence[bool | None]) -> str:
    """Return the verdict on an observation that holds if all claims do; None is a claim left open."""
    if any(claim is False for claim in claims):
        return CONTRADICTED
    return SUPPORTED if claims and all(claims) else UNDECIDED


@dataclass(frozen=True, slots=True)
class AccessRates:
    """Rows of one or more tables, grouped by how likely one sample is to look each up."""

    rates: NDArray[np.float64]
    """(num_classes,), descending; probability in [0, 1] that one sample looks up a row of the class."""
    num_rows: NDArray[np.int64]
    """(num_classes,); rows of each class."""

    @classmethod
    def of_counts(cls, counts: Sequence[NDArray[np.int64]], num_samples: int) -> AccessRates:
        """Return the rows of several tables by their lookups in ``num_samples`` samples, but for unseen ones.

        Args:
            counts: per table (num_rows,), lookups, any order. In a list-valued feature a row counts as
                often as it is looked up; rates above 1 are cut to 1.
        """
        found = [np.unique(count[count > 0], return_counts=True) for count in counts]
        if not found:
            return cls(np.empty(0), np.empty(0, np.int64))
        # Tables share counts: merge the classes of equal count, and turn them round, the likeliest first.
        values = np.concatenate([value for value, _ in found])
        merged, inverse = np.unique(values, return_inverse=True)
        num_rows = np.zeros(merged.shape[0], np.int64)
        np.add.at(num_rows, inverse, np.concatenate([rows for _, rows in found]))
        rates = np.minimum(merged[::-1] / max(1, num_samples), 1.0)
        return cls(rates, num_rows[::-1].copy())

    @property
    def lookups_per_sample(self) -> float:
        """Expected lookups of one sample."""
        return float(self.rates @ self.num_rows)

    def split(self, num_top: int) -> tuple[AccessRates, AccessRates]:
        """Return the ``num_top`` likeliest rows, and the others; a class may be divided between the two."""
        before = np.cumsum(self.num_rows) - self.num_rows
        top = np.clip(num_top - before, 0, self.num_rows)
        rest = self.num_rows - top
        return (
            AccessRates(self.rates[top > 0], top[top > 0]),
            AccessRates(self.rates[rest > 0], rest[rest > 0]),
        )


def presence(probabilities: NDArray[np.float64], num_draws: float) -> NDArray[np.float64]:
    """Return the probability that each row is drawn: ``1 - (1 - p)**n``, without cancellation.

    Args:
        probabilities: (num_rows,), probability that a draw is the row, in [0, 1].
        num_draws: draws, 0 or more; need not be whole.
    """
    if num_draws < 0:
        raise ValueError(f"num_draws must be 0 or more, got {num_draws}")
    if num_draws == 0:
        return np.zeros(probabilities.shape[0])
    with np.errstate(divide="ignore"):
        return -np.expm1(num_draws * np.log1p(-probabilities))


def buffer_rows(expected: float, overflow_probability: float) -> int:
    """Return how many rows a buffer needs so that distinct rows of a batch rarely exceed it.

    Args:
        expected: expected number of distinct rows.
        overflow_probability: chance at most that they exceed it, in (0, 1].

    Error:
        Chernoff's bound in the form ``P(U > E + x) <= exp(-x**2 / (2 (E + x / 3)))``, which holds for
        negatively associated indicators; solved for x from above.

    Source:
        Dubhashi and Ranjan (1998), proposition 7; Bernstein's form of the bound.
    """
    if not 0 < overflow_probability <= 1:
        raise ValueError(f"overflow_probability must be in (0, 1], got {overflow_probability}")
    nats = -math.log(overflow_probability)
    return math.ceil(expected + math.sqrt(2 * expected * nats) + 2 / 3 * nats)


def mean_unique_rows(rows: NDArray[np.int64], lookups_per_batch: int) -> float:
    """Return the distinct rows of a batch, the mean over consecutive whole batches of a stream; exact.

    Args:
        rows: (num_lookups,), rows of all tables numbered as one, each at least 0, in order.
        lookups_per_batch: lookups of a batch; what is left over at the end is not counted.

    Raises:
        ValueError: the stream is shorter than one batch.
    """
    num_batches = rows.shape[0] // lookups_per_batch
    if num_batches == 0:
        raise ValueError(f"{rows.shape[0]} lookups are less than one batch of {lookups_per_batch}")
    batches = rows[: num_batches * lookups_per_batch].reshape(num_batches, lookups_per_batch)
    return float(np.mean([find_distinct(batch)[0].shape[0] for batch in batches]))


_GAP_CLASSES = 17
"""Classes of gaps by length: with 65 the loads differ by less than 0.2%."""


def absence(lookups: NDArray[np.float64], num_drawn: float, num_samples: float) -> NDArray[np.float64]:
    """Return the probability that none of a row's samples is among ``num_drawn`` of all of them.

    Args:
        lookups: (num_classes,), samples that look up a row of each class; need not be whole.
        num_drawn: samples drawn without replacement, at most ``num_samples``; need not be whole.
        num_samples: samples of the epoch.

    Error:
        The hypergeometric probability is a product of as many factors as the smaller of the two numbers; all
        count as the middle one, which is within 0.012 for integers.
    """
    fewer = np.minimum(lookups, num_drawn)
    more = np.maximum(lookups, num_drawn)
    factor = 1 - more / np.maximum(num_samples - (fewer - 1) / 2, 1e-9)
    gone: NDArray[np.float64] = np.where(
        lookups + num_drawn > num_samples, 0.0, np.maximum(factor, 0.0) ** fewer
    )
    return gone


@dataclass(frozen=True, slots=True)
class EpochUses:
    """Rows of one epoch by the number of batches that look them up, expected."""

    num_uses: NDArray[np.float64]
    """(num_classes,), falling; batches that look up a row of the class, from 1 to ``num_batches``."""
    num_rows: NDArray[np.int64]
    """(num_classes,); rows of each class."""
    num_batches: float

    @classmethod
    def of_rates(cls, rates: AccessRates, num_samples: float, batch_size: int) -> EpochUses:
        """Return the uses of rows with ``rates`` in an epoch of ``num_samples`` samples."""
        num_samples = max(num_samples, 1.0)
        num_batches = max(num_samples / batch_size, 1.0)
        lookups = rates.rates * num_samples
        present = 1 - absence(lookups, min(float(batch_size), num_samples), num_samples)
        return cls(np.clip(num_batches * present, 1.0, num_batches), rates.num_rows, num_batches)

    @property
    def num_first_uses(self) -> int:
        """Distinct rows of the epoch."""
        return int(self.num_rows.sum())

    @property
    def rows_per_batch(self) -> float:
        """Expected distinct rows of a batch."""
        return float(self.num_uses @ self.num_rows) / self.num_batches

    def num_passes(self, num_slots: int) -> int:
        """Return how often a batch loads its rows: twice, in passes, where it has more than slots."""
        return 2 if self.rows_per_batch > num_slots else 1

    def lookahead_loads(self, num_slots: int, prefetch: int) -> float:
        """Return the rows that Belady's algorithm loads, including each first use.

        Belady evicts the row with the farthest next use, so a row stays if its next use is within a window:
        as many batches as it takes until the rows that stay fill the slots. An evicted row keeps its slot
        until the transfers of ``prefetch`` further batches are finished.

        In passes, no row stays after its batch.

        Error:
            A lower bound, as tight as the module says: slots suffice on average and in the middle of the
            epoch, but are not counted at each batch.
        """
        # No row has to leave where all have a slot.
        if num_slots >= self.num_first_uses:
            return float(self.num_first_uses)
        if self.num_passes(num_slots) > 1:
            return self.num_passes(num_slots) * self.rows_per_batch * self.num_batches

        def fits(window: float) -> bool:
            return self._occupied(window, prefetch) <= num_slots

        return self._loads(largest(fits, self.num_batches))

    def cache_loads(self, num_slots: int) -> float:
        """Return the rows that a cache of the most frequent rows loads, including each first use.

        The slots that a batch's rare rows leave free hold the most frequent rows, which are loaded once; the
        others are loaded by each batch that looks them up.

        Error:
            See the module; `lfu` learns the counts gradually, from 70% of the slots filled with them.
        """
        if num_slots >= self.num_first_uses:
            return float(self.num_first_uses)
        if self.num_passes(num_slots) > 1:
            return self.num_passes(num_slots) * self.rows_per_batch * self.num_batches

        def fits(kept: float) -> bool:
            return kept + self._uses_beyond(kept) / self.num_batches <= num_slots

        kept = largest(fits, float(num_slots))
        return min(kept, float(self.num_first_uses)) + self._uses_beyond(kept)

    def _loads(self, window: float) -> float:
        """Return the loads of rows that stay where the next use is within ``window`` batches."""
        far = absence(self.num_uses, window, self.num_batches)
        return float((1 + (self.num_uses - 1) * far) @ self.num_rows)

    def _occupied(self, window: float, prefetch: int) -> float:
        """Return the slots that such rows take: the mean over the epoch, or those in its middle if more.

        A row takes a slot from its use to the next one where that is in the window, else for its own batch
        and the transfers after it. Fewer rows have uses on both sides of a batch near the ends of an epoch.
        """
        uses = self.num_uses
        num_batches = self.num_batches
        # All gaps between uses of a row have one distribution, and so has the gap before the first use: it is
        # longer than x if the first x batches do not use the row. They are summed by classes of length.
        edges = [0.0, *np.geomspace(1.0, max(window, 1.0), _GAP_CLASSES).tolist()]
        beyond = [absence(uses, edge, num_batches) for edge in edges]
        leaving = float((((uses - 1) * beyond[-1] + 1) @ self.num_rows) * (1 + prefetch))
        mean = middle = leaving / num_batches
        for start, stop, longer, longest in zip(edges, edges[1:], beyond, beyond[1:], strict=False):
            length = (start + stop + 1) / 2
            num_gaps = float(((uses - 1) * (longer - longest)) @ self.num_rows)
            # A gap of this length has so many places in the epoch, and in so many it spans the middle.
            places = max(num_batches - length, 1.0)
            mean += num_gaps * length / num_batches
            middle += num_gaps * min(length, places) / places
        return max(mean, middle)

    def _uses_beyond(self, kept: float) -> float:
        """Return the uses of all rows but the ``kept`` most frequent ones."""
        before = np.cumsum(self.num_rows) - self.num_rows
        beyond = self.num_rows - np.clip(kept - before, 0, self.num_rows)
        return float(self.num_uses @ beyond)


def largest(fits: Callable[[float], bool], limit: float) -> float:
    """Return the largest argument from 1 to ``limit`` that fits, to a thousandth, else 1."""
    if limit <= 1 or fits(limit):
        return max(limit, 1.0)
    low, high = 1.0, limit
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
