"""Access rates of rows that are looked up by Zipf's law, the form of skew that sweeps vary.

The law is taken continuous: id k has the part of the density ``x**-skew`` between k + 1 and k + 2, so that
ids can be drawn by one formula and have known rates at any number of rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..prediction.access_rates import AccessRates

ZIPF_ONE = 1e-9
"""Exponents nearer to 1 than this are taken as 1, whose integral is a logarithm."""
_EXACT_ROWS = 4096
_MOST_COUNT = 32
"""Rows that are expected to be looked up more often than this count as if they always were so often."""
_CLASSES = 2048
"""Beyond the first rows, neighbors with nearly equal rates count as one class."""


def zipf_shares(edges: NDArray[np.float64], num_rows: int, skew: float) -> NDArray[np.float64]:
    """Return the share of lookups of ids between successive edges, (num_edges - 1,); sums to 1 over all ids.

    Args:
        edges: (num_edges,), ascending, from 0 to ``num_rows``.
        num_rows: rows of the table.
        skew: exponent, 0 or more.
    """
    # The integral of the density up to each edge, over the whole.
    if abs(skew - 1) < ZIPF_ONE:
        below = np.log(edges + 1) / np.log(num_rows + 1.0)
    else:
        power = 1 - skew
        below = ((edges + 1) ** power - 1) / ((num_rows + 1.0) ** power - 1)
    return np.diff(below)


def zipf_rates(num_tables: int, num_rows: int, skew: float, lookups_per_sample: int) -> AccessRates:
    """Return the rates of the rows of equal tables.

    Args:
        num_tables: tables that are looked up alike.
        num_rows: rows of each.
        skew: exponent, 0 or more.
        lookups_per_sample: lookups of a sample in each table, drawn independently.

    Error:
        Rows behind the first 4,096 are grouped in 2,048 classes of equal width in the logarithm, whose rates
        differ by less than ``skew * log(num_rows) / 2048`` inside a class.
    """
    # The most frequent rows differ much and have a class each; the tail shares ever wider ones.
    exact = np.arange(min(num_rows, _EXACT_ROWS) + 1, dtype=np.float64)
    edges = exact
    if num_rows > _EXACT_ROWS:
        further = np.unique(np.geomspace(_EXACT_ROWS, num_rows, _CLASSES).round())
        edges = np.concatenate([exact, further[1:]])
    rows = np.diff(edges).astype(np.int64)
    drawn = zipf_shares(edges, num_rows, skew) / rows
    # The probability that at least one of a sample's lookups is of the row.
    rates = -np.expm1(lookups_per_sample * np.log1p(-np.minimum(drawn, 1 - 1e-12)))
    return AccessRates(np.minimum(rates, 1.0), rows * num_tables)


def seen_rates(rates: AccessRates, num_samples: int) -> AccessRates:
    """Return the rates that a log of so many samples shows: its rows by how often they were looked up.

    Rows that the log never looks up are not among them, as in `AccessRates.of_counts`.

    Args:
        rates: of all rows.
        num_samples: samples of the log.

    Error:
        The expectation over logs, rows rounded to whole ones; Poisson's law for rows that are expected fewer
        than 32 times.
    """
    # Frequent rows show their own rates. A rare one may show any count, and is spread over all of them.
    expected = rates.rates * num_samples
    is_rare = expected < _MOST_COUNT
    # A mean below the limit hardly ever gives three times as many.
    counts = np.arange(1, 3 * _MOST_COUNT)
    # log(count!) by sums, for the probability of each count of each rare class.
    log_factorial = np.cumsum(np.log(counts))
    mean = expected[is_rare][:, None]
    # A mean of zero has the logarithm minus infinity, which makes its shares zero, as they should be.
    with np.errstate(divide="ignore"):
        log_share = counts * np.log(mean) - mean - log_factorial
    seen = np.rint(rates.num_rows[is_rare] @ np.exp(log_share)).astype(np.int64)
    found = seen > 0
    often = AccessRates(rates.rates[~is_rare], rates.num_rows[~is_rare])
    all_rates = np.concatenate([often.rates, counts[found] / num_samples])
    all_rows = np.concatenate([often.num_rows, seen[found]])
    order = np.argsort(-all_rates, kind="stable")
    return AccessRates(np.minimum(all_rates[order], 1.0), all_rows[order])
