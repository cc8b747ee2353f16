"""Fits with coefficients of zero or more: what was put in comes out, and nothing below zero."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.step_model.nonnegative_fit import fit_relative, least_squares


def naive_least_squares(features: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    """The least squared error over every choice of free coefficients."""
    best = float((target**2).sum())
    for free in product([False, True], repeat=features.shape[1]):
        chosen = features[:, list(free)]
        if chosen.shape[1]:
            found = np.linalg.lstsq(chosen, target, rcond=None)[0]
            if (found >= 0).all():
                best = min(best, float(((chosen @ found - target) ** 2).sum()))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_of_coefficients_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((12, 4)) * [1, 1e-6, 1e3, 1]
    target = rng.standard_normal(12)
    found = least_squares(features, target)
    assert (found >= 0).all()
    error = float(((features @ found - target) ** 2).sum())
    assert error == pytest.approx(naive_least_squares(features, target), rel=1e-6)


def test_noise_and_disturbed_measurements_leave_the_constants_as_they_are() -> None:
    rng = np.random.default_rng(1)
    features = 10 ** rng.uniform(-3, 1, (200, 3))
    wanted = np.array([0.5, 0.0, 2.0])
    seconds = features @ wanted * rng.lognormal(0, 0.03, 200)
    # One in eight was disturbed, and took up to five times as long.
    seconds[::8] *= rng.uniform(2, 5, 25)
    found = fit_relative(features, seconds)
    assert found[[0, 2]] == pytest.approx(wanted[[0, 2]], rel=0.05)
    assert found[1] < 0.01


def test_a_tolerance_keeps_small_times_from_bending_the_others() -> None:
    features = np.array([[1e-6], [1.0], [2.0]])
    seconds = np.array([1e-3, 1.0, 2.0])
    assert fit_relative(features, seconds, np.array([0.1, 0.1, 0.1])) == pytest.approx([1.0], rel=1e-3)


def test_features_of_zero_have_no_coefficient() -> None:
    assert least_squares(np.zeros((3, 2)), np.ones(3)).tolist() == [0, 0]
