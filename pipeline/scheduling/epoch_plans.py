"""The step plans of whole epochs for one row width: next uses backward, plans forward, files as they fill."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.epoch_order import epoch_order
from ...stats.staging.next_uses import next_uses_backward
from ...stats.staging.staging_planner import StagingPlanner, lookahead_planner
from ...stats.staging.step_plans import NEVER, Residents, RowStream, StepPlans
from ..folders.file_facts import ScheduleFacts, ShardFacts
from ..folders.manifest import Manifest
from ..folders.output import Output
from ..folders.stage_totals import EpochTotals, ScheduledWidth, ShardsTotals
from ..folders.temporary_files import array_in
from ..formats.stage_settings import ShardSettings
from ..sizes import MIB
from .cold_batches import ColdBatches, ColdWidth, mixed_files
from .step_plan_files import write_plans, write_residents

CHUNK_ENTRIES = 1 << 18
"""Distinct rows of the steps that are planned as one chunk."""
FILE_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class StagingArea:
    """The staging area of one row width, and the settings of its planner."""

    width: ColdWidth
    row_bytes: int
    num_slots: int
    prefetch: int
    window: int | None
    splits: bool

    def describe(self, epochs: Sequence[EpochTotals]) -> ScheduledWidth:
        """The area and its epochs as the manifest has them."""
        return ScheduledWidth(
            embedding_dim=self.width.embedding_dim,
            row_bytes=self.row_bytes,
            num_slots=self.num_slots,
            num_rows=self.width.num_rows,
            epochs=tuple(epochs),
        )


class EpochPlans:
    """Plans the epochs of one width and writes them.

    Args:
        shards: the log.
        area: the slots and rows that are planned.
        batches: mixed ones of ``shards``, as `read_cold_batches` reads them.
        output: the schedule that is written.
        room_bytes: memory that next uses may take; they are kept on disk where it is too little.
    """

    def __init__(
        self, shards: Manifest, area: StagingArea, batches: ColdBatches, output: Output, room_bytes: int
    ) -> None:
        self._area = area
        self._batches = batches
        self._output = output
        self._shards = shards
        self._room_bytes = room_bytes
        # Planners see mixed batches only, and know them by position; files name them by the trainer's number.
        self._numbers, self._samples = _mixed_batches(shards)
        num_batches = ShardsTotals.of(shards).batches
        self._is_hot_only = np.ones(num_batches.hot_only + num_batches.mixed, np.bool_)
        self._is_hot_only[self._numbers] = False

    def write(self, seed: int, num_epochs: int, advance: Callable[[int], None]) -> list[EpochTotals]:
        """Write the files of the first epochs of a run with this seed; return what each epoch moves.

        ``advance`` is called with the number of samples whose steps were planned.
        """
        area = self._area
        planner = lookahead_planner(
            area.width.num_rows,
            area.num_slots,
            prefetch=area.prefetch,
            window=area.window,
            splits=area.splits,
        )
        return [self._epoch(seed, epoch, planner, advance) for epoch in range(num_epochs)]

    def _epoch(
        self, seed: int, epoch: int, planner: StagingPlanner, advance: Callable[[int], None]
    ) -> EpochTotals:
        is_grouped = ShardSettings.of(self._shards).is_grouped
        # The order of all batches of the epoch, then of its mixed ones, as positions in ``self._batches``.
        order = epoch_order(self._is_hot_only, seed, epoch, spread=is_grouped)
        position_of = np.zeros(self._is_hot_only.size, np.int64)
        position_of[self._numbers] = np.arange(self._numbers.size)
        steps = position_of[order[~self._is_hot_only[order]]]
        moved = EpochSums()
        name = f"epoch-{epoch:05}.width-{self._area.width.embedding_dim:05}"
        # Planned to the end even where files are finished: the planner's state at a step depends on all
        # before it.
        for part, plans in enumerate(_files_of(self._plans(planner, steps, moved, advance))):
            self._write(f"{name}-{part:05}.arrow", epoch, plans, steps)
        residents = moved.residents
        assert residents is not None
        if not self._output.has(f"{name}-residents.arrow"):
            dim = self._area.width.embedding_dim
            facts = ScheduleFacts(epoch=epoch, embedding_dim=dim, kind="residents")
            with self._output.writing(f"{name}-residents.arrow", 0, facts) as path:
                write_residents(path, residents)
        return moved.totals(self._area.row_bytes)

    def _plans(
        self,
        planner: StagingPlanner,
        steps: NDArray[np.int64],
        moved: EpochSums,
        advance: Callable[[int], None],
    ) -> Iterator[StepPlans]:
        """Yield the plans of an epoch, chunk by chunk."""
        batches = self._batches
        uses = self._next_uses(steps)
        # Steps with about as many rows are planned together: few calls, and arrays of bounded size.
        sizes = np.diff(batches.offsets)[steps]
        chunk_of_step = np.cumsum(sizes) // CHUNK_ENTRIES
        bounds = np.flatnonzero(np.diff(chunk_of_step)) + 1
        for chunk in np.split(steps, bounds):
            yield moved.add(planner.plan(_stream(batches, uses, chunk)))
            advance(int(self._samples[chunk].sum()))
        # The rows left in slots are written back after the last step, and belong to no step.
        plans, moved.residents = planner.finish()
        yield moved.add(plans)

    def _next_uses(self, steps: NDArray[np.int64]) -> NDArray[np.int32] | None:
        if self._area.window is not None:
            return None
        batches = self._batches
        num_rows = self._area.width.num_rows
        # Walk the epoch backward: the next use of a row is the step in which the walk met it last.
        uses = array_in(0, self._output, batches.rows.shape, np.int32)
        next_step_of_row = array_in(self._room_bytes, self._output, (num_rows,), np.int32)
        next_step_of_row[:] = NEVER
        next_uses_backward(steps, batches.offsets, batches.rows, next_step_of_row, uses)
        return uses

    def _write(self, name: str, epoch: int, plans: list[StepPlans], steps: NDArray[np.int64]) -> None:
        if self._output.has(name):
            return
        first = plans[0].first_step
        last = plans[-1].first_step + plans[-1].num_steps
        facts = ScheduleFacts(
            epoch=epoch,
            embedding_dim=self._area.width.embedding_dim,
            kind="plans",
            first_step=first,
            num_steps=last - first,
        )
        batches = [steps[plan.first_step : plan.first_step + plan.num_steps] for plan in plans]
        num_samples = int(self._samples[steps[first:last]].sum())
        with self._output.writing(name, num_samples, facts) as path:
            write_plans(path, plans, [self._numbers[positions].astype(np.int32) for positions in batches])


class EpochSums:
    """Sums over the plans of an epoch."""

    def __init__(self) -> None:
        self.residents: Residents | None = None
        self._sums: dict[str, int] = dict.fromkeys(
            ("steps", "shortened", "split", "hits", "misses", "rows_to_fast", "rows_made", "rows_to_slow"), 0
        )

    def add(self, plans: StepPlans) -> StepPlans:
        """Add the counts of ``plans``, and return them."""
        # A first use needs no transfer where rows are initialized in their slot: those are counted apart.
        to_fast = int(plans.rows_to_fast(initializes_first_uses=True).sum())
        found = {
            "steps": plans.num_steps,
            "shortened": int(plans.is_shortened.sum()),
            "split": int(plans.is_split.sum()),
            "hits": int(plans.num_hits.sum()),
            "misses": int(plans.num_misses.sum()),
            "rows_to_fast": to_fast,
            "rows_made": int(plans.rows_to_fast(initializes_first_uses=False).sum()) - to_fast,
            "rows_to_slow": int(plans.rows_to_slow().sum()),
        }
        for key, number in found.items():
            self._sums[key] += number
        return plans

    def totals(self, row_bytes: int) -> EpochTotals:
        """Return the sums in rows and bytes, the rows left in slots at the end included."""
        assert self.residents is not None
        sums = dict(self._sums)
        sums["rows_to_slow"] += self.residents.rows.size
        for way in ("to_fast", "to_slow"):
            sums[f"bytes_{way}"] = sums[f"rows_{way}"] * row_bytes
        return EpochTotals(**sums)


def _stream(batches: ColdBatches, uses: NDArray[np.int32] | None, positions: NDArray[np.int64]) -> RowStream:
    """Return the batches at ``positions`` as a planner takes them."""

    def joined(values: NDArray[np.int32]) -> NDArray[np.int64]:
        parts = [values[batches.offsets[n] : batches.offsets[n + 1]] for n in positions]
        return np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int64)

    offsets = np.concatenate([[0], np.cumsum(np.diff(batches.offsets)[positions])]).astype(np.int64)
    next_uses = None if uses is None else joined(uses)
    return RowStream(offsets, joined(batches.rows), joined(batches.lookups), next_uses)


def _files_of(plans: Iterator[StepPlans]) -> Iterator[list[StepPlans]]:
    """Group consecutive plans until they fill a file."""
    group: list[StepPlans] = []
    num_bytes = 0
    for plan in plans:
        # A chunk may complete no step: such a plan has nothing to write.
        if not plan.num_steps:
            continue
        group.append(plan)
        num_bytes += 4 * plan.slots.size + 13 * plan.fetch_rows.size + 12 * plan.write_back_rows.size
        if num_bytes >= FILE_BYTES:
            yield group
            group = []
            num_bytes = 0
    if group:
        yield group


def num_hot_only_batches(shards: Manifest) -> int:
    """Count the batches of hot-only files, which trainers number first."""
    facts = [ShardFacts.of(shards, entry) for entry in shards.files]
    return sum(found.num_batches for found in facts if found.kind == "hot_only")


def _mixed_batches(shards: Manifest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers that a trainer gives to the mixed batches, and their samples."""
    first = num_hot_only_batches(shards)
    size = ShardSettings.of(shards).batch_size
    numbers = []
    samples = []
    for entry, mixed in mixed_files(shards):
        numbers += [first + number for number in mixed]
        samples += [min(size, entry.num_samples - number * size) for number in mixed]
        first += ShardFacts.of(shards, entry).num_batches
    return np.array(numbers, np.int64), np.array(samples, np.int64)
