"""Types of what `advise` returns: plain data, so that JSON, the terminal and the report read the same."""

from __future__ import annotations

from typing import TypedDict


class PredictedStep(TypedDict):
    """The prediction of one placement, see `stats.prediction.workload.Prediction`."""

    placement: str
    hot_bytes: int
    step_seconds: float
    compute_seconds: float
    to_fast_bytes: float
    to_slow_bytes: float
    memory: dict[str, int]
    initialized_bytes: float
    prefetch: int | None
    memory_bytes: int
    """Bytes of fast memory of all uses together."""


class MemoryOption(TypedDict):
    """The predictions for one size of fast memory."""

    fast_bytes: int
    placements: list[PredictedStep]
    """The best prediction of each placement that fits, the fastest first."""
    too_large: list[PredictedStep]
    """The others, each where it needs the least memory."""


class ChosenOption(TypedDict):
    """A size of fast memory, and the placement that is the fastest with it."""

    fast_bytes: int
    placement: str
    step_seconds: float


class DescribedWorkload(TypedDict):
    """The log and the model that were predicted for, see `stats.prediction.workload.Workload`."""

    num_rows: int
    num_train_samples: int
    batch_size: int
    vector_bytes: int
    row_bytes: int
    flops_per_sample: float
    dense_bytes: int
    activation_bytes: int
    input_bytes: int
    lookups_per_sample: float
    unique_rows_per_batch: float
    """Expected number of distinct rows of a batch."""


class DescribedMachine(TypedDict):
    """The speeds that were predicted with, see `stats.prediction.workload.Machine`."""

    link_bytes_per_second: float
    host_bytes_per_second: float
    flops: float
    step_seconds: float
    loader_samples_per_second: float | None


class PlacementAdvice(TypedDict):
    """Everything that `advise` returns."""

    workload: DescribedWorkload
    machine: DescribedMachine
    compute_seconds: float
    """Time of a step with every row on the fast tier."""
    options: list[MemoryOption]
    best: ChosenOption
    """The fastest of all."""
    enough: ChosenOption
    """The size from which more memory gains less than 1%."""
