"""The step plans of whole epochs for one row width: next uses backward, plans forward, files as they fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.row_slots import epoch_order
from ...stats.staging.next_uses import next_uses_backward
from ...stats.staging.staging_planner import StagingPlanner, lookahead_planner
from ...stats.staging.step_plans import NEVER, Residents, RowStream, StepPlans
from ..folders.manifest import Manifest
from ..folders.output import Output
from ..runtime.memory import array_in
from ..sizes import MIB
from .cold_batches import ColdBatches, Width, mixed_files
from .step_plan_files import write_plans, write_residents

STRETCH_ENTRIES = 1 << 18
"""Rows of the steps planned at a time."""
FILE_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class StagingArea:
    """The staging area of one row width, and how it is planned."""

    width: Width
    row_bytes: int
    num_slots: int
    prefetch: int
    window: int | None
    splits: bool

    @property
    def facts(self) -> dict[str, int]:
        """What the manifest says of it."""
        rows = {"num_slots": self.num_slots, "num_rows": self.width.num_rows}
        return {"embedding_dim": self.width.embedding_dim, "row_bytes": self.row_bytes} | rows


class EpochPlans:
    """Plans the epochs of one width and writes them.

    Args:
        shards: the log.
        area: what is planned.
        batches: mixed ones of ``shards``, as `read_cold_batches` reads them.
        output: where to.
        room_bytes: memory that next uses may take; they lie on the disk where it is too little.
    """

    def __init__(
        self, shards: Manifest, area: StagingArea, batches: ColdBatches, output: Output, room_bytes: int
    ) -> None:
        self._area, self._batches, self._output = area, batches, output
        self._shards, self._room_bytes = shards, room_bytes
        self._numbers, self._samples = _mixed_batches(shards)
        self._is_hot_only = np.ones(
            sum(shards.totals["batches"][kind] for kind in ("hot_only", "mixed")), np.bool_
        )
        self._is_hot_only[self._numbers] = False

    def make(self, seed: int, num_epochs: int) -> list[dict[str, int]]:
        """Make the files of the first epochs of a run with this seed; returns what each epoch moves."""
        area = self._area
        planner = lookahead_planner(
            area.width.num_rows,
            area.num_slots,
            prefetch=area.prefetch,
            window=area.window,
            splits=area.splits,
        )
        return [self._epoch(seed, epoch, planner) for epoch in range(num_epochs)]

    def _epoch(self, seed: int, epoch: int, planner: StagingPlanner) -> dict[str, int]:
        is_grouped = self._shards.config["order"] == "grouped"
        order = epoch_order(self._is_hot_only, seed, epoch, spread=is_grouped)
        place_of = np.zeros(self._is_hot_only.size, np.int64)
        place_of[self._numbers] = np.arange(self._numbers.size)
        steps = place_of[order[~self._is_hot_only[order]]]
        moved = Moved()
        name = f"epoch-{epoch:05}.width-{self._area.width.embedding_dim:05}"
        for part, plans in enumerate(_files_of(self._plans(planner, steps, moved))):
            self._write(f"{name}-{part:05}.arrow", epoch, plans, steps)
        residents = moved.residents
        assert residents is not None
        if not self._output.has(f"{name}-residents.arrow"):
            facts = {"epoch": epoch, "embedding_dim": self._area.width.embedding_dim, "kind": "residents"}
            with self._output.writing(f"{name}-residents.arrow", 0, **facts) as path:
                write_residents(path, residents)
        return moved.totals(self._area.row_bytes)

    def _plans(self, planner: StagingPlanner, steps: NDArray[np.int64], moved: Moved) -> Iterator[StepPlans]:
        """Plans of an epoch, a stretch after the other."""
        batches, uses = self._batches, self._next_uses(steps)
        sizes = np.diff(batches.offsets)[steps]
        stretch_of_step = np.cumsum(sizes) // STRETCH_ENTRIES
        bounds = np.flatnonzero(np.diff(stretch_of_step)) + 1
        for stretch in np.split(steps, bounds):
            yield moved.add(planner.plan(_stream(batches, uses, stretch)))
        plans, moved.residents = planner.finish()
        yield moved.add(plans)

    def _next_uses(self, steps: NDArray[np.int64]) -> NDArray[np.int32] | None:
        if self._area.window is not None:
            return None
        batches, num_rows = self._batches, self._area.width.num_rows
        uses = array_in(0, self._output, batches.rows.shape, np.int32)
        next_step_of_row = array_in(self._room_bytes, self._output, (num_rows,), np.int32)
        next_step_of_row[:] = NEVER
        next_uses_backward(steps, batches.offsets, batches.rows, next_step_of_row, uses)
        return uses

    def _write(self, name: str, epoch: int, plans: list[StepPlans], steps: NDArray[np.int64]) -> None:
        if self._output.has(name):
            return
        first, last = plans[0].first_step, plans[-1].first_step + plans[-1].num_steps
        facts: dict[str, Any] = {"epoch": epoch, "embedding_dim": self._area.width.embedding_dim}
        facts |= {"kind": "plans", "first_step": first, "steps": last - first}
        batches = [steps[plan.first_step : plan.first_step + plan.num_steps] for plan in plans]
        num_samples = int(self._samples[steps[first:last]].sum())
        with self._output.writing(name, num_samples, **facts) as path:
            write_plans(path, plans, [self._numbers[places].astype(np.int32) for places in batches])


class Moved:
    """Sums over the plans of an epoch."""

    def __init__(self) -> None:
        self.residents: Residents | None = None
        self._sums: dict[str, int] = dict.fromkeys(
            ("steps", "shortened", "split", "hits", "misses", "rows_to_fast", "rows_made", "rows_to_slow"), 0
        )

    def add(self, plans: StepPlans) -> StepPlans:
        """Count ``plans`` in."""
        to_fast = int(plans.rows_to_fast(makes_first_uses=True).sum())
        found = {
            "steps": plans.num_steps,
            "shortened": int(plans.is_shortened.sum()),
            "split": int(plans.is_split.sum()),
            "hits": int(plans.num_hits.sum()),
            "misses": int(plans.num_misses.sum()),
            "rows_to_fast": to_fast,
            "rows_made": int(plans.rows_to_fast(makes_first_uses=False).sum()) - to_fast,
            "rows_to_slow": int(plans.rows_to_slow().sum()),
        }
        for key, number in found.items():
            self._sums[key] += number
        return plans

    def totals(self, row_bytes: int) -> dict[str, int]:
        """The sums with the residents, in rows and in bytes."""
        assert self.residents is not None
        sums = dict(self._sums)
        sums["rows_to_slow"] += self.residents.rows.size
        for way in ("to_fast", "to_slow"):
            sums[f"bytes_{way}"] = sums[f"rows_{way}"] * row_bytes
        return sums


def _stream(batches: ColdBatches, uses: NDArray[np.int32] | None, places: NDArray[np.int64]) -> RowStream:
    """The batches at ``places`` as a planner takes them."""

    def joined(values: NDArray[np.int32]) -> NDArray[np.int64]:
        spans = [values[batches.offsets[place] : batches.offsets[place + 1]] for place in places]
        return np.concatenate([np.empty(0, np.int32), *spans]).astype(np.int64)

    offsets = np.concatenate([[0], np.cumsum(np.diff(batches.offsets)[places])]).astype(np.int64)
    next_uses = None if uses is None else joined(uses)
    return RowStream(offsets, joined(batches.rows), joined(batches.lookups), next_uses)


def _files_of(plans: Iterator[StepPlans]) -> Iterator[list[StepPlans]]:
    """Consecutive plans that make a file."""
    group: list[StepPlans] = []
    num_bytes = 0
    for plan in plans:
        if not plan.num_steps:
            continue
        group.append(plan)
        num_bytes += 4 * plan.slots.size + 13 * plan.fetch_rows.size + 12 * plan.write_back_rows.size
        if num_bytes >= FILE_BYTES:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def _mixed_batches(shards: Manifest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the mixed batches among the training batches as a trainer counts them; their samples."""
    first = sum(entry.facts["batches"] for entry in shards.files if entry.facts["kind"] == "hot_only")
    numbers, samples, size = [], [], shards.config["batch_size"]
    for entry, mixed in mixed_files(shards):
        numbers += [first + number for number in mixed]
        samples += [min(size, entry.num_samples - number * size) for number in mixed]
        first += entry.facts["batches"]
    return np.array(numbers, np.int64), np.array(samples, np.int64)
