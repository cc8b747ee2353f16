"""Predict time and memory of training steps by placement and budget.

The inputs are a machine, a log with its model, and a budget. Bytes are those of an epoch that begins with no
row used yet, as `hotset train` counts them in its first one: exact for the vectors of `hybrid` and for `fae`
at its first rate, and an expectation over the order of training for rows that are loaded (`curves`, 0.91 to
1.02 times what runs count). The machine is four numbers. Its times are for comparison, not absolute: they
leave out kernels that do not scale with the batch, which shifts all placements alike.

A codec pays if its work takes less time than it saves; the delay of the link is the same for all.

Source:
    The cost model of Feng et al., SC'24, arXiv 2407.04272.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .curves import AccessRates, EpochUses, buffer_rows
from .lookahead.planner import WidthSizes, deepest_prefetch


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The speeds and fixed times that a step's time follows from."""

    link_bytes_per_second: float = 20e9
    """Speed of the link between host and fast memory, in each direction simultaneously."""
    host_bytes_per_second: float = 10e9
    """Speed of rows read and written at random places of host memory, by all its cores."""
    flops: float = 10e12
    """Operations per second that the dense layers really reach."""
    step_seconds: float = 300e-6
    """Fixed time of a step: launches and small kernels."""
    loader_samples_per_second: float | None = None
    """Samples read per second; None: steps never wait for their batches."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One log and one model."""

    rates: AccessRates
    """Access rates of every row that training looks up."""
    num_rows: int
    """Rows of all tables."""
    num_train_samples: int
    batch_size: int
    vector_bytes: int
    """Bytes of one embedding vector."""
    row_bytes: int
    """Bytes of a vector with the state of its optimizer."""
    flops_per_sample: float
    """Operations of the dense layers, forward and backward."""
    dense_bytes: int
    """Bytes of dense parameters, their gradients and optimizer state."""
    activation_bytes: int
    """Bytes per sample of every layer's outputs and their gradients."""
    input_bytes: int
    """Bytes of a sample as it is read: label, dense features, ids."""

    @property
    def steps_per_epoch(self) -> float:
        return self.num_train_samples / self.batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Fast memory for rows, and the counted share of samples that it makes hot."""

    hot_bytes: int
    num_hot_rows: int
    hot_sample_share: float
    """Share of training samples all of whose lookups are hot, in [0, 1]."""
    staging_bytes: int
    """Bytes of the staging area, on top of ``hot_bytes``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The prediction of one placement under one budget."""

    placement: str
    hot_bytes: int
    step_seconds: float
    """Time of a step, the mean over hot-only and mixed batches."""
    compute_seconds: float
    to_fast_bytes: float
    """Bytes of rows and vectors transferred to the fast tier per step, the mean over the first epoch."""
    to_slow_bytes: float
    """Bytes transferred back."""
    memory: dict[str, int]
    """Bytes of fast memory by use: hot, staging, dense, activations, inputs, transfers."""
    initialized_bytes: float = 0.0
    """Bytes per step of rows at their first use: initialized on the fast tier instead of transferred."""
    prefetch: int | None = None
    """Batches that transfers run ahead with this staging area; None where nothing is staged."""

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())


_OVERFLOW_PROBABILITY = 1e-6
_NO_GAIN = 0.01


def predict(workload: Workload, machine: Machine, budget: Budget) -> list[Prediction]:
    """Predict every placement under one budget, the fastest first.

    all-fast is among them whatever its size: a prediction states the memory it needs, and the caller leaves
    out what does not fit.
    """
    of = _Predictor(workload, machine, budget)
    predictions = [of.all_fast(), of.lookahead(), of.cache(), of.fae(), of.hybrid_dedup(), of.hybrid()]
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


@dataclass(frozen=True, slots=True)
class _Moved:
    """Bytes of rows that a batch moves, the mean over the batches of an epoch."""

    to_fast: float
    to_slow: float
    initialized: float = 0.0
    """Bytes of rows at their first use."""

    @property
    def num_bytes(self) -> float:
        """Bytes either way."""
        return self.to_fast + self.to_slow

    @property
    def link_bytes(self) -> float:
        """Bytes of the busier direction: the link carries both simultaneously."""
        return max(self.to_fast, self.to_slow)

    def times(self, share: float) -> _Moved:
        """Return what is moved where only a share of the batches moves anything."""
        return _Moved(share * self.to_fast, share * self.to_slow, share * self.initialized)


@dataclass(frozen=True, slots=True)
class _Predictor:
    """Predicts each placement for one log, machine and budget."""

    workload: Workload
    machine: Machine
    budget: Budget

    def all_fast(self) -> Prediction:
        every = self.workload.num_rows * self.workload.row_bytes
        return self._prediction("all-fast", self._compute, _Moved(0.0, 0.0), hot=every)

    def hybrid(self) -> Prediction:
        return self._without_hot_rows("hybrid", self._num_lookups)

    def hybrid_dedup(self) -> Prediction:
        return self._without_hot_rows("hybrid-dedup", self._unique_rows)

    def fae(self) -> Prediction:
        """Hot-only batches as all-fast, mixed ones as hybrid, four copies of hot rows an epoch (R = 50%)."""
        # The rows of mixed batches stay on the host: their vectors and gradients cross the link.
        mixed_share = 1 - self.budget.hot_sample_share
        seconds, vectors = self._in_place(self._num_lookups)
        hot_bytes = self.budget.num_hot_rows * self.workload.row_bytes
        # Every switch copies all hot rows; as many switches as R = 50% makes, spread over the steps.
        copied = 2 * hot_bytes / max(1.0, self.workload.steps_per_epoch)
        switch = 2 * copied / self.machine.link_bytes_per_second
        total = self._compute + mixed_share * seconds + switch
        mean = mixed_share * vectors + copied
        return self._prediction("fae", total, _Moved(mean, mean), hot=hot_bytes, transfers=2 * vectors)

    def cache(self) -> Prediction:
        """A cache of all slots that keeps the most frequent rows; a batch waits for its misses."""
        # The cache has hot rows and staging in one area, and refetches what falls out of it.
        budget, machine = self.budget, self.machine
        slots = (budget.hot_bytes + budget.staging_bytes) // self.workload.row_bytes
        uses = _uses(self.workload)
        moved = self._moved(uses, uses.cache_loads(slots), uses.num_passes(slots))
        link_seconds = moved.link_bytes / machine.link_bytes_per_second
        seconds = link_seconds + moved.num_bytes / machine.host_bytes_per_second
        return self._prediction(
            "cache", self._compute + seconds, moved,
            hot=budget.hot_bytes, staging=budget.staging_bytes, transfers=moved.num_bytes,
        )  # fmt: skip

    def lookahead(self) -> Prediction:
        """Rows are loaded ahead of their batch and stay where they are needed again soon enough."""
        budget, machine, compute = self.budget, self.machine, self._compute
        uses = _cold_uses(self.workload, budget)
        slots = budget.staging_bytes // self.workload.row_bytes
        prefetch = _prefetch(uses, budget, self.workload.row_bytes)
        moved = self._moved(uses, uses.lookahead_loads(slots, prefetch), uses.num_passes(slots))
        link_seconds = moved.link_bytes / machine.link_bytes_per_second
        transfer = max(link_seconds, moved.num_bytes / machine.host_bytes_per_second)
        # Transfers overlap with the computation if there is room to be a step ahead.
        mixed_seconds = max(compute, transfer) if prefetch else compute + transfer
        mixed_share = 1 - budget.hot_sample_share
        return self._prediction(
            "lookahead", compute + mixed_share * (mixed_seconds - compute), moved.times(mixed_share),
            hot=budget.num_hot_rows * self.workload.row_bytes, staging=budget.staging_bytes,
            transfers=moved.num_bytes, prefetch=prefetch,
        )  # fmt: skip

    @property
    def _compute(self) -> float:
        return compute_seconds(self.workload, self.machine)

    @property
    def _num_lookups(self) -> float:
        return self.workload.batch_size * self.workload.rates.lookups_per_sample

    @property
    def _unique_rows(self) -> float:
        """Expected distinct rows of a batch."""
        return _uses(self.workload).rows_per_batch

    def _prediction(
        self,
        placement: str,
        seconds: float,
        moved: _Moved,
        *,
        hot: int,
        staging: int = 0,
        transfers: float = 0.0,
        prefetch: int | None = None,
    ) -> Prediction:
        workload = self.workload
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
            hot_bytes=self.budget.hot_bytes,
            step_seconds=seconds,
            compute_seconds=self._compute,
            to_fast_bytes=moved.to_fast,
            to_slow_bytes=moved.to_slow,
            memory=memory,
            initialized_bytes=moved.initialized,
            prefetch=prefetch,
        )

    def _without_hot_rows(self, placement: str, num_vectors: float) -> Prediction:
        seconds, moved = self._in_place(num_vectors)
        return self._prediction(
            placement, self._compute + seconds, _Moved(moved, moved), hot=0, transfers=2 * moved
        )

    def _in_place(self, num_vectors: float) -> tuple[float, float]:
        """Return the seconds, and the bytes each way, of sending vectors and receiving gradients."""
        moved = num_vectors * self.workload.vector_bytes
        # Rows stay on the host: read for the lookup, read and written for the update.
        host = moved + 2 * self._unique_rows * self.workload.row_bytes
        link_seconds = 2 * moved / self.machine.link_bytes_per_second
        return link_seconds + host / self.machine.host_bytes_per_second, moved

    def _moved(self, uses: EpochUses, num_loads: float, num_passes: int) -> _Moved:
        """Return what ``num_loads`` loads of an epoch move.

        A first use is not loaded, in any of the passes of its batch; the last pass writes the row back.
        """
        row_bytes = self.workload.row_bytes
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


LEAST_GAIN = 0.05
"""Share of a codec's time that rows take longer as they are, before they are sent in it."""


@dataclass(frozen=True, slots=True)
class CodecCost:
    """The cost of one message in a codec."""

    num_bytes: float
    """Bytes sent."""
    seconds: float
    """Seconds to encode and to decode them."""

    def seconds_at(self, bytes_per_second: float) -> float:
        """Return the seconds of the message over a link, without its delay."""
        return self.num_bytes / bytes_per_second + self.seconds


def worthwhile_codec(costs: Mapping[str, CodecCost], bytes_per_second: float) -> str:
    """Return the quickest codec, and ``none`` unless that takes longer by `LEAST_GAIN` of the other's time.

    So what is returned is within `LEAST_GAIN` of the quickest.

    Args:
        costs: of each codec, ``none`` among them.
        bytes_per_second: of the link, each way.
    """
    quickest = min(costs, key=lambda name: costs[name].seconds_at(bytes_per_second))
    limit = (1 + LEAST_GAIN) * costs[quickest].seconds_at(bytes_per_second)
    return quickest if costs["none"].seconds_at(bytes_per_second) >= limit else "none"
