"""Placements that load cold rows into staging slots for the batches that use them: lookahead and cache.

`lookahead` keeps the hot rows on the fast tier permanently and stages the others by what is known of the
batches to come; `cache` keeps no row there permanently and decides by the past, as FreqCache does. Planners
are those of `stats`, so what is simulated is what runs; the step plans come out of a `PlanQueue`.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.distinct_rows import find_distinct
from ...stats.staging.staging_planner import CachePolicy, StagingPlanner, cache_planner, lookahead_planner
from ..data.batch import BatchIds, EmbeddingTable
from ..rows.step_plan import StepPlan
from ..rows.tiers import Layout
from .placements import Placement, cold_in_place


@dataclass(frozen=True, slots=True)
class ColdLookups:
    """The lookups of a batch whose rows live on the slow tier."""

    positions_N: NDArray[np.int64]
    """Positions among the lookups of the batch, ascending."""
    rows_U: NDArray[np.int64]
    """Slots on the slow tier of the distinct rows, in order of first appearance."""
    inverse_N: NDArray[np.int32]
    """Which of them each lookup reads."""

    @property
    def lookups_of_rows(self) -> NDArray[np.int64]:
        """Lookups of each distinct row."""
        return np.bincount(self.inverse_N, minlength=self.rows_U.size)


class StagingPlacement(Placement):
    """Cold rows are loaded into slots of the fast tier, updated there, and written back.

    Args:
        tables: those of one row width.
        num_slots: staging slots, at least 1.
        prefetch: P, batches that a transfer may run ahead.
    """

    stages_hot_only: bool
    """Whether batches that look up hot rows alone need staging too."""
    needs_whole_epoch: bool
    """Whether the planner wants all batches of an epoch before it plans the first."""

    def __init__(self, tables: Sequence[EmbeddingTable], num_slots: int, prefetch: int) -> None:
        super().__init__(tables)
        self.num_staging_slots = num_slots
        self.prefetch = prefetch

    @abstractmethod
    def planner(self, location_of_row: NDArray[np.int32] | None = None) -> StagingPlanner:
        """Build a planner for a new run, perhaps with memory for its array of all cold rows."""

    def cold_lookups(self, ids: BatchIds) -> ColdLookups:
        """The lookups that staging slots have to serve."""
        rows_N, num_absent = self.slow.locate(ids)
        positions_N = np.arange(rows_N.size) if num_absent == 0 else np.flatnonzero(rows_N >= 0)
        rows_U, inverse_N = find_distinct(rows_N[positions_N])
        return ColdLookups(positions_N, rows_U, inverse_N)

    def plan(self, ids: BatchIds, *, is_hot_only: bool) -> StepPlan:
        raise NotImplementedError("step plans of staging come from an epoch's PlanQueue")

    def plan_evaluation(self, ids: BatchIds, *, is_replica_current: bool) -> StepPlan:
        """Cold rows in place: staged ones have been written back before."""
        rows_N, _ = self.slow.locate(ids)
        return cold_in_place(self.fast, rows_N, ids)


class Lookahead(StagingPlacement):
    """Hot rows live on the fast tier; the staged row that is evicted is the one with the farthest next use.

    Args:
        tables: those of one row width.
        num_slots: staging slots.
        prefetch: P.
        window: batches known ahead; None: the epoch.
    """

    name = "lookahead"
    stages_hot_only = False

    def __init__(
        self, tables: Sequence[EmbeddingTable], num_slots: int, prefetch: int, window: int | None
    ) -> None:
        super().__init__(tables, num_slots, prefetch)
        self.fast = Layout.of(self.none, self.num_hot)
        self.slow = Layout.of(self.num_hot, self.num_rows)
        self.window = window
        self.needs_whole_epoch = window is None

    def planner(self, location_of_row: NDArray[np.int32] | None = None) -> StagingPlanner:
        return lookahead_planner(
            max(self.slow.num_own_slots, 1),
            self.num_staging_slots,
            prefetch=self.prefetch,
            window=self.window,
            splits=True,
            location_of_row=location_of_row,
        )


class Cache(StagingPlacement):
    """Every row lives on the slow tier; slots keep the rows that the policy expects to be needed again.

    Args:
        tables: those of one row width.
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
    needs_whole_epoch = False

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

    def planner(self, location_of_row: NDArray[np.int32] | None = None) -> StagingPlanner:
        # Rows from the most to the least frequent, and the rank of each row in that order.
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
