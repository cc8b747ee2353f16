"""The inputs of a prediction of a training step (machine, log with model, budget), and its result."""

from __future__ import annotations

from dataclasses import dataclass

from .access_rates import AccessRates


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """The speeds and fixed times that a step's time follows from."""

    link_bytes_per_second: float = 20e9
    """Speed of the link between host and fast memory, each way at once."""
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
