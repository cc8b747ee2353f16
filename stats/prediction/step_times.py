"""Predicted time and memory of a training step for each placement and budget of fast memory.

Everything is an expectation for independent lookups (`access_rates`), except the share of fully hot samples,
which is counted. The machine is four numbers. A prediction is for choosing, not for promising: it leaves
out kernels that do not scale with the batch, drift and correlation between tables, which shift all placements
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .access_rates import AccessRates, buffer_rows, expected_unique_rows, presence
from .workload import Budget, Machine, Prediction, Workload

_OVERFLOW_PROBABILITY = 1e-6
MAX_PREFETCH = 8
"""The most steps ahead that are considered."""
_MAX_WINDOW = 2.0**20
_NO_GAIN = 0.01


def predict(workload: Workload, machine: Machine, budget: Budget) -> list[Prediction]:
    """Predict every placement under one budget, the fastest first.

    all-fast is among them whatever its size: a prediction states the memory it needs, and the caller leaves
    out what does not fit.
    """
    placements = (_all_fast, _lookahead, _cache, _fae, _hybrid_dedup, _hybrid)
    predictions = [predict_one(workload, machine, budget) for predict_one in placements]
    return sorted(predictions, key=lambda one: one.step_seconds)


def where_more_stops_paying(step_seconds: Sequence[float]) -> int:
    """Return the position of the first budget whose step is within 1% of the fastest one's.

    Args:
        step_seconds: times of budgets, ascending; at least one.
    """
    fastest = min(step_seconds)
    return next(i for i, seconds in enumerate(step_seconds) if seconds <= (1 + _NO_GAIN) * fastest)


def compute_seconds(workload: Workload, machine: Machine) -> float:
    """Return the time of a step all of whose rows are in fast memory."""
    return machine.step_seconds + workload.batch_size * workload.flops_per_sample / machine.flops


def _prediction(
    placement: str,
    workload: Workload,
    budget: Budget,
    seconds: float,
    compute: float,
    up: float,
    down: float,
    *,
    hot: int,
    staging: int = 0,
    transfers: float = 0.0,
    prefetch: int | None = None,
) -> Prediction:
    memory = {
        "hot": hot,
        "staging": staging,
        "dense": workload.dense_bytes,
        "activations": workload.batch_size * workload.activation_bytes,
        "inputs": (2 + (prefetch or 0)) * workload.batch_size * workload.input_bytes,
        "transfers": int(transfers),
    }
    return Prediction(
        placement=placement,
        hot_bytes=budget.hot_bytes,
        step_seconds=seconds,
        compute_seconds=compute,
        to_fast_bytes=up,
        to_slow_bytes=down,
        memory=memory,
        prefetch=prefetch,
    )


def _all_fast(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    compute = compute_seconds(workload, machine)
    every = workload.num_rows * workload.row_bytes
    return _prediction("all-fast", workload, budget, compute, compute, 0.0, 0.0, hot=every)


def _hybrid(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    compute = compute_seconds(workload, machine)
    vectors = workload.batch_size * workload.rates.lookups_per_sample
    seconds, moved = _in_place(workload, machine, vectors, _unique(workload))
    return _prediction(
        "hybrid", workload, budget, compute + seconds, compute, moved, moved, hot=0, transfers=2 * moved
    )


def _hybrid_dedup(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    compute = compute_seconds(workload, machine)
    unique = _unique(workload)
    seconds, moved = _in_place(workload, machine, unique, unique)
    return _prediction(
        "hybrid-dedup", workload, budget, compute + seconds, compute, moved, moved, hot=0, transfers=2 * moved
    )


def _fae(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    """Hot-only batches as all-fast, mixed ones as hybrid, four copies of the hot rows an epoch (R = 50%)."""
    compute = compute_seconds(workload, machine)
    hot_share = budget.hot_sample_share
    vectors = workload.batch_size * workload.rates.lookups_per_sample
    seconds, moved = _in_place(workload, machine, vectors, _unique(workload))
    hot_bytes = budget.num_hot_rows * workload.row_bytes
    copied = 2 * hot_bytes / max(1.0, workload.steps_per_epoch)
    mean_moved = (1 - hot_share) * moved + copied
    switch = 2 * copied / machine.link_bytes_per_second
    total = compute + (1 - hot_share) * seconds + switch
    return _prediction(
        "fae", workload, budget, total, compute, mean_moved, mean_moved, hot=hot_bytes, transfers=2 * moved
    )


def _cache(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    """A least-recently-used cache of all slots; a batch waits for its misses."""
    compute = compute_seconds(workload, machine)
    rates = workload.rates
    slots = (budget.hot_bytes + budget.staging_bytes) // workload.row_bytes
    # A row of a batch is missed if it was not looked up within the age at which rows leave the cache.
    age = _age_of_lru(rates, slots)
    missing = presence(rates.rates, workload.batch_size) * np.exp(-rates.rates * age)
    misses = float(missing @ rates.num_rows)
    moved = misses * workload.row_bytes
    seconds = moved / machine.link_bytes_per_second + 2 * moved / machine.host_bytes_per_second
    return _prediction(
        "cache", workload, budget, compute + seconds, compute, moved, moved,
        hot=budget.hot_bytes, staging=budget.staging_bytes, transfers=2 * moved,
    )  # fmt: skip


def _lookahead(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    """Rows are loaded ahead of their batch and stay for as many batches as the staging area holds."""
    compute = compute_seconds(workload, machine)
    hot_share = budget.hot_sample_share
    hot_bytes = budget.num_hot_rows * workload.row_bytes
    cold = workload.rates.split(budget.num_hot_rows)[1]
    # Cold lookups all fall into mixed samples, so there they are denser.
    density = 1 / max(1e-12, 1 - hot_share)
    mixed = AccessRates(np.minimum(cold.rates * density, 1.0), cold.num_rows)
    slots = budget.staging_bytes // workload.row_bytes
    # A row that stays for a window of batches is loaded once for all of them.
    prefetch = _prefetch_that_fits(mixed, workload.batch_size, slots)
    window = _window_that_fits(mixed, workload.batch_size, slots)
    rows = expected_unique_rows(mixed.rates, window * workload.batch_size, mixed.num_rows) / window
    moved = rows * workload.row_bytes
    transfer = max(moved / machine.link_bytes_per_second, 2 * moved / machine.host_bytes_per_second)
    # Transfers hide behind the computation if there is room to be a step ahead.
    mixed_seconds = max(compute, transfer) if prefetch else compute + transfer
    total = compute + (1 - hot_share) * (mixed_seconds - compute)
    mean_moved = (1 - hot_share) * moved
    return _prediction(
        "lookahead", workload, budget, total, compute, mean_moved, mean_moved,
        hot=hot_bytes, staging=budget.staging_bytes, transfers=2 * moved, prefetch=prefetch,
    )  # fmt: skip


def _unique(workload: Workload) -> float:
    """Return the expected distinct rows of a batch."""
    return expected_unique_rows(workload.rates.rates, workload.batch_size, workload.rates.num_rows)


def _in_place(workload: Workload, machine: Machine, vectors: float, rows: float) -> tuple[float, float]:
    """Return the seconds, and the bytes each way, of sending vectors and receiving gradients; rows stay."""
    moved = vectors * workload.vector_bytes
    # Read for the lookup, read and written for the update.
    host = moved + 2 * rows * workload.row_bytes
    return 2 * moved / machine.link_bytes_per_second + host / machine.host_bytes_per_second, moved


def _age_of_lru(rates: AccessRates, num_slots: int) -> float:
    """Return the age in samples at which an unused row leaves the cache.

    Source:
        Che, Tung and Wang, IEEE JSAC 20 (2002), equation 3.
    """
    if num_slots >= int(rates.num_rows.sum()):
        return float("inf")
    return _largest(lambda age: float(-np.expm1(-rates.rates * age) @ rates.num_rows) <= num_slots, 2.0**40)


def _window_that_fits(mixed: AccessRates, batch_size: int, num_slots: int) -> float:
    """Return the batches whose distinct cold rows fill the staging area, at least one."""

    def fits(window: float) -> bool:
        return expected_unique_rows(mixed.rates, window * batch_size, mixed.num_rows) <= num_slots

    return _largest(fits, _MAX_WINDOW)


def _prefetch_that_fits(mixed: AccessRates, batch_size: int, num_slots: int) -> int:
    """Return how many steps ahead the rows of every batch in flight still have slots."""
    for prefetch in range(MAX_PREFETCH):
        expected = expected_unique_rows(mixed.rates, (prefetch + 2) * batch_size, mixed.num_rows)
        most = min(int(mixed.num_rows.sum()), buffer_rows(expected, _OVERFLOW_PROBABILITY))
        if most > num_slots:
            return prefetch
    return MAX_PREFETCH


def _largest(fits: Callable[[float], bool], limit: float) -> float:
    """Return the largest argument from 1 to ``limit`` that fits, to a thousandth, else 1."""
    low, high = 1.0, 2.0
    while high < limit and fits(high):
        low, high = high, 2 * high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
