"""Slopes between logarithms have intervals that cover the true one, and verdicts follow from them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotset.stats.analysis.elasticities import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Interval,
    log_slope,
    verdict,
)


@pytest.mark.parametrize("slope", [-1.0, 0.0, 0.5])
def test_a_power_law_has_its_exponent_and_no_error(slope: float) -> None:
    found = log_slope([(x, 3 * x**slope) for x in (1.0, 4.0, 16.0, 100.0)])
    assert found.value == pytest.approx(slope) and found.error == pytest.approx(0, abs=1e-12)


def test_two_points_have_no_error_to_tell() -> None:
    found = log_slope([(1.0, 1.0), (2.0, 4.0)])
    assert found.value == pytest.approx(2) and found.error == math.inf
    assert found.lies_in(-10, 10) is None and found.lies_in(-math.inf, math.inf) is True


@pytest.mark.parametrize("num_points", [3, 4, 8])
def test_intervals_cover_the_true_slope_as_often_as_they_say(
    num_points: int, rng: np.random.Generator
) -> None:
    x = 2.0 ** np.arange(num_points)
    covered = 0
    for _ in range(1000):
        y = x**-0.4 * np.exp(rng.normal(0, 0.2, num_points))
        found = log_slope(list(zip(x.tolist(), y.tolist(), strict=True)))
        covered += found.low <= -0.4 <= found.high
    assert 0.92 <= covered / 1000 <= 0.98


def test_an_interval_lies_inside_outside_or_across() -> None:
    one = Interval(0.05, 0.04)
    assert one.lies_in(-0.1, 0.1) is True
    assert one.lies_in(0.2, 0.3) is False and one.lies_in(-1, 0) is False
    assert one.lies_in(0.05, 1) is None


def test_one_claim_that_fails_contradicts_and_one_left_open_decides_nothing() -> None:
    assert verdict([True, True]) == SUPPORTED
    assert verdict([True, None, False]) == CONTRADICTED
    assert verdict([True, None]) == verdict([]) == UNDECIDED
