"""Traffic of the regimes: known values, draws counted, and what no plan can beat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.prediction.access_rates import AccessRates
from hotset.stats.prediction.communication import (
    ParallelStep,
    RowTraffic,
    host_cache,
    hybrid,
    pooled,
    replicated_sparse,
    rows_worth_replicating,
    sharded,
    sharded_deduplicated,
)

EIGHT = ParallelStep(samples=2048, num_devices=8)


def zipf_rates(num_rows: int, exponent: float) -> AccessRates:
    weights = np.arange(1, num_rows + 1, dtype=np.float64) ** -exponent
    return AccessRates(weights / weights.sum(), np.ones(num_rows, np.int64))


@pytest.mark.parametrize(
    "exponent, no_dedup, dedup, by_top",
    [
        (0.8, 3584, 3259, (3307, 4215, 7418, 13406)),
        (1.05, 3584, 2003, (2015, 2921, 5860, 9053)),
        (1.2, 3584, 1185, (1196, 2060, 3951, 5327)),
    ],
)
def test_traffic_of_a_million_rows_on_eight_devices(
    exponent: float, no_dedup: int, dedup: int, by_top: tuple[int, ...]
) -> None:
    rates = zipf_rates(1_000_000, exponent)
    assert round(sharded(rates, EIGHT).total) == no_dedup
    assert round(sharded_deduplicated(rates, EIGHT).total) == dedup
    assert tuple(round(hybrid(rates, 10**k, EIGHT).total) for k in (2, 3, 4, 5)) == by_top


def test_forward_traffic_falls_with_what_is_replicated() -> None:
    rates = zipf_rates(1_000_000, 1.05)
    assert round(sharded(rates, EIGHT).forward) == 1792
    assert [round(hybrid(rates, k, EIGHT).forward) for k in (0, 100, 1000, 10_000, 100_000)] == [
        1002, 920, 695, 440, 208,
    ]  # fmt: skip


@pytest.mark.parametrize("sync_every, rows, total", [(4, 494, 1761), (16, 2053, 1452), (64, 7868, 1146)])
def test_deferred_synchronisation_pays_for_the_likeliest_rows(sync_every: int, rows: int, total: int) -> None:
    rates = zipf_rates(1_000_000, 1.05)
    assert rows_worth_replicating(rates, EIGHT, sync_every) == rows
    assert round(hybrid(rates, rows, EIGHT, sync_every).total) == total


def test_simple_regimes() -> None:
    rates = zipf_rates(100, 1.0)
    assert pooled(26, EIGHT) == RowTraffic(7 / 8 * 2048 * 26, 7 / 8 * 2048 * 26)
    assert replicated_sparse(rates, ParallelStep(samples=4)).total == 0
    assert RowTraffic(2.0, 3.0).num_bytes(64) == 320.0
    with pytest.raises(ValueError, match="1 or more"):
        ParallelStep(samples=0)


def count_received(draws: NDArray[np.int64], num_replicated: int) -> tuple[float, float]:
    """Rows device 0 of D receives in a step when row r lives on device r % D: draws is (D, b)."""
    num_devices = draws.shape[0]
    own = np.unique(draws[0])
    every = np.unique(draws)
    fetched = np.count_nonzero((own >= num_replicated) & (own % num_devices != 0))
    gradients = [
        np.unique(draws[d][(draws[d] >= num_replicated) & (draws[d] % num_devices == 0)]).size
        for d in range(1, num_devices)
    ]
    union = np.count_nonzero(every < num_replicated)
    ring = 2 * (num_devices - 1) / num_devices * union
    return float(fetched), float(sum(gradients) + ring)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.2])
@pytest.mark.parametrize("num_replicated", [0, 50])
def test_the_formulas_agree_with_a_count_of_rows(
    exponent: float, num_replicated: int, rng: np.random.Generator
) -> None:
    rates = zipf_rates(1_000, exponent)
    step = ParallelStep(samples=300, num_devices=4)
    scrambled = np.arange(1_000)
    rounds = []
    for _ in range(150):
        scrambled[num_replicated:] = num_replicated + rng.permutation(1_000 - num_replicated)
        rounds.append(count_received(scrambled[rng.choice(1_000, (4, 300), p=rates.rates)], num_replicated))
    forward, backward = np.mean(rounds, axis=0)
    expected = hybrid(rates, num_replicated, step)
    assert forward == pytest.approx(expected.forward, rel=0.02)
    assert backward == pytest.approx(expected.backward, rel=0.02)


def test_the_cache_formula_agrees_with_a_count_of_rows(rng: np.random.Generator) -> None:
    rates = zipf_rates(1_000, 1.05)
    step = ParallelStep(samples=200)
    draws = rng.choice(1_000, (400, 200), p=rates.rates)
    misses = np.mean([np.count_nonzero(np.unique(batch) >= 40) for batch in draws])
    assert misses == pytest.approx(host_cache(rates, 40, step).forward, rel=0.01)


some_rates = st.lists(st.tuples(st.floats(1e-9, 1), st.integers(1, 1000)), min_size=1, max_size=12)
some_steps = st.builds(ParallelStep, samples=st.integers(1, 4096), num_devices=st.integers(1, 64))


def rates_of(classes: list[tuple[float, int]]) -> AccessRates:
    ordered = sorted(classes, reverse=True)
    return AccessRates(np.array([rate for rate, _ in ordered]), np.array([rows for _, rows in ordered]))


@given(some_rates, some_steps, st.integers(0, 12_000))
def test_replication_every_step_never_moves_less_than_deduplication(
    classes: list[tuple[float, int]], step: ParallelStep, num_replicated: int
) -> None:
    rates = rates_of(classes)
    dedup = sharded_deduplicated(rates, step).total
    assert hybrid(rates, num_replicated, step).total >= dedup * (1 - 1e-9)
    assert rows_worth_replicating(rates, step, 1) == 0


@given(some_rates, some_steps, st.integers(0, 6_000))
def test_costs_fall_with_what_is_cached(
    classes: list[tuple[float, int]], step: ParallelStep, num_cached: int
) -> None:
    rates = rates_of(classes)
    cost = host_cache(rates, num_cached, step).total
    assert host_cache(rates, num_cached + 1, step).total <= cost + 1e-9
    larger = ParallelStep(samples=2 * step.samples, num_devices=step.num_devices)
    assert host_cache(rates, num_cached, larger).total <= 2 * cost * (1 + 1e-9)
