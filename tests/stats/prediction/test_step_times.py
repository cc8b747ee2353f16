"""Predicted steps: what must hold whatever the log, the machine and the budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.prediction.access_rates import AccessRates, expected_unique_rows
from hotset.stats.prediction.step_times import MAX_PREFETCH, compute_seconds, predict, where_more_stops_paying
from hotset.stats.prediction.workload import Budget, Machine, Prediction, Workload

MACHINE = Machine()
NUM_ROWS = 2_000


def workload(exponent: float = 1.05, batch_size: int = 512) -> Workload:
    weights = np.arange(1, NUM_ROWS + 1, dtype=np.float64) ** -exponent
    rates = np.minimum(4 * weights / weights.sum(), 1.0)
    return Workload(
        rates=AccessRates(rates, np.ones(NUM_ROWS, np.int64)),
        num_rows=NUM_ROWS,
        num_train_samples=1_000_000,
        batch_size=batch_size,
        vector_bytes=64,
        row_bytes=128,
        flops_per_sample=1e6,
        dense_bytes=1_000_000,
        activation_bytes=2_000,
        input_bytes=160,
    )


def budget(num_hot_rows: int, hot_sample_share: float, staging_rows: int) -> Budget:
    return Budget(
        hot_bytes=128 * num_hot_rows,
        num_hot_rows=num_hot_rows,
        hot_sample_share=hot_sample_share,
        staging_bytes=128 * staging_rows,
    )


def by_name(predictions: list[Prediction]) -> dict[str, Prediction]:
    return {one.placement: one for one in predictions}


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([0.0, 0.8, 1.2]),
    st.integers(1, 4096),
    st.integers(0, NUM_ROWS),
    st.floats(0, 1),
    st.integers(1, NUM_ROWS),
    st.sampled_from([1e8, 1e10, 1e12]),
)
def test_no_placement_beats_every_row_at_hand(
    exponent: float, batch_size: int, hot: int, share: float, staging: int, bandwidth: float
) -> None:
    log, machine = workload(exponent, batch_size), replace(MACHINE, link_bytes_per_second=bandwidth)
    predictions = predict(log, machine, budget(hot, share, staging))
    named, compute = by_name(predictions), compute_seconds(log, machine)
    assert [one.step_seconds for one in predictions] == sorted(one.step_seconds for one in predictions)
    assert named["all-fast"].step_seconds == compute == min(one.step_seconds for one in predictions)
    assert named["hybrid-dedup"].step_seconds <= named["hybrid"].step_seconds * (1 + 1e-9)
    assert all(one.memory_bytes == sum(one.memory.values()) for one in predictions)
    prefetch = named["lookahead"].prefetch
    assert prefetch is not None and 0 <= prefetch <= MAX_PREFETCH


def test_a_staging_area_without_reuse_moves_each_batchs_cold_rows_once() -> None:
    log = workload()
    found = by_name(predict(log, MACHINE, budget(0, 0.0, 1)))["lookahead"]
    expected = 128 * expected_unique_rows(log.rates.rates, log.batch_size)
    assert found.to_fast_bytes == pytest.approx(expected)
    assert found.prefetch == 0


def test_more_staging_moves_less_and_looks_further_ahead() -> None:
    log = workload()
    found = [
        by_name(predict(log, MACHINE, budget(200, 0.3, rows)))["lookahead"] for rows in (300, 1_000, 2_000)
    ]
    assert [one.to_fast_bytes for one in found] == sorted((one.to_fast_bytes for one in found), reverse=True)
    prefetches = [one.prefetch for one in found if one.prefetch is not None]
    assert prefetches == sorted(prefetches) and prefetches[-1] == MAX_PREFETCH


def test_fae_pays_for_mixed_batches_and_for_switches() -> None:
    log = workload()
    none, half, every = (
        by_name(predict(log, MACHINE, budget(900, share, 1)))["fae"] for share in (0, 0.5, 1)
    )
    hybrid = by_name(predict(log, MACHINE, budget(900, 0, 1)))["hybrid"]
    copied = 2 * 900 * 128 / log.steps_per_epoch
    assert none.to_fast_bytes == pytest.approx(hybrid.to_fast_bytes + copied)
    assert half.to_fast_bytes == pytest.approx(hybrid.to_fast_bytes / 2 + copied)
    assert every.to_fast_bytes == pytest.approx(copied)


def test_a_cache_of_every_row_misses_nothing() -> None:
    found = by_name(predict(workload(), MACHINE, budget(NUM_ROWS, 1.0, 1)))["cache"]
    assert found.to_fast_bytes == 0


@pytest.mark.parametrize(
    "seconds, position", [([3.0], 0), ([5.0, 3.0, 2.99], 1), ([5.0, 3.0, 2.9], 2), ([1.0, 1.0], 0)]
)
def test_more_memory_stops_paying_within_one_per_cent(seconds: list[float], position: int) -> None:
    assert where_more_stops_paying(seconds) == position
