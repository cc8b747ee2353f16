"""Placements: where rows live, and the step plan of each batch.

`all-fast` needs no plan. `hybrid` and `hybrid-dedup` keep every row on the slow tier and do the embedding
work there: one vector per bag each way, as DLRM and XDL do, or one per distinct row of a batch. `fae` keeps a
replica of the hot rows on the fast tier. `lookahead` and `cache` load cold rows into staging slots for the
batches that use them: `lookahead` keeps the hot rows on the fast tier permanently and stages the others by
what is known of the batches to come; `cache` keeps no row there permanently and decides by the past, as
FreqCache does.

A placement decides only what moves: on the CPU all of them give equal bits on the same order of batches.
Those that stage rows are in `staging`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ..data.batch import EmbeddingTable
from ..rows.step_plan import NOTHING_TO_MOVE, InPlace, StepPlan
from ..rows.tiers import Layout

BAGS_IN_PLACE = StepPlan(in_place=InPlace("bags"))
"""All rows stay on the slow tier, one vector per bag is sent."""
COLD_ROWS_IN_PLACE = StepPlan(in_place=InPlace("rows", is_whole=False))
"""Rows that live on the fast tier are read there, the vectors of others are sent (evaluation)."""
ROWS_IN_PLACE = StepPlan(in_place=InPlace("rows"))
"""All rows stay on the slow tier, the vector of each distinct row is sent."""


class Placement(ABC):
    """A planner of step plans, for one run over tables of given sizes."""

    name: ClassVar[str]
    fast: Layout
    """Rows that live on the fast tier, each in a fixed slot."""
    slow: Layout
    """Rows that have a slot on the slow tier."""
    num_staging_slots: int = 0
    """Staging slots of the fast tier, after those of the rows that live there."""
    is_staging: ClassVar[bool] = False
    """Whether it is a `staging.StagingPlacement`."""

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self.num_rows = [table.num_rows for table in tables]
        self.num_hot = [table.num_hot for table in tables]
        self.none = [0] * len(tables)

    @abstractmethod
    def plan(self, *, is_hot_only: bool) -> StepPlan:
        """The step plan of the next training batch."""

    @abstractmethod
    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        """A plan that reads the newest weights and moves no row for good.

        Args:
            is_stale: whether rows that both tiers hold are newer on the fast one. Batches are
                planned ahead of those computed, so a placement cannot know it.
        """


class AllFast(Placement):
    """Every row on the fast tier: the reference for the others."""

    name = "all-fast"

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.none, self.num_rows)
        self.slow = Layout.of(self.none, self.none)

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return NOTHING_TO_MOVE

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        return NOTHING_TO_MOVE


class Hybrid(Placement):
    """Every row on the slow tier; one vector per bag crosses each way."""

    name = "hybrid"

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.none, self.none)
        self.slow = Layout.of(self.none, self.num_rows)

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return BAGS_IN_PLACE

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        return self.plan(is_hot_only=False)


class HybridDedup(Hybrid):
    """Every row on the slow tier; one vector per distinct row crosses each way."""

    name = "hybrid-dedup"

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return ROWS_IN_PLACE
