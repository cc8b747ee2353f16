"""Curves of lookups over rows, fits of their distribution, and slopes of speed.

A coverage curve gives the share of a table's lookups that its most looked-up rows serve, and from it the size
that reaches a share.

`fit_zipf` describes a table's lookups as FBGEMM does: heavy hitters, then Zipf's law. The k-th most frequent
row after the H heavy hitters has a probability proportional to (k + q)**-s, k counted from 0 over all rows. A
fit needs sums over all rows for each q. Rows of equal count are adjacent, so these are differences of
log-gamma functions, and the time of a fit depends on the distinct counts and not on the number of rows.

`log_slope` is the slope of speed over a factor of a model, both logarithmic: an elasticity of -1 halves the
speed where the factor doubles. Its interval covers 95 % under normal residuals of a power law. Few points
make it wide, and the verdict then stays undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
