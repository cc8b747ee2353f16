"""Types of what `plan` returns: plain data, so that JSON and the terminal read the same."""

from __future__ import annotations

from typing import TypedDict


class PlannedOption(TypedDict):
    """One way to train, predicted."""

    placement: str
    ranks: int
    homes: str | None
    """Where rows live among several ranks."""
    codec: str | None
    """How rows are sent between ranks; anything but float32 is arithmetic, no run does it yet."""
    fast_bytes: int
    hot_bytes: int
    """Bytes of hot rows of all ranks together, as `preprocess --hot-bytes` takes them."""
    staging_bytes: int
    """Bytes of the staging area of each rank."""
    prefetch: int | None
    """Batches that transfers run ahead, as `train --prefetch` takes them; None where no rows are staged."""
    memory_bytes: int
    """Fast memory of one rank, all uses together."""
    moved_bytes: float
    """Bytes of a step of one rank between the tiers, both ways together."""
    step_seconds: float
    low_seconds: float
    """Nine in ten held-out cells lay between this and ``high_seconds``."""
    high_seconds: float
    samples_per_second: float
    parts: dict[str, float]
    """Predicted seconds by part."""
    is_arithmetic: bool
    """Whether a part of it was never measured on this machine."""


class Sensitivity(TypedDict):
    """The gain by twice of something."""

    of: str
    step_seconds: float
    gain: float
    """Samples per second over those of the best plan, less one."""


class PlannedTable(TypedDict):
    """Where a table lies among several ranks, by arithmetic."""

    table: str
    home: str
    seconds: float
    """Seconds that it adds to a step, overlap left out."""
    fast_bytes: int
    """Fast memory that it takes of one rank."""


class MachinePlan(TypedDict):
    """The plans for a log on a measured machine, the fastest first."""

    machine: dict[str, object]
    """The basis of the predictions: device, threads, is_quiet, the errors on held-out cells."""
    batch_size: int
    fast_bytes: list[int]
    """Sizes of fast memory that were planned, ascending."""
    is_given: bool
    """Whether they were asked for; if not, they are up to five from a few rows to all."""
    options: list[PlannedOption]
    too_large: list[PlannedOption]
    """Those that do not fit, the one that needs the least memory of each placement."""
    margin: float | None
    """How much longer the step of the runner-up takes, less one; None where there is none."""
    is_close: bool
    """Whether the margin is below the median error, so that the two cannot be told apart."""
    sensitivities: list[Sensitivity]
    table_ranks: int
    """Ranks that ``tables`` are for: the most of those asked for."""
    tables: list[PlannedTable]
    """Homes of the tables with the least traffic; empty on one rank, or where they do not fit."""
