"""Expected unique rows: golden values, draws counted, bounds that hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.prediction.access_rates import (
    AccessRates,
    buffer_rows,
    expected_unique_rows,
    mean_unique_rows,
    presence,
)


def zipf(num_rows: int, exponent: float) -> NDArray[np.float64]:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize(
    "num_rows, exponent, expected",
    [
        (1_000, 0.0, {1: 1, 64: 62.025036, 1024: 641.028522, 8192: 999.724273}),
        (1_000, 1.0, {1: 1, 64: 43.935082, 1024: 338.732453, 8192: 870.525079}),
        (100_000, 1.0, {1: 1, 64: 53.902806, 1024: 634.520133, 8192: 3672.396654}),
        (1_000_000, 1.05, {1: 1, 64: 52.652224, 1024: 623.964208, 8192: 3790.779074}),
    ],
)
def test_expectations_are_the_golden_ones(num_rows: int, exponent: float, expected: dict[int, float]) -> None:
    probabilities = zipf(num_rows, exponent)
    found = {n: expected_unique_rows(probabilities, n) for n in expected}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_draws_have_about_as_many_different_rows(exponent: float, rng: np.random.Generator) -> None:
    probabilities = zipf(2_000, exponent)
    num_draws = 1_500
    rounds = [np.unique(rng.choice(2_000, num_draws, p=probabilities)).size for _ in range(60)]
    spread = 4 * float(np.std(rounds)) / np.sqrt(len(rounds))
    assert np.mean(rounds) == pytest.approx(expected_unique_rows(probabilities, num_draws), abs=spread)


def test_a_buffer_overflows_no_more_often_than_promised(rng: np.random.Generator) -> None:
    probabilities = zipf(500, 1.0)
    limit = buffer_rows(expected_unique_rows(probabilities, 300), 0.05)
    rounds = [np.unique(rng.choice(500, 300, p=probabilities)).size for _ in range(400)]
    assert np.mean(np.array(rounds) > limit) <= 0.05
    assert buffer_rows(0.0, 1.0) == 0


rates_of_rows = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(rates_of_rows, st.integers(1, 500))
def test_more_draws_bring_fewer_new_rows_each(rates: list[float], num_draws: int) -> None:
    probabilities = np.array(rates)
    fewer, same, more = (
        expected_unique_rows(probabilities, n) for n in (num_draws - 1, num_draws, num_draws + 1)
    )
    assert fewer <= same + 1e-9 and same <= more + 1e-9
    assert more - same <= same - fewer + 1e-9


@given(rates_of_rows, st.integers(0, 200))
def test_presence_is_the_plain_formula(rates: list[float], num_draws: int) -> None:
    probabilities = np.array(rates)
    np.testing.assert_allclose(
        presence(probabilities, num_draws), 1 - (1 - probabilities) ** num_draws, atol=1e-12
    )


def test_rows_of_equal_counts_count_together(rng: np.random.Generator) -> None:
    counts = [rng.integers(0, 5, 40), rng.integers(0, 9, 25), np.zeros(3, np.int64)]
    rates = AccessRates.of_counts(counts, 60)
    every = np.sort(np.concatenate(counts))[::-1] / 60
    assert np.all(np.diff(rates.rates) < 0)
    assert rates.lookups_per_sample == pytest.approx(every.sum())
    assert expected_unique_rows(rates.rates, 17, rates.num_rows) == pytest.approx(
        expected_unique_rows(every, 17)
    )
    top, rest = rates.split(9)
    assert top.num_rows.sum() == 9
    assert top.lookups_per_sample == pytest.approx(every[:9].sum())
    assert rest.lookups_per_sample == pytest.approx(every[9:].sum())
    assert AccessRates.of_counts([], 1).lookups_per_sample == 0


def test_unique_rows_of_a_stream_are_counted_batch_by_batch(rng: np.random.Generator) -> None:
    rows = rng.integers(0, 20, 47)
    batches = [np.unique(rows[first : first + 9]).size for first in range(0, 45, 9)]
    assert mean_unique_rows(rows, 9) == np.mean(batches)
    with pytest.raises(ValueError, match="less than one batch"):
        mean_unique_rows(rows, 48)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draws"):
        presence(np.array([0.5]), -1)
    with pytest.raises(ValueError, match="overflow_probability"):
        buffer_rows(3.0, 0.0)
