"""Errors and orders of predictions."""

from __future__ import annotations

import pytest

from hotset.stats.step_model.held_out import PredictionError


def test_errors_are_relative_to_what_was_measured() -> None:
    found = PredictionError.of([1.0, 2.0, 4.0], [1.1, 2.0, 2.0])
    assert found.median_error == pytest.approx(0.1)
    assert found.p90_error == pytest.approx(0.42)
    assert found.low_ratio < 1 < found.high_ratio == pytest.approx(1.9)


def test_pairs_count_from_a_tenth_to_twice_apart() -> None:
    # 1.0 and 1.05 are too near, 1.0 and 3.0 too far; 1.05 and 2.0, and 2.0 and 3.0, are in order.
    found = PredictionError.of([1.0, 1.05, 2.0, 3.0], [2.0, 1.0, 1.5, 9.0])
    assert found.num_pairs == 3
    assert found.pairs_in_order == pytest.approx(2 / 3)


def test_without_pairs_there_is_no_share() -> None:
    assert PredictionError.of([1.0], [1.0]).pairs_in_order is None
