"""Placements that load cold rows into staging slots, and the queue of their step plans.

Planners are those of `stats`, so what is simulated is what runs. A planner answers in chunks, each with the
plans of some steps as flat arrays; the queue takes single step plans out of them in the order of batches,
with slots counted on the whole fast tier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow, find_distinct
from ...stats.lookahead.planner import CachePolicy, StagingPlanner, cache_planner, lookahead_planner
from ...stats.lookahead.step_plans import RowStream, StepPlans, Window, in_order
from ..data.batch import BatchIds, EmbeddingTable
from ..rows.step_plan import (
    COLD_ROWS_IN_PLACE,
    NOTHING_TO_MOVE,
    ColdRows,
    Placement,
    SplitBatch,
    StepPlan,
    Transfer,
)
from ..rows.tiers import Layout, Moves


class StagingPlacement(Placement):
    """Loads cold rows into slots, updates them there, and writes them back.

    Args:
        tables: those of one table group.
        num_slots: staging slots, at least 1.
        prefetch: P, batches that a transfer may run ahead.
    """

    is_staging = True
    stages_hot_only: bool
    """Whether batches that look up hot rows alone need staging too."""

    def __init__(self, tables: Sequence[EmbeddingTable], num_slots: int, prefetch: int) -> None:
        super().__init__(tables)
        self.num_staging_slots = num_slots
        self.prefetch = prefetch

    @abstractmethod
    def planner(
        self, window_bytes: int | None, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        """Build a planner for a new run.

        Args:
            window_bytes: memory that the rows of batches known ahead may take; None: the run is planned as a
                whole, with the next use of every row given.
            location_of_row: (cold rows,), memory for the only array that grows with the rows.
        """

    def cold_rows(self, lookups: LookupsByRow) -> ColdRows:
        rows_U, num_absent = self.slow.slots_of(lookups)
        counts_U = lookups.counts_U.astype(np.int64)
        if num_absent == 0:
            return ColdRows(rows_U, counts_U)
        is_cold = rows_U >= 0
        return ColdRows(rows_U[is_cold], counts_U[is_cold])

    def find_cold_rows(self, ids: BatchIds) -> ColdRows:
        # Hashing is faster than grouping all by row, since most lookups are of hot rows.
        rows_N, num_absent = self.slow.locate(ids)
        rows_U, inverse_N = find_distinct(rows_N if num_absent == 0 else rows_N[rows_N >= 0])
        return ColdRows(*in_order(rows_U, np.bincount(inverse_N, minlength=rows_U.size)))

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        """Return the plan of a batch that needs no staging; the others come from a `PlanQueue`."""
        return NOTHING_TO_MOVE

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        """Cold rows in place: staged ones have been written back before."""
        return COLD_ROWS_IN_PLACE


class Lookahead(StagingPlacement):
    """Hot rows live on the fast tier, and staging follows Belady's rule.

    The staged row that is evicted is the one with the farthest next use.
    """

    name = "lookahead"
    stages_hot_only = False

    def __init__(self, tables: Sequence[EmbeddingTable], num_slots: int, prefetch: int) -> None:
        super().__init__(tables, num_slots, prefetch)
        self.fast = Layout.of(self.no_rows, self.num_hot)
        self.slow = Layout.of(self.num_hot, self.num_rows)

    def planner(
        self, window_bytes: int | None, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        return lookahead_planner(
            max(self.slow.num_own_slots, 1),
            self.num_staging_slots,
            prefetch=self.prefetch,
            window=None if window_bytes is None else Window(self.num_staging_slots, window_bytes),
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
        self._policy = policy
        self._warmup_ratio = warmup_ratio
        self._batches_per_item = batches_per_item
        self._counts_N = counts_N

    def planner(
        self, window_bytes: int | None, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        # Rows from the most to the least frequent, and the rank of each row in that order; ties by number, so
        # that every run warms up alike.
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
    """

    name = "hybrid-uva"
    stages_hot_only = True

    def __init__(self, tables: Sequence[EmbeddingTable], batch_size: int) -> None:
        # Slots for whatever rows a batch has. A bag may have any of its table's.
        most = [table.num_rows if table.is_multi_hot else min(table.num_rows, batch_size) for table in tables]
        super().__init__(tables, max(sum(most), 1), prefetch=0)

    def planner(
        self, window_bytes: int | None, location_of_row: NDArray[np.int32] | None = None
    ) -> StagingPlanner:
        return cache_planner(
            "static",
            max(self.slow.num_own_slots, 1),
            self.num_staging_slots,
            prefetch=self.prefetch,
            warmup_ratio=0.0,
        )


@dataclass(frozen=True, slots=True)
class ChunkFetches:
    """Where the rows that a chunk of steps moves come from and go to."""

    of_write_backs: NDArray[np.int64]
    """(num_write_backs,); next fetch of each row, -1: none."""
    of_splits: NDArray[np.int64]
    """(num_fetches,) where a step of the chunk is split; next fetch of the rows of such steps."""


@dataclass(frozen=True, slots=True)
class EpochFetches:
    """The same for an epoch."""

    first_fetch: int
    """Number of its first fetch."""
    chunks: tuple[ChunkFetches, ...]
    of_residents: NDArray[np.int64]
    """(num_residents,)."""


class PlanQueue:
    """The step plans of one table group for one epoch."""

    def __init__(self, placement: StagingPlacement, planner: StagingPlanner) -> None:
        self._placement = placement
        self._planner = planner
        self._chunks: deque[StepPlans] = deque()
        self._fetches: deque[ChunkFetches] = deque()
        """Next fetches of the rows that each chunk writes back, where the slow tier is a file."""
        self._next_fetch = 0
        """Number of the next fetch, there."""
        self._num_taken = 0
        self.num_planned = 0
        """Step plans of the epoch so far, those taken included."""
        self.flush = Transfer()
        """Writes back what is staged after the last step."""

    def add(self, cold: ColdRows) -> None:
        """Add the next batch of the epoch."""
        for plans in self._planner.plan(RowStream.of([cold.rows_U], [cold.lookups_U])):
            self._add_chunk(plans)

    def finish(self) -> None:
        """Plan what is left: no batch follows in this epoch."""
        for plans in self._planner.plan_rest():
            self._add_chunk(plans)
        self._end_epoch()

    def _add_chunk(self, plans: StepPlans) -> None:
        """Add step plans that follow those added before."""
        self._chunks.append(plans)
        self.num_planned += plans.num_steps

    @property
    def chunks(self) -> tuple[StepPlans, ...]:
        """The plans not taken yet."""
        return tuple(self._chunks)

    def _end_epoch(self) -> None:
        """Write back what is staged after the last step."""
        residents = self._planner.end_epoch()
        self.flush = Transfer(write_back=self._moves(residents.rows, residents.slots))

    def set_fetches(self, fetches: EpochFetches) -> None:
        """Set where rows come from and go: all plans there, none taken."""
        self._fetches.extend(fetches.chunks)
        self._next_fetch = fetches.first_fetch
        self.flush = Transfer(write_back=replace(self.flush.write_back, fetches_N=fetches.of_residents))

    def take(self, rows_U: NDArray[np.int64], *, is_fresh: bool) -> StepPlan:
        """The plan of the next step.

        Args:
            rows_U: its distinct cold rows, as they were added.
            is_fresh: whether rows that no batch has used still have their initial values.
        """
        # The chunk of this step, and the step's number in it; a chunk is dropped with its last step.
        plans = self._chunks[0]
        fetches = self._fetches[0] if self._fetches else None
        step = self._num_taken - plans.first_step
        self._num_taken += 1
        if step == plans.num_steps - 1:
            self._chunks.popleft()
            if fetches is not None:
                self._fetches.popleft()
        is_shortened = bool(plans.is_shortened[step])

        # Planners count staging slots from 0; on the fast tier they follow the slots of hot rows.
        first_slot = np.int64(self._placement.fast.num_own_slots)
        staged_U = plans.slots[plans.offsets[step] : plans.offsets[step + 1]] + first_slot

        left = slice(plans.write_back_offsets[step], plans.write_back_offsets[step + 1])
        write_back = self._moves(plans.write_back_rows[left], plans.write_back_slots[left])
        came = slice(plans.fetch_offsets[step], plans.fetch_offsets[step + 1])
        rows = plans.fetch_rows[came]
        slots = plans.fetch_slots[came]
        # A row that no batch has used is initialized in its slot rather than fetched.
        is_first = plans.fetch_is_first[came] if is_fresh else np.zeros(rows.size, np.bool_)
        after = int(plans.after[step])
        # Numbers of the fetches, where rows are found by them.
        numbers = None
        if fetches is not None:
            assert is_fresh, "rows in a file are initialized at their first use"
            write_back = replace(write_back, fetches_N=fetches.of_write_backs[left])
            numbers = np.where(is_first, -1, self._next_fetch + np.cumsum(~is_first) - 1)
            self._next_fetch += int(np.count_nonzero(~is_first))

        # More rows than slots: the transfer only makes room, rows are loaded pass by pass.
        if plans.is_split[step]:
            split = SplitBatch(rows_U, is_first, self._placement.num_staging_slots)
            if fetches is not None:
                split = replace(split, fetches_U=numbers, next_fetches_U=fetches.of_splits[came])
            return StepPlan(transfer=Transfer(after, write_back), split=split, is_shortened=is_shortened)
        transfer = Transfer.of(self._moves(rows, slots, numbers), is_first, after, write_back)
        return StepPlan(transfer=transfer, staged_U=staged_U, is_shortened=is_shortened)

    def _moves(
        self, rows: NDArray[np.int32], slots: NDArray[np.int32], fetches: NDArray[np.int64] | None = None
    ) -> Moves:
        return Moves(rows.astype(np.int64), slots + np.int64(self._placement.fast.num_own_slots), fetches)
