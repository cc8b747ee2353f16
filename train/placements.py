"""Placements: where rows live, and the step plan of each batch.

`all-fast` needs no plan at all. `hybrid` and `hybrid-dedup` keep every row on the slow tier and do the
embedding work there: one vector per look-up each way, as DLRM and XDL do, or one per distinct row of a
batch. `fae` keeps a replica of the hot rows on the fast tier. A placement decides what moves and nothing
else: on the CPU all of them give equal bits on the same order of batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..stats.step_plans import find_distinct
from .loader import Batch, Table
from .step_plan import NOTHING_TO_MOVE, InPlace, StepPlan
from .tiers import Layout


class Placement(ABC):
    """A planner of step plans, for one run over tables of given sizes."""

    name: ClassVar[str]
    fast: Layout
    """Rows whose slots on the fast tier are reserved for them."""
    slow: Layout
    """Rows that have a slot on the slow tier."""
    num_staging_slots: int = 0
    """Slots of the fast tier behind those."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.num_rows = [table.num_rows for table in tables]
        self.num_hot = [table.num_hot for table in tables]
        self.none = [0] * len(tables)

    @abstractmethod
    def plan(self, batch: Batch) -> StepPlan:
        """The step plan of the next training batch."""

    @abstractmethod
    def plan_evaluation(self, batch: Batch) -> StepPlan:
        """A plan that reads the newest weights and moves no row for good."""

    def plan_finish(self) -> StepPlan:
        """What brings every row home after the last step."""
        return NOTHING_TO_MOVE


class AllFast(Placement):
    """Every row on the fast tier: the yardstick."""

    name = "all-fast"

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.none, self.num_rows)
        self.slow = Layout.of(self.none, self.none)

    def plan(self, batch: Batch) -> StepPlan:
        return NOTHING_TO_MOVE

    def plan_evaluation(self, batch: Batch) -> StepPlan:
        return NOTHING_TO_MOVE


class Hybrid(Placement):
    """Every row on the slow tier; one vector per look-up goes up and one gradient comes back."""

    name = "hybrid"

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.none, self.none)
        self.slow = Layout.of(self.none, self.num_rows)

    def plan(self, batch: Batch) -> StepPlan:
        return StepPlan(in_place=all_in_place(self.slow, batch.ids_BF))

    def plan_evaluation(self, batch: Batch) -> StepPlan:
        return self.plan(batch)


class HybridDedup(Hybrid):
    """Every row on the slow tier; each distinct row of a batch travels once each way."""

    name = "hybrid-dedup"

    def plan(self, batch: Batch) -> StepPlan:
        rows_N, inverse_N = find_distinct(all_in_place(self.slow, batch.ids_BF).rows_N)
        return StepPlan(in_place=InPlace(rows_N, inverse_N))


def all_in_place(slow: Layout, ids_BF: NDArray[np.int32]) -> InPlace:
    """Every look-up of a batch in place on a slow tier that holds every row."""
    rows_N, num_absent = slow.locate(ids_BF)
    assert num_absent == 0, "the slow tier holds every row"
    return InPlace(rows_N)
