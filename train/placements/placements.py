"""Placements: where rows live, and the step plan of each batch.

`all-fast` needs no plan. `hybrid` and `hybrid-dedup` keep every row on the slow tier and do the embedding
work there: one vector per bag each way, as DLRM and XDL do, or one per distinct row of a batch. `fae` keeps a
replica of the hot rows on the fast tier. `lookahead` and `cache` load cold rows into staging slots for the
batches that use them: `lookahead` keeps the hot rows on the fast tier permanently and stages the others by
what is known of the batches to come; `cache` keeps no row there permanently and decides by the past, as
FreqCache does.

A placement decides only what moves: on the CPU all of them give equal bits on the same order of batches.
Planners are those of `stats`, so what is simulated is what runs; the step plans come out of a `PlanQueue`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow, find_distinct
from ...stats.lookahead.planner import CachePolicy, StagingPlanner, cache_planner, lookahead_planner
from ...stats.lookahead.step_plans import in_order
from ...stats.lookahead.window import WINDOW_BYTES, Window
from ..data.batch import BatchIds, EmbeddingTable
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

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        self.num_rows = [table.num_rows for table in tables]
        self.num_hot = [table.num_hot for table in tables]
        self.none = [0] * len(tables)

    @abstractmethod
    def plan(self, *, is_hot_only: bool) -> StepPlan:
        """The step plan of the next training batch."""

    @abstractmethod
    def plan_evaluation(self, *, is_replica_current: bool) -> StepPlan:
        """A plan that reads the newest weights and moves no row for good.

        Args:
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

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return NOTHING_TO_MOVE

    def plan_evaluation(self, *, is_replica_current: bool) -> StepPlan:
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

    def plan_evaluation(self, *, is_replica_current: bool) -> StepPlan:
        return self.plan(is_hot_only=False)


class HybridDedup(Hybrid):
    """Every row on the slow tier; one vector per distinct row crosses each way."""

    name = "hybrid-dedup"

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return ROWS_IN_PLACE


# ruff: noqa: N815  (tensors carry shape suffixes)


@dataclass(frozen=True, slots=True)
class ColdRows:
    """The distinct rows of a batch that live on the slow tier."""

    rows_U: NDArray[np.int64]
    """Slots on the slow tier, ascending: in order of table and id."""
    lookups_U: NDArray[np.int64]
    """Lookups of each."""


class StagingPlacement(Placement):
    """Loads cold rows into slots, updates them there, and writes them back.

    Args:
        tables: those of one table group.
        num_slots: staging slots, at least 1.
        prefetch: P, batches that a transfer may run ahead.
    """

    stages_hot_only: bool
    """Whether batches that look up hot rows alone need staging too."""

    def __init__(self, tables: Sequence[EmbeddingTable], num_slots: int, prefetch: int) -> None:
        super().__init__(tables)
        self.num_staging_slots = num_slots
        self.prefetch = prefetch

    @abstractmethod
    def planner(
        self, window_bytes: int = WINDOW_BYTES, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        """Build a planner for a new run.

        Args:
            window_bytes: memory that the rows of batches known ahead may take.
            location_of_row: (cold rows,), memory for the only array that grows with the rows.
        """

    def cold_rows(self, lookups: LookupsByRow) -> ColdRows:
        """The rows that staging slots have to serve."""
        rows_U, num_absent = self.slow.slots_of(lookups)
        counts_U = lookups.counts_U.astype(np.int64)
        if num_absent == 0:
            return ColdRows(rows_U, counts_U)
        is_cold = rows_U >= 0
        return ColdRows(rows_U[is_cold], counts_U[is_cold])

    def find_cold_rows(self, ids: BatchIds) -> ColdRows:
        """Find the cold rows of lookups that are not grouped by row.

        Hashing is faster, since most lookups are of hot rows.
        """
        rows_N, num_absent = self.slow.locate(ids)
        rows_U, inverse_N = find_distinct(rows_N if num_absent == 0 else rows_N[rows_N >= 0])
        return ColdRows(*in_order(rows_U, np.bincount(inverse_N, minlength=rows_U.size)))

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        raise NotImplementedError("step plans of staging come from an epoch's PlanQueue")

    def plan_evaluation(self, *, is_replica_current: bool) -> StepPlan:
        """Cold rows in place: staged ones have been written back before."""
        return COLD_ROWS_IN_PLACE


class Lookahead(StagingPlacement):
    """Hot rows live on the fast tier, and staging follows Belady's rule.

    The staged row that is evicted is the one with the farthest next use.

    Args:
        tables: those of one table group.
        num_slots: staging slots.
        prefetch: P.
        knows_run: whether the run is planned as a whole, with the next use of every row given.
    """

    name = "lookahead"
    stages_hot_only = False

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        num_slots: int,
        prefetch: int,
        *,
        knows_run: bool = False,
    ) -> None:
        super().__init__(tables, num_slots, prefetch)
        self.fast = Layout.of(self.none, self.num_hot)
        self.slow = Layout.of(self.num_hot, self.num_rows)
        self._knows_run = knows_run

    def planner(
        self, window_bytes: int = WINDOW_BYTES, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        return lookahead_planner(
            max(self.slow.num_own_slots, 1),
            self.num_staging_slots,
            prefetch=self.prefetch,
            window=None if self._knows_run else Window(self.num_staging_slots, window_bytes),
            splits=True,
            location_of_row=location_of_row,
        )


class Cache(StagingPlacement):
    """Every row lives on the slow tier; slots cache rows by a policy.

    The policy keeps the rows that it expects to be needed again.

    Args:
        tables: those of one table group.
        num_slots: slots of the cache.
        prefetch: P.
        policy: which row is evicted.
        batches_per_item: batches whose rows are loaded together.
        warmup_ratio: share of the slots filled before the first batch.
        counts_N: (rows of all tables,); lookups of each row in the training part.

    Source:
        Fang et al., arXiv 2208.05321 (FreqCache), as released; rows move with their state here.
    """

    name = "cache"
    stages_hot_only = True

    def __init__(
        self,
        tables: Sequence[EmbeddingTable],
        num_slots: int,
        prefetch: int,
        policy: CachePolicy,
        batches_per_item: int,
        warmup_ratio: float,
        counts_N: NDArray[np.int64],
    ) -> None:
        super().__init__(tables, num_slots, prefetch)
        self.fast = Layout.of(self.none, self.none)
        self.slow = Layout.of(self.none, self.num_rows)
        self._policy = policy
        self._warmup_ratio = warmup_ratio
        self._batches_per_item = batches_per_item
        self._counts_N = counts_N

    def planner(
        self, window_bytes: int = WINDOW_BYTES, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        # Rows from the most to the least frequent, and the rank of each row in that order.
        # The most frequent row first; ties by number, so that every run warms up alike.
        order_N = np.argsort(-self._counts_N, kind="stable")
        rank_N = np.empty(order_N.size, np.int64)
        rank_N[order_N] = np.arange(order_N.size)
        # As many of the front as there are slots; the planner takes its share for the warm-up.
        warm_N = order_N[: self.num_staging_slots]
        return cache_planner(
            self._policy,
            self.slow.num_own_slots,
            self.num_staging_slots,
            prefetch=self.prefetch,
            batches_per_item=self._batches_per_item,
            warmup_ratio=self._warmup_ratio,
            warm_rows=warm_N,
            warm_counts=self._counts_N[warm_N],
            rank_of_row=rank_N,
            splits=True,
        )


class HybridUva(StagingPlacement):
    """Every row lives on the slow tier; slots hold one batch at a time.

    No transfer runs ahead.

    A row that the batch before did not look up is fetched, and one that the next does not is written back:
    the best that a GPU can do that reads host memory as it goes, without a cache and a plan.

    Args:
        tables: those of one table group.
        batch_size: samples of the largest batch.
    """

    name = "hybrid-uva"
    stages_hot_only = True

    def __init__(self, tables: Sequence[EmbeddingTable], batch_size: int) -> None:
        # Slots for whatever rows a batch has. A bag may have any of its table's.
        most = [table.num_rows if table.is_multi_hot else min(table.num_rows, batch_size) for table in tables]
        super().__init__(tables, max(sum(most), 1), prefetch=0)
        self.fast = Layout.of(self.none, self.none)
        self.slow = Layout.of(self.none, self.num_rows)

    def planner(
        self, window_bytes: int = WINDOW_BYTES, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        return cache_planner(
            "static",
            max(self.slow.num_own_slots, 1),
            self.num_staging_slots,
            prefetch=self.prefetch,
            warmup_ratio=0.0,
        )
