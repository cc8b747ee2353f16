"""Runs one cell of a sweep: draws its log, trains a few steps, and says where their time went."""

from __future__ import annotations

import resource
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from ...pipeline.folders.json_record import JsonRecord
from ...pipeline.sizes import ByteSize
from ...train.config import EmbeddingOptimizer, PlacementName, TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.trainer_building.build_trainer import build_trainer
from ...train.trainer_building.devices import set_threads
from ..bench.limited.drawn_shards import DrawnShards
from .cells import Cell
from .timed_steps import StepLaps, time_steps

WARM_UP_STEPS = 3
_LEAST_STEPS = 6
_MOST_STEPS = 24
_SAMPLES = 32_768
"""Samples that a cell trains on, where its steps are neither too few nor too many for that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRecord(JsonRecord):
    """What one run of a cell measured; a line of the file of a sweep."""

    cell: Cell
    threads: int
    num_steps: int
    step_seconds: float
    """Mean over the steps between the quartiles of their seconds."""
    parts: dict[str, float]
    """Seconds of each part of the loop in these steps; they add up to the step's."""
    beside: dict[str, float]
    """Seconds per step of the work beside the loop: load, transfers."""
    distinct_rows: float
    """Distinct rows of a batch, the mean over all steps."""
    to_fast_rows: float
    """Rows or vectors moved to the fast tier, per step of the run, its last write-back included."""
    to_slow_rows: float
    initialized_rows: float
    memory_bytes: int
    """Most memory that the process has had so far."""


def num_steps_of(cell: Cell) -> int:
    """Return the steps that are measured of a cell."""
    return min(max(_SAMPLES // cell.batch_size, _LEAST_STEPS), _MOST_STEPS)


def training_of(cell: Cell, threads: int) -> TrainConfig:
    """Return the settings of a run of the cell."""
    fast = ByteSize(max(int(cell.fast_share * cell.bytes_of_rows), 1))
    return TrainConfig(
        placement=cast(PlacementName, cell.placement),
        staging_bytes=fast if cell.placement in ("cache", "lookahead") else None,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        model="dlrm",
        threads=threads,
        embedding_optimizer=cast(EmbeddingOptimizer, cell.optimizer),
    )


def run_cell(cell: Cell, threads: int, scratch: Path | None = None) -> CellRecord:
    """Train the steps of a cell, with a log drawn for it."""
    num_steps = WARM_UP_STEPS + num_steps_of(cell)
    drawn = DrawnShards(
        num_tables=cell.num_tables,
        rows_of_table=cell.rows_of_table,
        skew=cell.skew,
        num_dense=cell.num_dense,
        pooling=cell.pooling,
        batch_size=cell.batch_size,
        num_batches=num_steps,
        # Shards have an evaluation part, which no cell reads: one sample is the least.
        num_evaluation=1,
        embedding_dim=cell.embedding_dim,
    )
    set_threads(threads)
    with tempfile.TemporaryDirectory(prefix="hotset-cell-", dir=scratch) as folder:
        drawn.write(Path(folder) / "shards")
        shards = Shards.open(Path(folder))
        order = RecordedOrder(np.arange(num_steps, dtype=np.int32))
        trainer = build_trainer(shards, training_of(cell, threads), order)
        run = time_steps(trainer, WARM_UP_STEPS)
    # Seconds are of the measured steps; rows are counted over all steps, those of the warm-up included.
    seconds, parts = _middle_half(run.steps)
    measured = len(run.steps)
    return CellRecord(
        cell=cell,
        threads=threads,
        num_steps=measured,
        step_seconds=seconds,
        parts=parts,
        beside={"load": run.load_seconds / measured, "transfers": run.transfer_seconds / measured},
        distinct_rows=statistics.fmean(step.distinct_rows for step in run.steps),
        to_fast_rows=run.rows["to_fast"] / num_steps,
        to_slow_rows=run.rows["to_slow"] / num_steps,
        initialized_rows=run.rows["made"] / num_steps,
        memory_bytes=_peak_memory(),
    )


def _middle_half(steps: list[StepLaps]) -> tuple[float, dict[str, float]]:
    """Return the mean of the steps between the quartiles of their seconds, and of their parts.

    A mean keeps the parts adding up to the whole, which medians would not; leaving out the slowest and the
    fastest quarter keeps what disturbs single steps away, as a median does.
    """
    ordered = sorted(steps, key=lambda step: step.seconds)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    names = {name for step in middle for name in step.parts}
    parts = {name: statistics.fmean(step.parts.get(name, 0.0) for step in middle) for name in sorted(names)}
    return statistics.fmean(step.seconds for step in middle), parts


def _peak_memory() -> int:
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
