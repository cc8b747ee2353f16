"""Runs one cell of a sweep: draws its log, trains a few steps, and says where their time went."""

from __future__ import annotations

import resource
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from ...pipeline.folders.json_record import JsonRecord
from ...pipeline.sizes import ByteSize
from ...train.config import EmbeddingOptimizer, PlacementName, TrainConfig
from ...train.data.shards import Shards
from ...train.exchange.chosen_exchange import ChosenExchange
from ...train.ranks.ranks import OneRank, Ranks
from ...train.trainer_building.build_trainer import build_trainer
from ...train.trainer_building.devices import set_threads
from ..bench.ranks.rank_group import RankGroup
from .cell_batches import (
    WARM_UP_STEPS,
    distinct_of_kinds,
    num_steps_of,
    order_of,
    shards_of,
    steps_of_cycle,
)
from .cells import BUDGETED, Cell
from .timed_steps import StepLaps, time_steps

MOST_MISSING = 0.03
"""Share of a step that its parts may miss."""


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
    expected_rows: float = 0.0
    """Distinct rows of a batch as they are predicted, in the measured steps; 0: by an earlier version."""

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
    with tempfile.TemporaryDirectory(prefix="hotset-cell-", dir=scratch) as folder:
        shards_of(cell).write(Path(folder) / "shards")
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

    return replace(
        first,
        step_seconds=mean(each.step_seconds for each in records),
        parts=_means([each.parts for each in records]),
        beside=_means([each.beside for each in records]),
        distinct_rows=mean(each.distinct_rows for each in records),
        to_fast_rows=mean(each.to_fast_rows for each in records),
        to_slow_rows=mean(each.to_slow_rows for each in records),
        initialized_rows=mean(each.initialized_rows for each in records),
        link_bytes=_means([each.link_bytes for each in records]),
        memory_bytes=max(each.memory_bytes for each in records),
        probe_seconds=mean(each.probe_seconds for each in records),
    )


def _measured(cell: Cell, threads: int, folder: Path, ranks: Ranks) -> CellRecord:
    """Train on the shards in the folder."""
    num_steps = WARM_UP_STEPS + num_steps_of(cell)
    set_threads(threads)
    shards = Shards.open(folder)
    exchange = ChosenExchange(vectors=cell.codec, gradients=cell.codec)
    trainer = build_trainer(
        shards, training_of(cell, threads), order_of(cell), ranks=ranks, exchange=exchange
    )
    run = time_steps(trainer, WARM_UP_STEPS)
    # Seconds are of the measured steps; rows are counted over all steps, those of the warm-up included.
    seconds, parts = _middle_half(_whole_cycles(run.steps, steps_of_cycle(cell)))
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
        expected_rows=statistics.fmean(distinct_of_kinds(cell)),
    )


def _whole_cycles(steps: Sequence[StepLaps], length: int) -> list[StepLaps]:
    """Return the means over so many steps each, which have all kinds of batches in them."""
    if length == 1:
        return list(steps)
    cycles = [steps[first : first + length] for first in range(0, len(steps), length)]
    return [
        StepLaps(
            statistics.fmean(step.seconds for step in cycle),
            _means([step.parts for step in cycle]),
            round(statistics.fmean(step.distinct_rows for step in cycle)),
        )
        for cycle in cycles
    ]


def _means(found: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each number by its name; those that some do not have are 0 there."""
    names = sorted({name for each in found for name in each})
    return {name: statistics.fmean(each.get(name, 0.0) for each in found) for name in names}


def _middle_half(steps: list[StepLaps]) -> tuple[float, dict[str, float]]:
    """Return the mean of the steps between the quartiles of their seconds, and of their parts.

    A mean keeps the parts adding up to the whole, which medians would not; leaving out the slowest and the
    fastest quarter keeps what disturbs single steps away, as a median does.
    """
    ordered = sorted(steps, key=lambda step: step.seconds)
    quarter = len(ordered) // 4
    middle = ordered[quarter : len(ordered) - quarter]
    return statistics.fmean(step.seconds for step in middle), _means([step.parts for step in middle])


def _peak_memory() -> int:
    # Linux counts in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
