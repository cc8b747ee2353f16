"""Disturbed series are found out, quiet ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.step_model.quietness import MOST_OTHER_CPU, Series, disturbances

QUIET = np.random.default_rng(0).lognormal(0, 0.02, 60).tolist()


def test_a_quiet_run_has_no_disturbance() -> None:
    assert disturbances(QUIET, 0.01) == []
    assert disturbances(QUIET, None) == []


@pytest.mark.parametrize(
    ("probe", "other", "word"),
    [
        (QUIET, 0.5, "other programs took 0.50 of a core"),
        ([second * (1 if number % 3 else 2) for number, second in enumerate(QUIET)], 0.0, "spread"),
        ([second * (1 + number / 200) for number, second in enumerate(QUIET)], 0.0, "at the end"),
        (QUIET[:3], 0.0, "too short"),
    ],
)
def test_a_disturbed_run_is_found_out(probe: list[float], other: float, word: str) -> None:
    found = disturbances(probe, other)
    assert len(found) >= 1 and word in " ".join(found)


def test_a_series_has_its_quartiles() -> None:
    assert Series.of([4.0, 1.0, 2.0, 3.0, 5.0]) == Series(3.0, 2.0, 4.0, 5)
    assert Series.of([1.0, 2.0, 3.0]).spread == pytest.approx(0.5)


def test_limits_themselves_are_still_quiet_and_a_clock_that_quickens_is_told_with_its_sign() -> None:
    assert disturbances([1.0] * 6, MOST_OTHER_CPU) == []
    assert disturbances([1.0] * 5, 0.0) == ["the run was too short to tell: 5 repetitions of the probe"]
    (slower,) = disturbances([1.0] * 4 + [1.1] * 4 + [1.2] * 4, None)[-1:]
    assert "+20% at the end" in slower
    (quicker,) = disturbances([1.0] * 4 + [0.9] * 4 + [0.8] * 4, None)[-1:]
    assert "-20% at the end" in quicker


def test_a_single_value_has_no_spread_and_zeros_none_either() -> None:
    assert Series.of([2.0]) == Series(2.0, 2.0, 2.0, 1) and Series.of([2.0]).spread == 0
    assert Series.of([0.0, 0.0, 0.0]).spread == 0
