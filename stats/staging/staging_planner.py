"""Planners of one staging area: batches in, step plans out, for every policy by the same rule.

The rule of transfers: item t waits for compute(t - P - 1), P being the prefetch depth, and evicts among the
rows unused in steps t - P to t. Where too few of them may be evicted, it waits for a later step, t - 1 at
most; such steps are marked as shortened. So no plan reads a row before its last update is written back, and
at P = 0 `lookahead` is Belady's algorithm. Policies: see `staging_state`; `cache` policies after Fang et
al., arXiv 2208.05321, as released, with state of rows, dirty rows and transfers handled here.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .row_locations import WRITTEN_BACK_AT_END
from .staging_area import end_epoch, new_area, with_buckets
from .staging_kernel import plan_steps as plan_steps_kernel
from .staging_state import DATASET, LFU, LOOKAHEAD, LRU, STATIC, PlanArrays, Rule, Steps, WarmRows
from .step_plans import NEVER, Residents, RowStream, StepPlans, TooFewSlotsError

CachePolicy = Literal["static", "lru", "lfu", "dataset"]
CACHE_POLICIES: dict[CachePolicy, int] = {"static": STATIC, "lru": LRU, "lfu": LFU, "dataset": DATASET}
DEFAULT_WARMUP_RATIO = 0.7
_LAST_RANK = np.iinfo(np.int32).max
_NOTHING = np.empty(0, np.int64)
_NO_RANKS = np.empty(0, np.int32)


class StagingPlanner:
    """Plans one epoch after another, for rows of one width; created by the functions below.

    `plan` may hold batches back until those after them are known; `finish` plans the rest and ends the epoch.
    All that a planner remembers from epoch to epoch is which rows were used before.
    """

    def __init__(
        self,
        rule: Rule,
        num_rows: int,
        num_slots: int,
        warm: WarmRows | None = None,
        rank_of_row: NDArray[np.int32] = _NO_RANKS,
        location_of_row: NDArray[np.int32] | None = None,
    ) -> None:
        if num_rows > _LAST_RANK:
            raise ValueError(f"{num_rows} rows are more than 32 bits can name")
        if num_slots < 1:
            raise ValueError(f"num_slots must be 1 or more, got {num_slots}")
        if rule.prefetch < 0:
            raise ValueError(f"the prefetch depth must be 0 or more, got {rule.prefetch}")
        self.num_slots = num_slots
        self._rule = rule
        self._warm = warm or WarmRows(_NOTHING, _NOTHING)
        self._state = new_area(
            num_rows, num_slots, rank_of_row, limited=rule.window >= 0, location_of_row=location_of_row
        )
        self._held = Steps(np.zeros(1, np.int64), _NOTHING, _NOTHING, _NOTHING)
        self._next_step = 0

    @property
    def num_held_back(self) -> int:
        """Batches given whose steps are not planned yet."""
        return int(self._held.offsets.size) - 1

    def mark_used(self, rows_N: NDArray[np.int64]) -> None:
        """Take rows as used before, and written back; only before the first batch of a run."""
        self._state.location_of_row[rows_N] = WRITTEN_BACK_AT_END

    def plan(self, batches: RowStream) -> StepPlans:
        """Return the step plans that are known now that ``batches`` follow those given before.

        Raises:
            TooFewSlotsError: a batch has more rows than there are slots, and is not to be split.
        """
        self._held = self._joined(batches)
        return self._emit(is_last=False)

    def finish(self) -> tuple[StepPlans, Residents]:
        """Plan the batches held back and end the epoch; the next step is 0 again.

        Returns:
            Their step plans, and the rows to write back after them.
        """
        plans = self._emit(is_last=True)
        residents = Residents(*end_epoch(self._state))
        self._next_step = 0
        return plans, residents

    def _joined(self, batches: RowStream) -> Steps:
        """The steps held back, and those of ``batches`` behind them."""
        # Next uses are needed by look-ahead alone, and found by the kernel where the window is limited.
        held = self._held
        rule = self._rule
        if batches.next_uses is None and rule.policy == LOOKAHEAD and rule.window < 0:
            raise ValueError("this planner needs the next use of every row with the batches")
        lookups = np.ones(batches.rows.size, np.int64) if batches.lookups is None else batches.lookups
        known = rule.window < 0 and batches.next_uses is not None
        next_uses = batches.next_uses if known else np.full(batches.rows.size, NEVER, np.int64)
        assert next_uses is not None
        # Offsets of the new steps count from behind the entries held back.
        return Steps(
            np.concatenate([held.offsets, batches.offsets[1:] + held.offsets[-1]]),
            np.concatenate([held.rows, batches.rows]),
            np.concatenate([held.lookups, lookups]),
            np.concatenate([held.next_uses, next_uses]),
        )

    def _emit(self, *, is_last: bool) -> StepPlans:
        """Plan what can be planned of the steps held, and hold the rest."""
        held = self._held
        first_step = self._next_step

        # Look-ahead has a bucket for every step that may be a next use.
        if self._rule.policy == LOOKAHEAD:
            uses = held.next_uses[held.next_uses < NEVER]
            last_step = max(first_step + self.num_held_back, int(uses.max(initial=0)))
            self._state = with_buckets(self._state, last_step + 1)

        plans = self._new_plans()
        num_planned, num_needed = plan_steps_kernel(self._state, self._rule, held, self._warm, is_last, plans)
        if num_needed:
            raise TooFewSlotsError(first_step + num_planned, self.num_slots, num_needed)

        # Planned steps leave; lists that are usually far shorter than their arrays are copied.
        num_entries = int(held.offsets[num_planned])
        self._held = Steps(
            held.offsets[num_planned:] - num_entries,
            held.rows[num_entries:],
            held.lookups[num_entries:],
            held.next_uses[num_entries:],
        )
        self._next_step = first_step + num_planned
        num_fetches, num_write_backs = plans.ends.tolist()
        return StepPlans(
            first_step=first_step,
            offsets=held.offsets[: num_planned + 1].copy(),
            slots=plans.slots[:num_entries],
            fetch_offsets=plans.fetch_offsets[: num_planned + 1],
            fetch_rows=plans.fetch_rows[:num_fetches].copy(),
            fetch_slots=plans.fetch_slots[:num_fetches].copy(),
            fetch_is_first=plans.fetch_is_first[:num_fetches].copy(),
            write_back_offsets=plans.write_back_offsets[: num_planned + 1],
            write_back_rows=plans.write_back_rows[:num_write_backs].copy(),
            write_back_slots=plans.write_back_slots[:num_write_backs].copy(),
            after=plans.after[:num_planned],
            waits_for=plans.waits_for[:num_planned],
            is_shortened=plans.is_shortened[:num_planned],
            is_split=plans.is_split[:num_planned],
            num_hits=plans.num_hits[:num_planned],
            num_misses=plans.num_misses[:num_planned],
        )

    def _new_plans(self) -> PlanArrays:
        """Arrays for the plans of all steps held, each as long as it may get."""
        # At most every row used is fetched, and the warm ones; write-backs at the end are one for each slot.
        num_steps = self.num_held_back
        num_entries = self._held.rows.size
        num_fetches = num_entries + self._warm.rows.size
        num_write_backs = min(num_fetches, num_entries) + self.num_slots
        return PlanArrays(
            slots=np.empty(num_entries, np.int32),
            fetch_offsets=np.zeros(num_steps + 1, np.int64),
            fetch_rows=np.empty(num_fetches, np.int32),
            fetch_slots=np.empty(num_fetches, np.int32),
            fetch_is_first=np.empty(num_fetches, np.bool_),
            write_back_offsets=np.zeros(num_steps + 1, np.int64),
            write_back_rows=np.empty(num_write_backs, np.int32),
            write_back_slots=np.empty(num_write_backs, np.int32),
            after=np.empty(num_steps, np.int64),
            waits_for=np.empty(num_steps, np.int64),
            is_shortened=np.empty(num_steps, np.bool_),
            is_split=np.empty(num_steps, np.bool_),
            num_hits=np.empty(num_steps, np.int64),
            num_misses=np.empty(num_steps, np.int64),
            ends=np.zeros(2, np.int64),
        )


def lookahead_planner(
    num_rows: int,
    num_slots: int,
    *,
    prefetch: int,
    window: int | None = None,
    splits: bool = False,
    location_of_row: NDArray[np.int32] | None = None,
) -> StagingPlanner:
    """Return a planner that evicts the row whose next use is farthest; among equals the one used longest ago.

    Args:
        num_rows: all keys are below it.
        num_slots: slots of the staging area.
        prefetch: P, the prefetch depth.
        window: batches known ahead of the one planned, at least 0: a row unused in them is as far as any
            other such row, and the planner holds ``window`` batches back. None: `plan` gets the next use of
            every row, see `next_uses.next_uses`, and holds nothing back.
        splits: a batch of too many rows runs in passes; else it is refused.
        location_of_row: (num_rows,), memory to use for the only array that grows with the rows.

    Source:
        Belady, IBM Systems Journal 5 (1966); Mattson et al., IBM Systems Journal 9 (1970), for its
        optimality.
    """
    if window is not None and window < 0:
        raise ValueError(f"window must be 0 or more, got {window}")
    rule = Rule(LOOKAHEAD, prefetch, 1, -1 if window is None else window, splits)
    return StagingPlanner(rule, num_rows, num_slots, location_of_row=location_of_row)


def cache_planner(
    policy: CachePolicy,
    num_rows: int,
    num_slots: int,
    *,
    prefetch: int,
    batches_per_item: int = 1,
    warmup_ratio: float = DEFAULT_WARMUP_RATIO,
    warm_rows: NDArray[np.int64] = _NOTHING,
    warm_counts: NDArray[np.int64] | None = None,
    rank_of_row: NDArray[np.integer[Any]] = _NO_RANKS,
    splits: bool = False,
) -> StagingPlanner:
    """Return a planner that evicts as a run-time cache does, which knows no next uses.

    Args:
        policy: ``lru`` evicts the row used longest ago (earlier batch; within a batch the one that appears
            earlier). ``lfu`` evicts the one with the fewest lookups since it was loaded; ties as in lru.
            ``dataset`` evicts the one with the last rank. ``static`` keeps the warm rows for good, and
            evicts every other row as soon as the rule of transfers allows.
        num_rows: all keys are below it.
        num_slots: slots of the staging area.
        prefetch: P, the prefetch depth.
        batches_per_item: N; the rows of N batches are loaded by one item, before the first of them, and none
            of them is evicted before the last. A window of too many rows ends earlier, with the last batch
            that fits.
        warmup_ratio: share of the slots filled before step 0, but for those that step 0 needs, in [0, 1].
        warm_rows: (at least that many, or fewer,); keys in the order of importance, the most important first.
        warm_counts: (as many,); lookups that ``lfu`` takes them to have had; None: 0.
        rank_of_row: (num_rows,), for ``dataset``; position of each row in the order of importance, 0 the most
            important; all from 2^31 - 1 on are equal.
        splits: as in `lookahead_planner`; not for ``static``.
    """
    # Refuse settings that make no sense; the kernel checks none.
    if policy not in CACHE_POLICIES:
        raise ValueError(f"no cache policy {policy!r}: want one of {', '.join(CACHE_POLICIES)}")
    if not 0 <= warmup_ratio <= 1:
        raise ValueError(f"warmup_ratio must be in [0, 1], got {warmup_ratio}")
    if batches_per_item < 1:
        raise ValueError(f"batches_per_item must be 1 or more, got {batches_per_item}")
    if policy == "dataset" and rank_of_row.size != num_rows:
        raise ValueError(f"dataset needs the rank of {num_rows} rows, got {rank_of_row.size}")
    # As many warm rows as the ratio grants of the slots, the most important first.
    rows = warm_rows[: math.ceil(num_slots * warmup_ratio)]
    counts = np.zeros(rows.size, np.int64) if warm_counts is None else warm_counts[: rows.size]
    rule = Rule(CACHE_POLICIES[policy], prefetch, batches_per_item, -1, splits and policy != "static")
    # Only ``dataset`` reads ranks; those beyond 32 bits are all as unimportant as the last one.
    ranks = np.minimum(rank_of_row, _LAST_RANK).astype(np.int32) if policy == "dataset" else _NO_RANKS
    return StagingPlanner(rule, num_rows, num_slots, WarmRows(rows, counts), ranks)
