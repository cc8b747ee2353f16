"""Errors and orders of predictions."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from hotset.stats.step_model.held_out import FAR, NEAR, PredictionError


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


def test_equal_predictions_of_cells_that_differ_are_no_order_whichever_comes_first() -> None:
    assert PredictionError.of([1.0, 1.5], [1.0, 1.0]).pairs_in_order == 0
    assert PredictionError.of([1.5, 1.0], [1.0, 1.0]).pairs_in_order == 0


@pytest.mark.parametrize("seed", range(4))
def test_errors_do_not_depend_on_the_order_of_the_cells_and_pairs_are_those_counted_one_by_one(
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    measured = rng.lognormal(0, 0.5, 30)
    # Rounded predictions, so that some are equal.
    predicted = np.maximum((measured * rng.lognormal(0, 0.3, 30)).round(1), 0.1)
    found = PredictionError.of(measured.tolist(), predicted.tolist())
    pairs = [
        predicted[slow] > predicted[quick]
        for slow, quick in permutations(range(30), 2)
        if NEAR <= measured[slow] / measured[quick] <= FAR
    ]
    assert found.num_pairs == len(pairs)
    assert found.pairs_in_order == pytest.approx(np.mean(pairs))
    order = rng.permutation(30)
    assert PredictionError.of(measured[order].tolist(), predicted[order].tolist()) == found
    assert found.low_ratio <= 1 / (1 - found.p90_error) and found.median_error <= found.p90_error
    # Another unit of time changes nothing.
    milliseconds = PredictionError.of((1000 * measured).tolist(), (1000 * predicted).tolist())
    assert milliseconds.num_pairs == found.num_pairs
    assert milliseconds.p90_error == pytest.approx(found.p90_error)
