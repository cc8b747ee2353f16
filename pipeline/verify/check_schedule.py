"""The check of a schedule: it is run, step by step, without a row being moved.

A slot that is read holds the row that the batch looks up; a row that leaves is in its slot and unused since
the step its transfer waits for; a slot that is filled is free; and what moves adds up to the totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.staging.step_plans import StepPlans
from ..errors import first_line, refuse_system_fault
from ..folders.file_facts import ScheduleFacts, ShardFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ScheduledWidth, ScheduleTotals, ShardsTotals
from ..formats.arrow_files import DAMAGE, open_mapped
from ..formats.part_ids import PartIds
from ..scheduling.cold_batches import ColdWidth, DistinctRows, cold_widths, mixed_files
from ..scheduling.epoch_plans import EpochSums, num_hot_only_batches
from ..scheduling.step_plan_files import read_plans, read_residents


def check_schedule_file(entry: FileEntry, schedule: Manifest) -> Iterator[str]:
    """The file can be read, and has the steps that the manifest says."""
    facts = ScheduleFacts.of(schedule, entry)
    if facts.kind == "residents":
        read_residents(schedule, entry)
        return
    widths = {width.embedding_dim: width for width in ScheduleTotals.of(schedule).widths}
    # Slots and rows index the tiers of a trainer, so their ranges come first.
    width = widths[facts.embedding_dim]
    num_steps = 0
    for plans, _ in read_plans(schedule, entry):
        for slots in (plans.slots, plans.fetch_slots, plans.write_back_slots):
            if slots.size and not 0 <= slots.min() <= slots.max() < width.num_slots:
                yield f"a slot is outside its {width.num_slots} slots"
        for rows in (plans.fetch_rows, plans.write_back_rows):
            if rows.size and not 0 <= rows.min() <= rows.max() < width.num_rows:
                yield f"a row is outside its {width.num_rows} cold rows"
        if plans.first_step != (facts.first_step or 0) + num_steps:
            yield f"its step {plans.first_step} does not follow the one before"
        num_steps += plans.num_steps
    if num_steps != facts.num_steps:
        yield f"it has {num_steps} steps, want {facts.num_steps}"


def check_schedule(schedule: Manifest, shards: Manifest | None) -> Iterator[str]:
    """Run every epoch of every width; with ``shards`` the rows are compared with those looked up."""
    # Each width has a staging area of its own, and each epoch begins with it empty.
    for width in ScheduleTotals.of(schedule).widths:
        dim = width.embedding_dim
        for epoch, wanted in enumerate(width.epochs):
            where = f"{schedule.folder}: epoch {epoch} of width {dim}"
            try:
                run = _Run(width, shards)
                fault = run.epoch(schedule, _files_of(schedule, epoch, dim))
                if fault is None and run.moved.totals(width.row_bytes) != wanted:
                    fault = "what it moves is not what the manifest says"
            except DAMAGE as error:
                refuse_system_fault(schedule.folder, error)
                fault = first_line(error)
            if fault is not None:
                yield f"{where}: {fault}"


def _files_of(schedule: Manifest, epoch: int, dim: int) -> list[tuple[FileEntry, ScheduleFacts]]:
    """The files of one epoch and width, with their facts."""
    files = [(entry, ScheduleFacts.of(schedule, entry)) for entry in schedule.files]
    return [(entry, facts) for entry, facts in files if (facts.epoch, facts.embedding_dim) == (epoch, dim)]


class _Run:
    """The staging area of one width during one epoch."""

    def __init__(self, width: ScheduledWidth, shards: Manifest | None) -> None:
        self._row_of_slot = np.full(width.num_slots, -1, np.int64)
        self._last_use = np.full(width.num_slots, -1, np.int64)
        self._slow_since = np.full(width.num_rows, -1, np.int64)
        self._batches = None if shards is None else _Batches(shards, width.embedding_dim)
        self.moved = EpochSums()

    def epoch(self, schedule: Manifest, files: list[tuple[FileEntry, ScheduleFacts]]) -> str | None:
        """Run it; returns the first fault."""
        # Steps are run one after another over all files, as a trainer would.
        for entry, facts in files:
            if facts.kind != "plans":
                continue
            for plans, batches in read_plans(schedule, entry):
                self.moved.add(plans)
                for i in range(plans.num_steps):
                    fault = self._step(plans, i, int(batches[i]))
                    if fault:
                        return f"step {plans.first_step + i}: {fault}"
        # One file of residents ends the epoch.
        left = [entry for entry, facts in files if facts.kind == "residents"]
        if len(left) != 1:
            return f"it has {len(left)} files of residents, want 1"
        residents = read_residents(schedule, left[0])
        self.moved.residents = residents
        # What is still in the slots after the last step is what the epoch writes back at its end.
        held = np.flatnonzero(self._row_of_slot >= 0)
        if not np.array_equal(held, residents.slots) or (self._row_of_slot[held] != residents.rows).any():
            return "the rows left in the slots are not those written back at the end"
        return None

    def _step(self, plans: StepPlans, i: int, batch: int) -> str | None:
        step = plans.first_step + i
        row_of_slot = self._row_of_slot
        out = slice(*plans.write_back_offsets[i : i + 2])
        rows = plans.write_back_rows[out]
        slots = plans.write_back_slots[out]
        # Write-backs come before loads: they free the slots.
        if not -1 <= plans.after[i] < max(step, 1) or not -1 <= plans.waits_for[i] < max(step, 1):
            return "it waits for a step that is not before it"
        if (row_of_slot[slots] != rows).any():
            return "a row is written back from a slot that does not hold it"
        if (self._last_use[slots] > plans.after[i]).any():
            return "a row is written back that a batch may still use"
        row_of_slot[slots] = -1
        self._slow_since[rows] = step
        return self._serve(plans, i, step, batch)

    def _serve(self, plans: StepPlans, i: int, step: int, batch: int) -> str | None:
        row_of_slot = self._row_of_slot
        own = slice(*plans.offsets[i : i + 2])
        fetched = slice(*plans.fetch_offsets[i : i + 2])
        rows = plans.fetch_rows[fetched]
        slots = plans.fetch_slots[fetched]
        # Loads: of rows whose write-back the transfer waits for, into slots that are free.
        looked_up = None if self._batches is None else self._batches.rows_of(batch)
        if (self._slow_since[rows] > max(plans.waits_for[i], -1)).any():
            return "a row is loaded before it is written back"
        if plans.is_split[i]:
            if (row_of_slot >= 0).any() or (looked_up is not None and not np.array_equal(rows, looked_up)):
                return "it runs in passes, but not over its own rows or not alone"
            self._slow_since[rows] = step
            return None
        if (row_of_slot[slots] >= 0).any() or np.unique(slots).size < slots.size:
            return "a row is loaded into a slot that is taken"
        row_of_slot[slots] = rows
        # Now every row of the batch must stand in the slot that the plan reads.
        found = row_of_slot[plans.slots[own]]
        if (found < 0).any() or np.unique(found).size < found.size:
            return "a slot is read that holds no row, or another lookup's"
        if looked_up is not None and not np.array_equal(found, looked_up):
            return f"its slots do not hold the rows that batch {batch} looks up"
        self._last_use[plans.slots[own]] = step
        return None


class _Batches:
    """Mixed batches of shards by number."""

    def __init__(self, shards: Manifest, embedding_dim: int) -> None:
        self._shards = shards
        self._distinct = DistinctRows()
        # Where each mixed batch lies: file and number, by its number in the shards.
        widths = {width.embedding_dim: width for width in cold_widths(shards)}
        self._width: ColdWidth = widths[embedding_dim]
        first = num_hot_only_batches(shards)
        self._places: dict[int, tuple[FileEntry, int]] = {}
        for entry, mixed in mixed_files(shards):
            self._places |= {first + number: (entry, number) for number in mixed}
            first += ShardFacts.of(shards, entry).num_batches
        self._readers: dict[str, Any] = {}

    def rows_of(self, number: int) -> NDArray[np.int32] | None:
        """Distinct cold rows of a training batch; nothing that could be equal where it is none."""
        if number not in self._places:
            return np.full(1, -1, np.int32)
        entry, index = self._places[number]
        if entry.path not in self._readers:
            self._readers[entry.path] = open_mapped(self._shards.checked_path(entry))
        batch = self._readers[entry.path].get_batch(index)
        ids = PartIds.read(batch, ShardsTotals.of(self._shards).tables)
        return self._distinct.of_batch(ids, batch.num_rows, self._width)[0]
