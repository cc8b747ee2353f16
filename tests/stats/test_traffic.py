"""Expected unique rows: golden values, draws counted, bounds that hold.

Rows loaded in an epoch: probabilities against whole numbers, loads against caches that run.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.traffic import (
    AccessRates,
    EpochUses,
    absence,
    buffer_rows,
    largest,
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
    found = {n: presence(probabilities, n).sum() for n in expected}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
def test_draws_have_about_as_many_different_rows(exponent: float, rng: np.random.Generator) -> None:
    probabilities = zipf(2_000, exponent)
    num_draws = 1_500
    rounds = [np.unique(rng.choice(2_000, num_draws, p=probabilities)).size for _ in range(60)]
    spread = 4 * float(np.std(rounds)) / np.sqrt(len(rounds))
    assert np.mean(rounds) == pytest.approx(presence(probabilities, num_draws).sum(), abs=spread)


def test_a_buffer_overflows_no_more_often_than_promised(rng: np.random.Generator) -> None:
    probabilities = zipf(500, 1.0)
    limit = buffer_rows(float(presence(probabilities, 300).sum()), 0.05)
    rounds = [np.unique(rng.choice(500, 300, p=probabilities)).size for _ in range(400)]
    assert np.mean(np.array(rounds) > limit) <= 0.05
    assert buffer_rows(0.0, 1.0) == 0


@pytest.mark.parametrize("expected", [0.0, 0.1, 3.0, 1000.0])
@pytest.mark.parametrize("probability", [0.5, 1e-3, 1e-12])
def test_a_buffer_is_no_smaller_than_the_bound(expected: float, probability: float) -> None:
    more = buffer_rows(expected, probability) - expected
    assert math.exp(-(more**2) / (2 * (expected + more / 3))) <= probability


rates_of_rows = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(rates_of_rows, st.integers(1, 500))
def test_more_draws_bring_fewer_new_rows_each(rates: list[float], num_draws: int) -> None:
    probabilities = np.array(rates)
    fewer, same, more = (presence(probabilities, n).sum() for n in (num_draws - 1, num_draws, num_draws + 1))
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
    assert presence(rates.rates, 17) @ rates.num_rows == pytest.approx(presence(every, 17).sum())
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


NEVER = 1 << 30


def test_absence_is_nearly_hypergeometric() -> None:
    for num_samples in (1, 2, 3, 5, 10, 40, 1000):
        numbers = range(0, num_samples + 1, max(1, num_samples // 20))
        for num_drawn in numbers:
            lookups = np.array(numbers, np.float64)
            wanted = [
                math.comb(num_samples - count, num_drawn) / math.comb(num_samples, num_drawn)
                for count in numbers
            ]
            np.testing.assert_allclose(absence(lookups, num_drawn, num_samples), wanted, atol=0.012)
    # The two that matter most are exact: a row looked up once, and a window that must meet the row.
    assert absence(np.array([1.0]), 300.0, 1000.0)[0] == pytest.approx(0.7)
    assert absence(np.array([701.0]), 300.0, 1000.0)[0] == 0


def test_a_row_is_used_once_or_by_every_batch() -> None:
    rates = AccessRates(np.array([1.0, 1 / 4_000]), np.array([1, 3]))
    uses = EpochUses.of_rates(rates, 4_000, 100)
    assert uses.num_uses.tolist() == pytest.approx([40, 1]) and uses.num_batches == 40
    assert uses.num_first_uses == 4 and uses.rows_per_batch == pytest.approx(1 + 3 / 40)
    # An epoch of less than a batch is one batch.
    assert EpochUses.of_rates(rates, 50, 100).num_batches == 1


def drawn_log(rng: np.random.Generator, exponent: float) -> NDArray[np.int64]:
    """(num_batches, batch_size), lookups of one feature in the order of training."""
    weights = np.arange(1, 3_001) ** -exponent
    return rng.choice(3_000, (60, 200), p=weights / weights.sum())


def counted_uses(log: NDArray[np.int64]) -> EpochUses:
    _, counts = np.unique(log, return_counts=True)
    return EpochUses.of_rates(AccessRates.of_counts([counts], log.size), log.size, log.shape[1])


def _next_use(uses: list[int], now: int) -> int:
    return next((use for use in uses if use > now), NEVER)


def naive_loads(log: NDArray[np.int64], num_slots: int, *, by_next_use: bool) -> int:
    """Loads of a cache that evicts the farthest next use, or the row with the fewest lookups in the log."""
    batches = [set(batch.tolist()) for batch in log]
    lookups = np.bincount(log.ravel()).tolist()
    uses: dict[int, list[int]] = {}
    for number, batch in enumerate(batches):
        for row in batch:
            uses.setdefault(row, []).append(number)
    held: set[int] = set()
    num_loads = 0
    for number, batch in enumerate(batches):
        num_loads += len(batch - held)
        others = sorted(
            held - batch, key=lambda row: _next_use(uses[row], number) if by_next_use else -lookups[row]
        )
        held = batch | set(others[: num_slots - len(batch)])
    return num_loads


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("exponent", [0.6, 1.1])
@pytest.mark.parametrize("num_slots", [200, 300, 600, 1_500, 3_000])
def test_loads_are_those_of_a_cache_that_runs(
    exponent: float, num_slots: int, rng: np.random.Generator
) -> None:
    log = drawn_log(rng, exponent)
    uses = counted_uses(log)
    found = uses.lookahead_loads(num_slots, prefetch=0)
    assert found == pytest.approx(naive_loads(log, num_slots, by_next_use=True), rel=0.03)
    found = uses.cache_loads(num_slots)
    assert found == pytest.approx(naive_loads(log, num_slots, by_next_use=False), rel=0.1)


def test_with_slots_for_all_each_row_is_loaded_once_and_with_too_few_twice_a_batch(
    rng: np.random.Generator,
) -> None:
    uses = counted_uses(drawn_log(rng, 0.8))
    for loads in (uses.cache_loads(3_000), uses.lookahead_loads(10_000, 0)):
        assert loads == pytest.approx(uses.num_first_uses)
    for loads in (uses.cache_loads(10), uses.lookahead_loads(10, 0)):
        assert loads == pytest.approx(2 * 60 * uses.rows_per_batch)
    assert uses.num_passes(10) == 2 and uses.num_passes(200) == 1
    # Further ahead, rows that leave keep their slots longer, and more must leave.
    ahead = [uses.lookahead_loads(600, prefetch) for prefetch in (0, 1, 2, 4)]
    assert ahead == sorted(ahead) and ahead[0] < ahead[-1]
    slots = [uses.lookahead_loads(num_slots, 0) for num_slots in (200, 400, 800, 1_600)]
    assert slots == sorted(slots, reverse=True)


def test_the_largest_that_fits() -> None:
    assert largest(lambda value: value <= 70, 1_000.0) == pytest.approx(70, rel=2e-3)
    assert largest(lambda _: True, 9.5) == 9.5 and largest(lambda _: False, 9.5) == pytest.approx(1, rel=0.01)
    assert largest(lambda _: True, 0.5) == 1
