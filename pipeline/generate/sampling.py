"""Numerics of drawing a log: logarithms equal on every machine, raking, a mixture of latent classes.

Drawn logs must have the same bytes everywhere, so ``log2`` and ``rake`` use only IEEE additions,
multiplications and divisions in a fixed order: a library's ``log`` differs in its last bit between
machines, and NumPy's ``sum`` in its order. ``fit_latent_classes`` is run once, when a profile is derived,
and makes no such promise.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel

_LOG2_E = 1.4426950408889634
_NUM_TERMS = 12


def log2(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the base-2 logarithm, bit for bit the same on every machine with IEEE doubles.

    Args:
        values: any shape, positive and finite.

    Error:
        At most 4e-16 relative to max(1, |result|): ln m = 2 artanh((m - 1) / (m + 1)), with 12 terms of
        the series at an argument of at most 0.172, which leaves 3e-20.
    """
    # A mantissa m in [sqrt(1/2), sqrt(2)), which keeps (m - 1) / (m + 1) small.
    mantissa, exponent = np.frexp(values)
    is_low = mantissa < 0.7071067811865476
    mantissa = np.where(is_low, 2.0 * mantissa, mantissa)
    exponent = exponent - is_low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio

    # Horner's rule, smallest term first.
    series = np.zeros_like(ratio)
    for term in range(_NUM_TERMS - 1, -1, -1):
        series = series * square
        series = series + 1.0 / (2 * term + 1)
    fraction: NDArray[np.float64] = 2.0 * ratio * series * _LOG2_E
    return fraction + exponent


def interpolate(
    at: NDArray[np.float64], knots: NDArray[np.float64], values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Interpolate as ``np.interp`` does, without its fused multiply-adds, which round as the machine likes.

    Args:
        at: (num_points,); below the first knot it counts as the first, above the last as the last.
        knots: (num_knots,), ascending, at least two.
        values: (num_knots,), at the knots.
    """
    inside = np.clip(at, knots[0], knots[-1])
    right = np.clip(np.searchsorted(knots, inside, side="right"), 1, knots.shape[0] - 1)
    left = right - 1
    fraction = (inside - knots[left]) / (knots[right] - knots[left])
    rise: NDArray[np.float64] = (values[right] - values[left]) * fraction
    return values[left] + rise


@kernel
def rake(
    matrix: NDArray[np.float64],
    row_sums: NDArray[np.float64],
    column_sums: NDArray[np.float64],
    num_rounds: int,
) -> None:
    """Scale rows and columns of ``matrix`` by turns until both have the wanted sums, in place.

    Args:
        matrix: (num_rows, num_columns), not negative; a zero stays zero.
        row_sums: (num_rows,), wanted; their total equals that of ``column_sums``.
        column_sums: (num_columns,), wanted.
        num_rounds: turns taken; columns are scaled last and are exact to rounding.

    Error:
        Rows converge geometrically where a positive matrix has a solution.

    Source:
        Deming and Stephan, Annals of Mathematical Statistics 11 (1940); Sinkhorn (1967).
    """
    num_rows, num_columns = matrix.shape
    for _ in range(num_rounds):
        # Rows first, then columns: the last step leaves the sums of columns exact, those of rows nearly.
        for row in range(num_rows):
            total = 0.0
            for column in range(num_columns):
                total += matrix[row, column]
            if total > 0.0:
                for column in range(num_columns):
                    matrix[row, column] *= row_sums[row] / total
        for column in range(num_columns):
            total = 0.0
            for row in range(num_rows):
                total += matrix[row, column]
            if total > 0.0:
                for row in range(num_rows):
                    matrix[row, column] *= column_sums[column] / total


def fit_latent_classes(
    levels: NDArray[np.int32],
    num_levels: NDArray[np.int64],
    num_classes: int,
    rng: np.random.Generator,
    *,
    num_rounds: int = 200,
    prior: float = 2.0,
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]], NDArray[np.float32]]:
    """Fit a mixture of classes within which the variables are independent, by EM.

    Args:
        levels: (num_samples, num_variables); the level of each variable, or -1 where it has none.
        num_levels: (num_variables,).
        num_classes: number of classes to fit.
        rng: draws the first memberships.
        num_rounds: EM steps.
        prior: samples at the overall shares that each class is given beforehand.

    Returns:
        (num_classes,) shares of the classes, largest first; for each variable (num_classes, num_levels)
        shares of its levels among the samples that have one; and (num_samples, num_classes) memberships.

    Error:
        A local maximum of the likelihood; another ``rng`` may end in another.

    Source:
        Dempster, Laird and Rubin, J. R. Statist. Soc. B 39 (1977), section 4.3.
    """
    # One column for each level of each variable: 1 where the sample has it.
    offsets = np.concatenate([[0], np.cumsum(num_levels)])
    num_samples = levels.shape[0]
    indicators = np.zeros((num_samples, offsets[-1]), np.float32)
    for variable, first in enumerate(offsets[:-1]):
        present = levels[:, variable] >= 0
        indicators[np.flatnonzero(present), first + levels[present, variable]] = 1

    # Start from memberships that are nearly all in one class.
    members = rng.dirichlet(np.full(num_classes, 0.05), num_samples).astype(np.float32)
    overall = indicators.sum(axis=0)
    for _ in range(num_rounds):
        # M step: shares of the classes, and of levels in each class, the prior pulling to the overall ones.
        weights = (members.sum(axis=0) + 1e-6) / num_samples
        shares = (members.T @ indicators).astype(np.float64)
        for first, last in itertools.pairwise(offsets):
            part = shares[:, first:last] + prior * overall[first:last] / overall[first:last].sum()
            shares[:, first:last] = part / part.sum(axis=1, keepdims=True)

        # E step: memberships in proportion to the likelihood, relative to the largest so that none overflows.
        log_members = indicators @ np.log(shares + 1e-9).T.astype(np.float32) + np.log(weights)
        members = np.exp(log_members - log_members.max(axis=1, keepdims=True)).astype(np.float32)
        members /= members.sum(axis=1, keepdims=True)
    order = np.argsort(-weights, kind="stable")
    parts = [shares[order, first:last] for first, last in itertools.pairwise(offsets)]
    return weights[order] / weights.sum(), parts, members[:, order]
