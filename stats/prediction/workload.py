"""What a prediction of a training step is made of: a machine, a log with a model, a budget."""

from __future__ import annotations

from dataclasses import dataclass

from .access_rates import AccessRates


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What a step's time is made of."""

    link_bytes_per_second: float = 20e9
    """Between host and fast memory, each way at once."""
    host_bytes_per_second: float = 10e9
    """Of rows read and written at random places of host memory, by all its cores."""
    flops: float = 10e12
    """Of the dense layers as they really run, a second."""
    step_seconds: float = 300e-6
    """Of a step besides: launches and small kernels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One log and one model."""

    rates: AccessRates
    """Of every row that training looks up."""
    num_rows: int
    """Of all tables."""
    num_train_samples: int
    batch_size: int
    vector_bytes: int
    """Of one embedding vector."""
    row_bytes: int
    """Of a vector with the state of its optimizer."""
    flops_per_sample: float
    """Of the dense layers, forward and backward."""
    dense_bytes: int
    """Dense parameters, their gradients and optimizer state."""
    activation_bytes: int
    """Of a sample: every layer's outputs and their gradients."""
    input_bytes: int
    """Of a sample as it is read: label, dense features, ids."""

    @property
    def steps_per_epoch(self) -> float:
        return self.num_train_samples / self.batch_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Fast memory for rows, and what it was counted to make hot."""

    hot_bytes: int
    num_hot_rows: int
    hot_sample_share: float
    """Training samples all of whose look-ups are hot, in [0, 1]."""
    staging_bytes: int
    """On top, for rows that stay a while."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """One placement under one budget."""

    placement: str
    hot_bytes: int
    step_seconds: float
    """Mean over hot-only and mixed batches."""
    compute_seconds: float
    to_fast_bytes: float
    """Rows and vectors that go up in a step, the mean."""
    to_slow_bytes: float
    memory: dict[str, int]
    """Fast memory by use, bytes: hot, staging, dense, activations, inputs, transfers."""
    prefetch: int | None = None
    """Steps ahead that rows can be fetched with this staging area; None where nothing is staged."""

    @property
    def memory_bytes(self) -> int:
        return sum(self.memory.values())
