"""Fits times as sums of features with coefficients of zero or more, by their relative error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MOST_ROUNDS = 20
_LEAST_RESIDUAL = 0.02
"""Relative errors below this count alike: measured times are not more exact."""


def least_squares(features: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients of zero or more with the least squared error.

    Args:
        features: (num_samples, num_features).
        target: (num_samples,).

    Returns:
        (num_features,).

    Error:
        The active set that Lawson and Hanson's algorithm ends with is optimal; float64 sums.

    Source:
        Lawson and Hanson, Solving Least Squares Problems (1974), algorithm NNLS.
    """
    num_features = features.shape[1]
    found = np.zeros(num_features)
    is_free = np.zeros(num_features, np.bool_)
    # Columns of very different sizes would hide which gradient counts.
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1
    scaled = features / scale
    # Gradients below this are rounding errors: what was found is optimal.
    tolerance = 1e-10 * max(float(np.abs(scaled.T @ target).max(initial=0.0)), 1e-300)
    # In each round the coefficient that lowers the error most is set free, until none lowers it.
    for _ in range(3 * num_features):
        gradient = scaled.T @ (target - scaled @ found)
        gradient[is_free] = -np.inf
        if is_free.all() or gradient.max() <= tolerance:
            break
        is_free[int(np.argmax(gradient))] = True
        # Coefficients that would turn negative leave, one limit after the other.
        while True:
            solved = np.zeros(num_features)
            solved[is_free] = np.linalg.lstsq(scaled[:, is_free], target, rcond=None)[0]
            if (solved[is_free] >= 0).all():
                found = solved
                break
            # Go towards the solution until the first coefficient reaches zero, and hold it there.
            falling = is_free & (solved < 0)
            steps = found[falling] / (found[falling] - solved[falling])
            found = found + float(steps.min()) * (solved - found)
            is_free &= found > 1e-15
            found[~is_free] = 0
    coefficients: NDArray[np.float64] = found / scale
    return coefficients


def fit_relative(
    features: NDArray[np.float64], seconds: NDArray[np.float64], tolerance: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the coefficients of zero or more whose relative errors have about the least absolute sum.

    Absolute errors, and not squares, so that a few disturbed measurements do not bend the whole.

    Args:
        features: (num_samples, num_features).
        seconds: (num_samples,), above 0.
        tolerance: (num_samples,), seconds that errors are relative to beside ``seconds``; default none.

    Returns:
        (num_features,).

    Error:
        Reweighted least squares, at most 20 rounds; errors below 2% weigh alike.
    """
    # Equations divided by their seconds turn absolute errors into relative ones.
    unit = seconds if tolerance is None else seconds + tolerance
    relative = features / unit[:, None]
    target = seconds / unit
    found = least_squares(relative, target)
    # Weighed by the root of its last size, a squared error counts as an absolute one.
    for _ in range(_MOST_ROUNDS):
        residual = np.abs(relative @ found - target)
        weight = 1 / np.sqrt(np.maximum(residual, _LEAST_RESIDUAL))
        again = least_squares(relative * weight[:, None], target * weight)
        if np.allclose(again, found, rtol=1e-6, atol=0):
            break
        found = again
    return found
