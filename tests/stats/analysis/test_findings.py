"""Numbers read off curves, on curves whose answers are known."""

from __future__ import annotations

import pytest

from hotset.stats.analysis.findings import (
    first_to_reach,
    gain_of_doubling,
    gain_of_one_more,
    share_at,
    where_doubling_stops_paying,
)

SIZES = [1, 2, 4, 8, 16, 32, 64]
SHARES = [0.0, 0.0, 0.3, 0.6, 0.7, 0.72, 1.0]


def test_the_first_size_that_reaches_a_share() -> None:
    assert first_to_reach(SIZES, SHARES, 0.6) == 8
    assert first_to_reach(SIZES, SHARES, 0.61) == 16
    assert first_to_reach(SIZES, [share / 2 for share in SHARES], 0.6) is None


def test_gains_between_points_and_beyond_the_end() -> None:
    assert gain_of_doubling(SIZES, SHARES, 4) == pytest.approx(0.3)
    assert gain_of_doubling(SIZES, SHARES, 2 * 2**0.5) == pytest.approx(0.3)
    assert gain_of_doubling(SIZES, SHARES, 64) == 0
    assert share_at(SIZES, SHARES, 4) == 0.3 and share_at(SIZES, SHARES, 0) == 0
    assert gain_of_one_more(SIZES, SHARES, 4, 4) == pytest.approx(0.3)


def test_doubling_stops_paying_after_the_steepest_part() -> None:
    assert where_doubling_stops_paying(SIZES, SHARES, 0.05) == 16
    assert where_doubling_stops_paying(SIZES, SHARES, 0.15) == 8
    assert where_doubling_stops_paying(SIZES, SHARES, 0.01) is None
    assert where_doubling_stops_paying(SIZES, [0.0, 0.0, 0.1, 0.2, 0.22, 0.3, 1.0], 0.05) == 8
    assert where_doubling_stops_paying([1, 2], [0.0, 1.0], 0.1) is None
