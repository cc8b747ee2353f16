"""Placements: where rows live, and the step plan of each batch.

`all-fast` needs no plan at all. `hybrid` and `hybrid-dedup` keep every row on the slow tier and do the
embedding work there: one vector per bag each way, as DLRM and XDL do, or one per distinct row of a
batch. `fae` keeps a replica of the hot rows on the fast tier. A placement decides what moves and nothing
else: on the CPU all of them give equal bits on the same order of batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.distinct_rows import find_distinct
from ..data.batch import BatchIds, EmbeddingTable
from ..rows.step_plan import NOTHING_TO_MOVE, InPlace, StepPlan
from ..rows.tiers import Layout


class Placement(ABC):
    """A planner of step plans, for one run over tables of given sizes."""

    name: ClassVar[str]
    fast: Layout
    """Rows that live on the fast tier, each in a slot of its own."""
    slow: Layout
    """Rows that have a slot on the slow tier."""
    num_staging_slots: int = 0
    """Staging slots of the fast tier, behind those of its own rows."""

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self.num_rows = [table.num_rows for table in tables]
        self.num_hot = [table.num_hot for table in tables]
        self.none = [0] * len(tables)

    @abstractmethod
    def plan(self, ids: BatchIds, *, is_hot_only: bool) -> StepPlan:
        """The step plan of the next training batch."""

    @abstractmethod
    def plan_evaluation(self, ids: BatchIds, *, is_replica_current: bool) -> StepPlan:
        """A plan that reads the newest weights and moves no row for good.

        Args:
            ids: the lookups.
            is_replica_current: whether rows that both tiers hold are newer on the fast one. Batches are
                planned ahead of those computed, so a placement cannot know it.
        """

    def plan_finish(self) -> StepPlan:
        """The plan that writes every row back after the last step."""
        return NOTHING_TO_MOVE


class AllFast(Placement):
    """Every row on the fast tier: the reference for the others."""

    name = "all-fast"

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.none, self.num_rows)
        self.slow = Layout.of(self.none, self.none)

    def plan(self, ids: BatchIds, *, is_hot_only: bool) -> StepPlan:
        return NOTHING_TO_MOVE

    def plan_evaluation(self, ids: BatchIds, *, is_replica_current: bool) -> StepPlan:
        return NOTHING_TO_MOVE


class Hybrid(Placement):
    """Every row on the slow tier; one vector per bag is sent to the fast tier, one gradient back."""

    name = "hybrid"

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.none, self.none)
        self.slow = Layout.of(self.none, self.num_rows)

    def plan(self, ids: BatchIds, *, is_hot_only: bool) -> StepPlan:
        return StepPlan(in_place=all_in_place(self.slow, ids))

    def plan_evaluation(self, ids: BatchIds, *, is_replica_current: bool) -> StepPlan:
        return self.plan(ids, is_hot_only=False)


class HybridDedup(Hybrid):
    """Every row on the slow tier; the vector of each distinct row of a batch is sent once, its gradient
    back."""

    name = "hybrid-dedup"

    def plan(self, ids: BatchIds, *, is_hot_only: bool) -> StepPlan:
        rows_N, inverse_N = find_distinct(all_in_place(self.slow, ids).rows_N)
        return StepPlan(in_place=InPlace(rows_N, inverse_N))


def all_in_place(slow: Layout, ids: BatchIds) -> InPlace:
    """Serve every lookup of a batch in place, on a slow tier that holds every row."""
    rows_N, num_absent = slow.locate(ids)
    assert num_absent == 0, "the slow tier holds every row"
    return InPlace(rows_N)


def cold_in_place(fast: Layout, rows_N: NDArray[np.int64], ids: BatchIds) -> StepPlan:
    """Serve lookups of rows that live on the fast tier there, the others in place.

    Args:
        fast: rows that live on the fast tier.
        rows_N: (N,); slot on the slow tier of each lookup, read for the others alone.
        ids: the lookups.
    """
    slots_N, num_cold = fast.locate(ids)
    if num_cold == 0:
        return NOTHING_TO_MOVE
    positions_N = np.flatnonzero(slots_N < 0)
    return StepPlan(in_place=InPlace(rows_N[positions_N], positions_N=positions_N))
