"""Runs one cell of a sweep: draws its log, trains a few steps, and says where their time went."""

from __future__ import annotations

import resource
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...pipeline.folders.json_record import JsonRecord
from ...pipeline.sizes import ByteSize
from ...train.config import EmbeddingOptimizer, PlacementName, TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.exchange.chosen_exchange import ChosenExchange
from ...train.ranks.ranks import OneRank, Ranks
from ...train.trainer_building.build_trainer import build_trainer
from ...train.trainer_building.devices import set_threads
from ..bench.limited.drawn_shards import DrawnShards
from ..bench.ranks.rank_group import RankGroup
from .cells import BUDGETED, Cell
from .timed_steps import StepLaps, time_steps

WARM_UP_STEPS = 3
MOST_MISSING = 0.03
"""Share of a step that its parts may miss."""
_LEAST_STEPS = 6
_MOST_STEPS = 24
_SAMPLES = 32_768
"""Samples that a cell trains on, where its steps are neither too few nor too many for that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRecord(JsonRecord):
    """What one run of a cell measured, the mean over its ranks; a line of the file of a sweep."""

    cell: Cell
    threads: int
    """Threads of each rank."""
    num_steps: int
    step_seconds: float
    """Mean over the steps between the quartiles of their seconds."""
    parts: dict[str, float]
    """Seconds of each part of the loop in these steps, each measured by itself."""
    beside: dict[str, float]
    """Seconds per step of the work beside the loop: load, transfers."""
    distinct_rows: float
    """Distinct rows of a batch, the mean over all steps."""
    to_fast_rows: float
    """Rows or vectors moved to the fast tier, per step of the run, its last write-back included."""
    to_slow_rows: float
    initialized_rows: float
    link_bytes: dict[str, float]
    """Bytes per step of the run by link: ``to fast`` and ``to slow`` between the tiers, and what this rank
    sends to others, ``vectors``, ``gradients`` and ``dense``."""
    memory_bytes: int
    """Most memory that the process has had so far."""
    probe_seconds: float = 0.0
    """Seconds of one and the same piece of work between the steps; 0: it was not measured."""

    def scaled(self, factor: float) -> CellRecord:
        """Return the record with all of its seconds times a factor."""

        def times(seconds: dict[str, float]) -> dict[str, float]:
            return {part: factor * each for part, each in seconds.items()}

        return replace(
            self,
            step_seconds=factor * self.step_seconds,
            parts=times(self.parts),
            beside=times(self.beside),
            probe_seconds=factor * self.probe_seconds,
        )

    @property
    def adds_up(self) -> bool:
        """Whether the parts are the whole step, to 3%."""
        return abs(sum(self.parts.values()) - self.step_seconds) <= MOST_MISSING * self.step_seconds


def num_steps_of(cell: Cell) -> int:
    """Return the steps that are measured of a cell."""
    return min(max(_SAMPLES // cell.batch_size, _LEAST_STEPS), _MOST_STEPS)


def training_of(cell: Cell, threads: int) -> TrainConfig:
    """Return the settings of a run of the cell."""
    fast = ByteSize(max(int(cell.fast_share * cell.bytes_of_rows), 1))
    return TrainConfig(
        placement=cast(PlacementName, cell.placement),
        staging_bytes=fast if cell.placement in BUDGETED else None,
        bottom_mlp=cell.bottom_mlp,
        top_mlp=cell.top_mlp,
        model="dlrm",
        threads=threads,
        embedding_optimizer=cast(EmbeddingOptimizer, cell.optimizer),
    )


def run_cell(
    cell: Cell, threads: int, scratch: Path | None = None, group: RankGroup | None = None
) -> CellRecord:
    """Train the steps of a cell, with a log drawn for it.

    Args:
        cell: what to train.
        threads: of a step; several ranks share them.
        scratch: folder for the log.
        group: the ranks of a cell that has several.

    Raises:
        RankError: a rank ended.
    """
    drawn = DrawnShards(
        num_tables=cell.num_tables,
        rows_of_table=cell.rows_of_table,
        skew=cell.skew,
        num_dense=cell.num_dense,
        pooling=cell.pooling,
        batch_size=cell.batch_size,
        num_batches=WARM_UP_STEPS + num_steps_of(cell),
        # Shards have an evaluation part, which no cell reads: one sample is the least.
        num_evaluation=1,
        embedding_dim=cell.embedding_dim,
    )
    with tempfile.TemporaryDirectory(prefix="hotset-cell-", dir=scratch) as folder:
        drawn.write(Path(folder) / "shards")
        if cell.ranks == 1:
            return _measured(cell, threads, Path(folder), OneRank())
        assert group is not None and group.num_ranks == cell.ranks, "several ranks need their processes"
        arguments = {"cell": cell.to_json(), "threads": max(threads // cell.ranks, 1), "folder": folder}
        found = group.call(run_cell_of_rank, **arguments)
        return mean_record([CellRecord.from_json(each) for each in found])


def run_cell_of_rank(ranks: Ranks, cell: dict[str, Any], threads: int, folder: str) -> dict[str, Any]:
    """Train the steps of a cell as one of its ranks; arguments and result are plain data."""
    return _measured(Cell.from_json(cell), threads, Path(folder), ranks).to_json()


def mean_record(records: Sequence[CellRecord]) -> CellRecord:
    """Return what the ranks of a cell measured as the record of their mean."""
    first = records[0]

    def mean(values: Iterable[float]) -> float:
        return statistics.fmean(values)

    def means(found: Sequence[dict[str, float]]) -> dict[str, float]:
        # A part that a rank does not have takes it no time.
        names = sorted({name for each in found for name in each})
        return {name: mean(each.get(name, 0.0) for each in found) for name in names}

    return replace(
        first,
        step_seconds=mean(each.step_seconds for each in records),
        parts=means([each.parts for each in records]),
        beside=means([each.beside for each in records]),
        distinct_rows=mean(each.distinct_rows for each in records),
        to_fast_rows=mean(each.to_fast_rows for each in records),
        to_slow_rows=mean(each.to_slow_rows for each in records),
        initialized_rows=mean(each.initialized_rows for each in records),
        link_bytes=means([each.link_bytes for each in records]),
        memory_bytes=max(each.memory_bytes for each in records),
        probe_seconds=mean(each.probe_seconds for each in records),
    )


def _measured(cell: Cell, threads: int, folder: Path, ranks: Ranks) -> CellRecord:
    """Train on the shards in the folder."""
    num_steps = WARM_UP_STEPS + num_steps_of(cell)
    set_threads(threads)
    shards = Shards.open(folder)
    order = RecordedOrder(np.arange(num_steps, dtype=np.int32))
    exchange = ChosenExchange(vectors=cell.codec, gradients=cell.codec)
    trainer = build_trainer(shards, training_of(cell, threads), order, ranks=ranks, exchange=exchange)
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
        link_bytes={name: count / num_steps for name, count in run.link_bytes.items()},
        memory_bytes=_peak_memory(),
        probe_seconds=run.probe_seconds,
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
