"""Placements that bring cold rows to staging slots for the batches that use them: lookahead and cache.

`lookahead` keeps the hot rows on the fast tier for good and stages the others by what is known of the
batches to come; `cache` has no rows of its own there and decides by the past, as FreqCache does. Planners
are those of `stats`, so what is simulated is what runs.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.row_slots import find_distinct
from ...stats.staging.next_uses import next_uses
from ...stats.staging.staging_planner import CachePolicy, StagingPlanner, cache_planner, lookahead_planner
from ...stats.staging.step_plans import Residents, RowStream, StepPlans
from ..data.batch import BatchIds, Table
from ..rows.step_plan import Moves, Split, Staged, StepPlan, Transfer
from ..rows.tiers import Layout
from .placements import Placement, cold_in_place


@dataclass(frozen=True, slots=True)
class ColdLookups:
    """The look-ups of a batch whose rows live on the slow tier."""

    positions_N: NDArray[np.int64]
    """Ascending."""
    rows_U: NDArray[np.int64]
    """Slots on the slow tier of the distinct rows, in order of first appearance."""
    inverse_N: NDArray[np.int32]
    """Which of them each look-up reads."""

    @property
    def lookups_of_rows(self) -> NDArray[np.int64]:
        """Look-ups of each row."""
        return np.bincount(self.inverse_N, minlength=self.rows_U.size)


class Staging(Placement):
    """Cold rows come to slots of the fast tier, are updated there, and go home.

    Args:
        tables: of one row width.
        num_slots: staging slots, at least 1.
        prefetch: P, batches that a transfer may run ahead.
    """

    serves_hot_only: bool
    """Whether batches that look up hot rows alone need staging too."""
    needs_whole_epoch: bool
    """Whether the planner wants all batches of an epoch before it plans the first."""

    def __init__(self, tables: Sequence[Table], num_slots: int, prefetch: int) -> None:
        super().__init__(tables)
        self.num_staging_slots = num_slots
        self.prefetch = prefetch

    @abstractmethod
    def planner(self) -> StagingPlanner:
        """A planner for a new run."""

    def cold_lookups(self, ids: BatchIds) -> ColdLookups:
        """The look-ups that staging slots have to serve."""
        rows_N, num_absent = self.slow.locate(ids)
        positions_N = np.arange(rows_N.size) if num_absent == 0 else np.flatnonzero(rows_N >= 0)
        rows_U, inverse_N = find_distinct(rows_N[positions_N])
        return ColdLookups(positions_N, rows_U, inverse_N)

    def plan(self, ids: BatchIds, *, is_hot_only: bool) -> StepPlan:
        raise NotImplementedError("step plans of staging come from an epoch's PlanQueue")

    def plan_evaluation(self, ids: BatchIds) -> StepPlan:
        """Cold rows in place: staged ones have been copied home before."""
        rows_N, _ = self.slow.locate(ids)
        return cold_in_place(self.fast, rows_N, ids)


class Lookahead(Staging):
    """Hot rows at home on the fast tier; the staged row that leaves is the one used again last.

    Args:
        tables: of one row width.
        num_slots: staging slots.
        prefetch: P.
        window: batches known ahead; None: the epoch.
    """

    name = "lookahead"
    serves_hot_only = False

    def __init__(self, tables: Sequence[Table], num_slots: int, prefetch: int, window: int | None) -> None:
        super().__init__(tables, num_slots, prefetch)
        self.fast = Layout.of(self.none, self.num_hot)
        self.slow = Layout.of(self.num_hot, self.num_rows)
        self.window = window
        self.needs_whole_epoch = window is None

    def planner(self) -> StagingPlanner:
        num_rows = max(self.slow.num_home_slots, 1)
        return lookahead_planner(
            num_rows, self.num_staging_slots, prefetch=self.prefetch, window=self.window, splits=True
        )


class Cache(Staging):
    """Every row at home on the slow tier; slots keep what the policy takes to be needed again.

    Args:
        tables: of one row width.
        num_slots: of the cache.
        prefetch: P.
        policy: which row leaves.
        batches_per_item: batches whose rows come together.
        warmup_ratio: share of the slots filled before the first batch.
        counts_N: (rows of all tables,); look-ups of each row in the training part.

    Source:
        Fang et al., arXiv 2208.05321 (FreqCache), as released; rows travel with their state here.
    """

    name = "cache"
    serves_hot_only = True
    needs_whole_epoch = False

    def __init__(
        self,
        tables: Sequence[Table],
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
        self._policy, self._warmup_ratio = policy, warmup_ratio
        self._batches_per_item = batches_per_item
        self._counts_N = counts_N

    def planner(self) -> StagingPlanner:
        order_N = np.argsort(-self._counts_N, kind="stable")
        rank_N = np.empty(order_N.size, np.int64)
        rank_N[order_N] = np.arange(order_N.size)
        warm_N = order_N[: self.num_staging_slots]
        return cache_planner(
            self._policy,
            self.slow.num_home_slots,
            self.num_staging_slots,
            prefetch=self.prefetch,
            batches_per_item=self._batches_per_item,
            warmup_ratio=self._warmup_ratio,
            warm_rows=warm_N,
            warm_counts=self._counts_N[warm_N],
            rank_of_row=rank_N,
            splits=True,
        )


class PlanQueue:
    """The step plans of one width for one epoch: batches in, plans out in the same order.

    Args:
        placement: of the width.
        planner: of the run; None where all plans are made already.
    """

    def __init__(self, placement: Staging, planner: StagingPlanner | None) -> None:
        self._placement, self._planner = placement, planner
        self._held: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._chunks: deque[StepPlans] = deque()
        self._taken = 0
        self.num_shortened = self.num_split = 0
        """Plans taken that wait for later batches than the prefetch depth wants; that run in passes."""
        self.slots_wanted = 1.0
        """Slots that the largest batch needs, in those there are; 1 where they are enough."""
        self.num_ready = 0
        """Step plans that can be taken."""
        self.flush = Transfer()
        """What goes home after the last step."""

    def add(self, cold: ColdLookups) -> None:
        """The next batch of the epoch."""
        self._held.append((cold.rows_U, cold.lookups_of_rows))
        if not self._placement.needs_whole_epoch:
            assert self._planner is not None
            self.add_chunk(self._planner.plan(self._stream()))

    def finish(self) -> None:
        """No batch follows in this epoch."""
        assert self._planner is not None
        stream = self._stream()
        if stream.num_steps:
            self.add_chunk(self._planner.plan(stream))
        plans, residents = self._planner.finish()
        self.add_chunk(plans)
        self.set_flush(residents)

    def add_chunk(self, plans: StepPlans) -> None:
        """Step plans that follow those added before."""
        if plans.num_steps:
            self._chunks.append(plans)
            self.num_ready += plans.num_steps

    @property
    def chunks(self) -> tuple[StepPlans, ...]:
        """The plans not taken yet."""
        return tuple(self._chunks)

    def set_flush(self, residents: Residents) -> None:
        """What goes home after the last step."""
        self.flush = Transfer(write_back=self._moves(residents.rows, residents.slots))

    def take(self, cold: ColdLookups, *, is_fresh: bool) -> StepPlan:
        """The plan of the next step, whose look-ups are ``cold``.

        Args:
            is_fresh: rows that no batch has used have their initial values.
        """
        plans = self._chunks[0]
        step = self._taken - plans.first_step
        self._taken += 1
        self.num_ready -= 1
        if step == plans.num_steps - 1:
            self._chunks.popleft()
        slots_U = plans.slots[plans.offsets[step] : plans.offsets[step + 1]]
        base = self._placement.fast.num_home_slots
        came = slice(plans.fetch_offsets[step], plans.fetch_offsets[step + 1])
        left = slice(plans.write_back_offsets[step], plans.write_back_offsets[step + 1])
        write_back = self._moves(plans.write_back_rows[left], plans.write_back_slots[left])
        rows, slots, is_first = plans.fetch_rows[came], plans.fetch_slots[came], plans.fetch_is_first[came]
        after = int(plans.after[step])
        self.num_shortened += int(plans.is_shortened[step])
        self.num_split += int(plans.is_split[step])
        staged = Staged(cold.positions_N, slots_U[cold.inverse_N] + np.int64(base))
        if plans.is_split[step]:
            is_made = is_first if is_fresh else np.zeros(rows.size, np.bool_)
            num_slots = self._placement.num_staging_slots
            self.slots_wanted = max(self.slots_wanted, cold.rows_U.size / num_slots)
            split = Split(cold.rows_U, is_made, cold.inverse_N, num_slots)
            return StepPlan(transfer=Transfer(after, write_back), staged=staged, split=split)
        made = is_first if is_fresh else np.zeros(rows.size, np.bool_)
        transfer = Transfer(
            after,
            write_back,
            fetch=self._moves(rows[~made], slots[~made]),
            make=self._moves(rows[made], slots[made]),
        )
        return StepPlan(transfer=transfer, staged=staged)

    def _stream(self) -> RowStream:
        held, self._held = self._held, []
        stream = RowStream.of([rows for rows, _ in held], [lookups for _, lookups in held])
        if not self._placement.needs_whole_epoch:
            return stream
        num_rows = max(self._placement.slow.num_home_slots, 1)
        uses = next_uses(stream.offsets, stream.rows, num_rows)
        return RowStream(stream.offsets, stream.rows, stream.lookups, uses)

    def _moves(self, rows: NDArray[np.int64], slots: NDArray[np.int32]) -> Moves:
        return Moves(rows, slots + np.int64(self._placement.fast.num_home_slots))
