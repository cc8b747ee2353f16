"""What `verify` checks of a schedule: it is run, step by step, without a row being moved.

A slot that is read holds the row that the batch looks up; a row that leaves is in its slot and unused since
the step its transfer waits for; a slot that is filled is free; and what moves adds up to the totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.staging.step_plans import StepPlans
from ..folders.manifest import FileEntry, Manifest, first_line
from ..formats.arrow_files import DAMAGE
from ..formats.part_ids import PartIds
from ..scheduling.cold_batches import DistinctRows, Width, mixed_files, widths_of
from ..scheduling.epoch_plans import Moved
from ..scheduling.step_plan_files import read_plans, read_residents


def check_schedule_file(entry: FileEntry, schedule: Manifest) -> Iterator[str]:
    """The file can be read, and has the steps that the manifest says."""
    if entry.facts["kind"] == "residents":
        read_residents(schedule, entry)
        return
    num_steps, dim = 0, entry.facts["embedding_dim"]
    width = next(width for width in schedule.totals["widths"] if width["embedding_dim"] == dim)
    for plans, _ in read_plans(schedule, entry):
        for slots in (plans.slots, plans.fetch_slots, plans.write_back_slots):
            if slots.size and not 0 <= slots.min() <= slots.max() < width["num_slots"]:
                yield f"a slot is outside its {width['num_slots']} slots"
        for rows in (plans.fetch_rows, plans.write_back_rows):
            if rows.size and not 0 <= rows.min() <= rows.max() < width["num_rows"]:
                yield f"a row is outside its {width['num_rows']} cold rows"
        if plans.first_step != entry.facts["first_step"] + num_steps:
            yield f"its step {plans.first_step} does not follow the one before"
        num_steps += plans.num_steps
    if num_steps != entry.facts["steps"]:
        yield f"it has {num_steps} steps, want {entry.facts['steps']}"


def check_schedule(schedule: Manifest, shards: Manifest | None) -> Iterator[str]:
    """Run every epoch of every width; with ``shards`` the rows are compared with those looked up."""
    for facts in schedule.totals["widths"]:
        dim = facts["embedding_dim"]
        for epoch, wanted in enumerate(facts["epochs"]):
            where = f"{schedule.folder}: epoch {epoch} of width {dim}"
            run = _Run(facts, shards)
            try:
                fault = run.epoch(schedule, [e for e in schedule.files if _is_of(e, epoch, dim)])
                if fault is None and run.moved.totals(facts["row_bytes"]) != wanted:
                    fault = "what it moves is not what the manifest says"
            except DAMAGE as error:
                fault = first_line(error)
            if fault is not None:
                yield f"{where}: {fault}"


def _is_of(entry: FileEntry, epoch: int, dim: int) -> bool:
    return bool(entry.facts["epoch"] == epoch and entry.facts["embedding_dim"] == dim)


class _Run:
    """The staging area of one width during one epoch."""

    def __init__(self, facts: dict[str, Any], shards: Manifest | None) -> None:
        self._row_of_slot = np.full(facts["num_slots"], -1, np.int64)
        self._last_use = np.full(facts["num_slots"], -1, np.int64)
        self._home_since = np.full(facts["num_rows"], -1, np.int64)
        self._batches = None if shards is None else _Batches(shards, facts["embedding_dim"])
        self.moved = Moved()

    def epoch(self, schedule: Manifest, entries: list[FileEntry]) -> str | None:
        """Run it; returns the first fault."""
        for entry in entries:
            if entry.facts["kind"] != "plans":
                continue
            for plans, batches in read_plans(schedule, entry):
                self.moved.add(plans)
                for i in range(plans.num_steps):
                    fault = self._step(plans, i, int(batches[i]))
                    if fault:
                        return f"step {plans.first_step + i}: {fault}"
        residents = read_residents(schedule, next(e for e in entries if e.facts["kind"] == "residents"))
        self.moved.residents = residents
        held = np.flatnonzero(self._row_of_slot >= 0)
        if not np.array_equal(held, residents.slots) or (self._row_of_slot[held] != residents.rows).any():
            return "other rows are left in the slots than go home in the end"
        return None

    def _step(self, plans: StepPlans, i: int, batch: int) -> str | None:
        step, row_of_slot = plans.first_step + i, self._row_of_slot
        out = slice(*plans.write_back_offsets[i : i + 2])
        rows, slots = plans.write_back_rows[out], plans.write_back_slots[out]
        if not -1 <= plans.after[i] < max(step, 1) or not -1 <= plans.waits_for[i] < max(step, 1):
            return "it waits for a step that is not before it"
        if (row_of_slot[slots] != rows).any():
            return "a row goes home from a slot that does not hold it"
        if (self._last_use[slots] > plans.after[i]).any():
            return "a row goes home that a batch may still use"
        row_of_slot[slots], self._home_since[rows] = -1, step
        return self._serve(plans, i, step, batch)

    def _serve(self, plans: StepPlans, i: int, step: int, batch: int) -> str | None:
        row_of_slot, own = self._row_of_slot, slice(*plans.offsets[i : i + 2])
        fetched = slice(*plans.fetch_offsets[i : i + 2])
        rows, slots = plans.fetch_rows[fetched], plans.fetch_slots[fetched]
        looked_up = None if self._batches is None else self._batches.rows_of(batch)
        if (self._home_since[rows] > max(plans.waits_for[i], -1)).any():
            return "a row is fetched before it is home"
        if plans.is_split[i]:
            if (row_of_slot >= 0).any() or (looked_up is not None and not np.array_equal(rows, looked_up)):
                return "it runs in passes, but not over its own rows or not alone"
            self._home_since[rows] = step
            return None
        if (row_of_slot[slots] >= 0).any() or np.unique(slots).size < slots.size:
            return "a row comes to a slot that is taken"
        row_of_slot[slots] = rows
        found = row_of_slot[plans.slots[own]]
        if (found < 0).any() or np.unique(found).size < found.size:
            return "a slot is read that holds no row, or another look-up's"
        if looked_up is not None and not np.array_equal(found, looked_up):
            return f"its slots do not hold the rows that batch {batch} looks up"
        self._last_use[plans.slots[own]] = step
        return None


class _Batches:
    """Mixed batches of shards by number."""

    def __init__(self, shards: Manifest, embedding_dim: int) -> None:
        self._shards, self._distinct = shards, DistinctRows()
        self._width: Width = next(w for w in widths_of(shards) if w.embedding_dim == embedding_dim)
        first = sum(entry.facts["batches"] for entry in shards.files if entry.facts["kind"] == "hot_only")
        self._places: dict[int, tuple[FileEntry, int]] = {}
        for entry, mixed in mixed_files(shards):
            self._places |= {first + number: (entry, number) for number in mixed}
            first += entry.facts["batches"]
        self._readers: dict[str, Any] = {}

    def rows_of(self, number: int) -> NDArray[np.int32] | None:
        """Distinct cold rows of a training batch; nothing that could be equal where it is none."""
        if number not in self._places:
            return np.full(1, -1, np.int32)
        entry, index = self._places[number]
        if entry.path not in self._readers:
            self._readers[entry.path] = pa.ipc.open_file(pa.memory_map(str(self._shards.checked_path(entry))))
        batch = self._readers[entry.path].get_batch(index)
        ids = PartIds.read(batch, self._shards.totals["tables"])
        return self._distinct.of_batch(ids, batch.num_rows, self._width)[0]
