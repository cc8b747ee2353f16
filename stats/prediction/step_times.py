"""Predicted time and memory of a training step for each placement and budget of fast memory.

Bytes are those of an epoch that begins with no row used yet, as `hotset train` counts them in its first one:
exact for the vectors of `hybrid` and for `fae` at its first rate, and an expectation over the order of
training for rows that are loaded (`row_loads`, 0.91 to 1.02 times what runs count). The machine is four
numbers, and its times are for choosing, not for promising: they leave out kernels that do not scale with the
batch, which shifts all placements alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..staging.staging_size import WidthSizes, deepest_prefetch
from .access_rates import AccessRates, buffer_rows
from .row_loads import EpochUses
from .workload import Budget, Machine, Prediction, Workload

_OVERFLOW_PROBABILITY = 1e-6
_NO_GAIN = 0.01


def predict(workload: Workload, machine: Machine, budget: Budget) -> list[Prediction]:
    """Predict every placement under one budget, the fastest first.

    all-fast is among them whatever its size: a prediction states the memory it needs, and the caller leaves
    out what does not fit.
    """
    placements = (_all_fast, _lookahead, _cache, _fae, _hybrid_dedup, _hybrid)
    predictions = [predict_one(workload, machine, budget) for predict_one in placements]
    # Batches are read during the steps before theirs, so only a slow loader holds up a step.
    if machine.loader_samples_per_second is not None:
        least = workload.batch_size / machine.loader_samples_per_second
        predictions = [replace(one, step_seconds=max(one.step_seconds, least)) for one in predictions]
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
    initialized: float = 0.0,
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
        initialized_bytes=initialized,
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
    # The rows of mixed batches stay on the host: their vectors and gradients cross the link.
    hot_share = budget.hot_sample_share
    vectors = workload.batch_size * workload.rates.lookups_per_sample
    seconds, moved = _in_place(workload, machine, vectors, _unique(workload))
    hot_bytes = budget.num_hot_rows * workload.row_bytes
    # Every switch copies all hot rows; as many switches as R = 50% makes, spread over the steps.
    copied = 2 * hot_bytes / max(1.0, workload.steps_per_epoch)
    mean_moved = (1 - hot_share) * moved + copied
    switch = 2 * copied / machine.link_bytes_per_second
    total = compute + (1 - hot_share) * seconds + switch
    return _prediction(
        "fae", workload, budget, total, compute, mean_moved, mean_moved, hot=hot_bytes, transfers=2 * moved
    )


def _cache(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    """A cache of all slots that keeps the most frequent rows; a batch waits for its misses."""
    compute = compute_seconds(workload, machine)
    # The cache has hot rows and staging in one area, and refetches what falls out of it.
    slots = (budget.hot_bytes + budget.staging_bytes) // workload.row_bytes
    uses = _uses(workload)
    num_passes = uses.num_passes(slots)
    moved = _moved(uses, uses.cache_loads(slots), num_passes, workload.row_bytes)
    seconds = (
        moved.link_bytes / machine.link_bytes_per_second + moved.num_bytes / machine.host_bytes_per_second
    )
    return _prediction(
        "cache", workload, budget, compute + seconds, compute, moved.to_fast, moved.to_slow,
        initialized=moved.initialized, hot=budget.hot_bytes, staging=budget.staging_bytes,
        transfers=moved.num_bytes,
    )  # fmt: skip


def _lookahead(workload: Workload, machine: Machine, budget: Budget) -> Prediction:
    """Rows are loaded ahead of their batch and stay where they are needed again soon enough."""
    compute = compute_seconds(workload, machine)
    mixed_share = 1 - budget.hot_sample_share
    uses = _cold_uses(workload, budget)
    slots = budget.staging_bytes // workload.row_bytes
    prefetch = _prefetch(uses, budget, workload.row_bytes)
    num_passes = uses.num_passes(slots)
    moved = _moved(uses, uses.lookahead_loads(slots, prefetch), num_passes, workload.row_bytes)
    transfer = max(
        moved.link_bytes / machine.link_bytes_per_second, moved.num_bytes / machine.host_bytes_per_second
    )
    # Transfers hide behind the computation if there is room to be a step ahead.
    mixed_seconds = max(compute, transfer) if prefetch else compute + transfer
    total = compute + mixed_share * (mixed_seconds - compute)
    return _prediction(
        "lookahead", workload, budget, total, compute,
        mixed_share * moved.to_fast, mixed_share * moved.to_slow,
        initialized=mixed_share * moved.initialized, hot=budget.num_hot_rows * workload.row_bytes,
        staging=budget.staging_bytes, transfers=moved.num_bytes, prefetch=prefetch,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Moved:
    """Bytes of rows that a batch moves, the mean over the batches of an epoch."""

    to_fast: float
    to_slow: float
    initialized: float
    """Bytes of rows at their first use."""

    @property
    def num_bytes(self) -> float:
        """Bytes either way."""
        return self.to_fast + self.to_slow

    @property
    def link_bytes(self) -> float:
        """Bytes of the busier way: the link carries both at once."""
        return max(self.to_fast, self.to_slow)


def _moved(uses: EpochUses, num_loads: float, num_passes: int, row_bytes: int) -> _Moved:
    """Return what ``num_loads`` loads of an epoch move.

    A first use is not fetched, in any of the passes of its batch; the last pass writes the row back.
    """
    loaded = num_loads * row_bytes / uses.num_batches
    initialized = num_passes * uses.num_first_uses * row_bytes / uses.num_batches
    return _Moved(max(0.0, loaded - initialized), loaded / num_passes, initialized)


def _uses(workload: Workload) -> EpochUses:
    return EpochUses.of_rates(workload.rates, workload.num_train_samples, workload.batch_size)


def _cold_uses(workload: Workload, budget: Budget) -> EpochUses:
    """Return the uses of cold rows, which the mixed batches have."""
    mixed_share = 1 - budget.hot_sample_share
    cold = workload.rates.split(budget.num_hot_rows)[1]
    # Cold lookups all fall into mixed samples, so there they are denser.
    mixed = AccessRates(np.minimum(cold.rates / max(1e-12, mixed_share), 1.0), cold.num_rows)
    return EpochUses.of_rates(mixed, mixed_share * workload.num_train_samples, workload.batch_size)


def _prefetch(uses: EpochUses, budget: Budget, row_bytes: int) -> int:
    """Return the prefetch depth that `train` takes by default with these slots."""
    most = min(uses.num_first_uses, buffer_rows(uses.rows_per_batch, _OVERFLOW_PROBABILITY))
    width = WidthSizes(budget.num_hot_rows, uses.num_first_uses, row_bytes, most)
    return deepest_prefetch([width], budget.staging_bytes)


def _unique(workload: Workload) -> float:
    """Return the expected distinct rows of a batch."""
    return _uses(workload).rows_per_batch


def _in_place(workload: Workload, machine: Machine, vectors: float, rows: float) -> tuple[float, float]:
    """Return the seconds, and the bytes each way, of sending vectors and receiving gradients; rows stay."""
    moved = vectors * workload.vector_bytes
    # Read for the lookup, read and written for the update.
    host = moved + 2 * rows * workload.row_bytes
    return 2 * moved / machine.link_bytes_per_second + host / machine.host_bytes_per_second, moved
