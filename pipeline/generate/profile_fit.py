"""Fit the dependence of a profile to a part of a log.

The categories of that part are global ranks. Fits the shares of latent classes, of missing patterns and of
rank buckets in each class, and how often columns of a coupled group share one uniform variable within a
class. Marginals are not fitted: they come from aggregates of the whole log and are restored by raking when
the profile is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernel import fit_latent_classes
from .world import Coverage

HOT_THRESHOLDS = (1e-5, 1e-6, 1e-7)
"""Lookup probabilities at which a bucket of ranks begins, so that hot lookups can occur together."""

_HEAD_QUANTILES = (0.2, 0.4, 0.6, 0.8)
_LEAST_TAIL = 0.004
_PER_MILLE = 1000


@dataclass(frozen=True, slots=True)
class FitColumn:
    """One column of the part of a log that the dependence is fitted to."""

    name: str
    present: Coverage
    ranks: NDArray[np.int64]
    """(num_samples,); rank among the values that are present, -1 where missing."""
    edges: NDArray[np.int64]
    """(num_buckets - 1,); ranks at which a new bucket begins."""
    group: int | None = None
    """Number of the group of columns it may be coupled with."""

    @property
    def levels(self) -> NDArray[np.int32]:
        """The bucket of each sample, (num_samples,); -1 where missing."""
        buckets = np.searchsorted(self.edges, self.ranks, side="right")
        return np.where(self.ranks < 0, -1, buckets).astype(np.int32)

    @property
    def num_buckets(self) -> int:
        """Number of rank buckets."""
        return len(self.edges) + 1


def sparse_edges(present: Coverage, missing_share: float) -> NDArray[np.int64]:
    """Cut a sparse column where lookups stop being hot, once more in its tail, and in its head.

    Args:
        present: coverage of the values that are present.
        missing_share: of all fields; the thresholds are shares of all fields.
    """
    num_values = present.num_values
    # Shares of single values, the most frequent first, of all samples and not only those with a value.
    running = present.at(num_values, np.arange(1, num_values + 1))
    shares = np.diff(running, prepend=0.0) * (1.0 - missing_share)
    hot_ends = [int(np.count_nonzero(shares >= threshold)) for threshold in HOT_THRESHOLDS]
    # An edge where lookups stop being hot under each threshold, unless nearly nothing lies beyond it.
    edges = {end for end in hot_ends if 0 < end < num_values and 1.0 - running[end - 1] > _LEAST_TAIL}
    coldest = running[max(edges) - 1] if edges else 1.0
    # The tail is halved by its lookups, and the head cut at some of its quantiles.
    if edges:
        edges.add(int(np.searchsorted(running, (1.0 + coldest) / 2)) + 1)
    head_end = min(edges, default=num_values)
    for quantile in _HEAD_QUANTILES:
        edges.add(int(np.searchsorted(running, quantile * running[head_end - 1])) + 1)
    return np.array(sorted(edge for edge in edges if 0 < edge < num_values), np.int64)


def dense_edges(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cut a dense column at its quartiles, as far as they differ; returns the ranks."""
    present = ranks[ranks >= 0]
    quartiles = np.quantile(present, [0.25, 0.5, 0.75]).astype(np.int64) + 1
    return np.unique(quartiles[quartiles <= present.max()])


def pattern_levels(columns: list[FitColumn], patterns: list[list[str]]) -> NDArray[np.int32]:
    """Return which of ``patterns`` each sample shows in the columns they name; -1 for none of them."""
    named = sorted({name for pattern in patterns for name in pattern})
    ranks = {column.name: column.ranks for column in columns}
    codes = sum((ranks[name] < 0).astype(np.int64) << bit for bit, name in enumerate(named))
    levels = np.full(len(columns[0].ranks), -1, np.int32)
    for level, pattern in enumerate(patterns):
        levels[codes == sum(1 << named.index(name) for name in pattern)] = level
    return levels


def fit_dependence(
    columns: list[FitColumn], missing: list[dict[str, Any]], num_classes: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Fit classes, their shares in thousandths, and couplings, in the form of a profile.

    Args:
        columns: dense, then sparse.
        missing: groups with their ``patterns`` and ``shares``.
        num_classes: latent classes.
        rng: draws the first memberships, and breaks ties.

    Returns:
        ``class_weights``, ``missing`` and ``columns`` (by name: edges, class_shares, group, coupling).
    """
    # Patterns of missing values and buckets of columns are levels alike: one fit explains both.
    levels = [pattern_levels(columns, group["patterns"]) for group in missing]
    levels += [column.levels for column in columns]
    num_levels = [len(group["patterns"]) for group in missing] + [column.num_buckets for column in columns]
    weights, shares_of, members = fit_latent_classes(
        np.stack(levels, axis=1), np.array(num_levels), num_classes, rng
    )
    # Patterns and columns are variables of one fit, the patterns first.
    pattern_shares = shares_of[: len(missing)]
    column_shares = shares_of[len(missing) :]
    uniforms = [
        within_class(column, shares, members, rng)
        for column, shares in zip(columns, column_shares, strict=True)
    ]
    couplings = fit_couplings([column.group for column in columns], uniforms)
    return {
        "class_weights": _rounded(weights, 10_000),
        "missing": [
            {**group, "class_shares": _rounded(shares, _PER_MILLE)}
            for group, shares in zip(missing, pattern_shares, strict=True)
        ],
        "columns": {
            column.name: {
                "edges": column.edges.tolist(),
                "class_shares": _rounded(shares, _PER_MILLE),
                **({} if column.group is None else {"group": column.group, "coupling": round(coupling, 2)}),
            }
            for column, shares, coupling in zip(columns, column_shares, couplings, strict=True)
        },
    }


def within_class(
    column: FitColumn,
    class_shares: NDArray[np.float64],
    members: NDArray[np.float32],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Return (num_samples,): the quantile of each value in its class, uniform if the fit is right.

    The class is drawn from the memberships, and ties are broken at random; NaN where missing.
    """
    # Draw the class.
    latent = (
        (members.cumsum(axis=1) < rng.random((len(members), 1))).sum(axis=1).clip(max=members.shape[1] - 1)
    )

    # The quantile of the value in the column's distribution, at random between its ends.
    num_values = column.present.num_values
    ranks = np.clip(column.ranks, 0, num_values - 1)
    low = column.present.at(num_values, ranks)
    high = column.present.at(num_values, ranks + 1)
    position = low + (high - low) * rng.random(len(ranks))

    # Where in its bucket, and so where in the class's distribution.
    ends = column.present.at(num_values, np.concatenate([[0], column.edges, [num_values]]))
    bucket = np.maximum(column.levels, 0)
    inside = (position - ends[bucket]) / (ends[bucket + 1] - ends[bucket])
    before = np.concatenate([np.zeros((len(class_shares), 1)), class_shares.cumsum(axis=1)], axis=1)
    uniform = before[latent, bucket] + inside * class_shares[latent, bucket]
    return np.where(column.ranks < 0, np.nan, uniform)


def fit_couplings(groups: list[int | None], uniforms: list[NDArray[np.float64]]) -> list[float]:
    """Fit how often each column draws from its group's variable: i and j have rank correlation q_i q_j.

    One factor per group, by alternating least squares over the pairs of a group.
    """
    couplings = [0.0] * len(groups)
    for group in {group for group in groups if group is not None}:
        members = [column for column, other in enumerate(groups) if other == group]
        correlation = np.array([[_correlation(uniforms[i], uniforms[j]) for j in members] for i in members])
        np.fill_diagonal(correlation, 0.0)
        factor = np.full(len(members), 0.5)
        for _ in range(200):
            # The least-squares q_i, the others held.
            for i in range(len(members)):
                rest = np.delete(factor, i)
                factor[i] = np.clip(np.delete(correlation[i], i) @ rest / max(rest @ rest, 1e-9), 0.0, 1.0)
        for column, value in zip(members, factor.tolist(), strict=True):
            couplings[column] = value
    return couplings


def _correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    both = ~(np.isnan(left) | np.isnan(right))
    return float(np.corrcoef(left[both], right[both])[0, 1])


def _rounded(shares: NDArray[np.float64], total: int) -> list[Any]:
    """Return shares as integers out of ``total``; every row keeps its largest."""
    rounded: list[Any] = np.rint(shares * total).astype(int).tolist()
    return rounded
