"""Rows loaded in an epoch: probabilities against whole numbers, loads against caches that run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.prediction.access_rates import AccessRates
from hotset.stats.prediction.row_loads import EpochUses, absence, largest

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
            held - batch,
            key=lambda row: _next_use(uses[row], number) if by_next_use else -lookups[row],
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
