"""The distribution of a table's lookups as FBGEMM describes it: heavy hitters, then Zipf's law.

The k-th most frequent row behind the H heavy hitters has a probability proportional to (k + q)**-s, k counted
from 0 over all rows. A fit needs sums over all rows for each q; rows of equal count follow each other, so
these are differences of log-gamma functions, and 30 million rows take no longer than their distinct counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel

MOST_HITTERS = 20
"""Heavy hitters at most, FBGEMM's own limit."""
_HITTER_SHARE = 0.9
"""Share of the lookups that is enough for them."""
_LEAST_S, _MOST_S, _STEP_S = 0.01, 2.0, 0.01
_Q_REGULARIZER = 1e-4
_FACTORS = (1.0, 5.0)
"""Bounds of the least heavy hitter's probability, as a multiple of that of the first row behind it."""
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
    # Hitters are taken until they serve most lookups.
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
