"""The step plans of all-fast, hybrid and hybrid-dedup.

Staging placements: their lookups and step plans on small batches.

Tests `staging`, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotset.stats.lookahead.step_plans import WINDOW_BYTES
from hotset.tests.support.drawn_tiers import one_hot_ids
from hotset.train.data.batch import EmbeddingTable, IdReader
from hotset.train.placements.placements import AllFast, Hybrid, HybridDedup
from hotset.train.placements.staging import Cache, Lookahead, PlanQueue, StagingPlacement
from hotset.train.rows.step_plan import NOTHING_TO_MOVE, InPlace, StepPlan

TABLES = [EmbeddingTable("C1", 4, 2, 16), EmbeddingTable("C2", 6, 3, 16)]


@pytest.mark.parametrize(
    ("kind", "plan", "num_fast", "num_slow"),
    [
        (AllFast, NOTHING_TO_MOVE, 10, 0),
        # A vector of each bag is sent, or each distinct row once.
        (Hybrid, StepPlan(in_place=InPlace("bags")), 0, 10),
        (HybridDedup, StepPlan(in_place=InPlace("rows")), 0, 10),
    ],
)
def test_rows_that_stay_have_one_plan(kind: Any, plan: StepPlan, num_fast: int, num_slow: int) -> None:
    placement = kind(TABLES)
    assert placement.plan(is_hot_only=False) == placement.plan_evaluation(is_stale=False) == plan
    assert (placement.fast.num_own_slots, placement.slow.num_own_slots) == (num_fast, num_slow)


BATCHES = [
    one_hot_ids(np.array(ids, np.int32))
    for ids in ([[0, 5], [3, 0], [0, 5]], [[1, 1], [2, 2]], [[3, 5], [0, 4]], [[2, 3], [2, 5]])
]


def cache(num_slots: int, policy: str = "lru", batches_per_item: int = 1, warmup: float = 0.0) -> Cache:
    counts = np.array([9, 5, 1, 2, 9, 9, 3, 1, 1, 4])
    return Cache(TABLES, num_slots, 0, policy, batches_per_item, warmup, counts)  # type: ignore[arg-type]


def plans_of(placement: StagingPlacement) -> tuple[list[tuple[list[int], ...]], list[int]]:
    """Rows initialized, fetched and written back by each step's transfer, and rows flushed."""
    queue = PlanQueue(placement, placement.planner(WINDOW_BYTES))
    cold = [placement.find_cold_rows(ids) for ids in BATCHES]
    for rows in cold:
        queue.add(rows)
    queue.finish()
    assert queue.num_planned == len(BATCHES)
    steps = []
    for rows in cold:
        plan = queue.take(rows.rows_U, is_fresh=True)
        assert plan.transfer is not None
        moves = (plan.transfer.initialize, plan.transfer.fetch, plan.transfer.write_back)
        steps.append(tuple(move.rows_N.tolist() for move in moves))
    return steps, sorted(queue.flush.write_back.rows_N.tolist())


def test_cold_rows_are_those_that_live_on_the_slow_tier() -> None:
    # Rows 2 and 3 of the first table are slow slots 0 and 1, rows 3 to 5 of the second 2 to 4.
    cold = Lookahead(TABLES, 3, 0).find_cold_rows(BATCHES[0])
    assert (cold.rows_U.tolist(), cold.lookups_U.tolist()) == ([1, 4], [1, 2])
    # A cache has all rows on the slow tier: 0 and 3 of the first table, 0 and 5 of the second.
    every = cache(9).find_cold_rows(BATCHES[0])
    assert (every.rows_U.tolist(), every.lookups_U.tolist()) == ([0, 3, 4, 9], [2, 1, 1, 2])


def test_hashing_and_grouping_find_the_same_cold_rows(rng: np.random.Generator) -> None:
    ids = one_hot_ids(np.minimum(rng.zipf(1.3, (200, 2)) - 1, [3, 5]).astype(np.int32))
    lookups = IdReader(TABLES, [0, 1]).by_row(ids)
    for placement in (Lookahead(TABLES, 3, 0), cache(9)):
        first, second = placement.find_cold_rows(ids), placement.cold_rows(lookups)
        np.testing.assert_array_equal(first.rows_U, second.rows_U)
        np.testing.assert_array_equal(first.lookups_U, second.lookups_U)


def test_lookahead_keeps_what_is_used_again_first() -> None:
    steps, flushed = plans_of(Lookahead(TABLES, 3, 0))
    assert steps == [
        ([1, 4], [], []),
        ([0], [], []),
        ([3], [], [0]),
        # Row 0 of the second batch is used again and had been written: it is fetched, not initialized.
        ([2], [0], [1, 3]),
    ]
    assert flushed == [0, 2, 4]


def test_staging_slots_follow_the_hot_rows() -> None:
    placement = Lookahead(TABLES, 3, 0)
    queue = PlanQueue(placement, placement.planner(WINDOW_BYTES))
    cold = placement.find_cold_rows(BATCHES[0])
    queue.add(cold)
    queue.finish()
    plan = queue.take(cold.rows_U, is_fresh=False)
    assert plan.staged_U is not None and plan.transfer is not None
    assert placement.fast.num_own_slots == 5
    assert set(plan.staged_U.tolist()) <= {5, 6, 7} and plan.staged_U[0] != plan.staged_U[1]
    # Weights that were loaded are fetched, first use or not.
    assert plan.transfer.fetch.rows_N.tolist() == [1, 4] and plan.transfer.initialize.num_rows == 0


def test_a_batch_of_too_many_rows_runs_in_passes() -> None:
    placement = Lookahead(TABLES, 1, 0)
    queue = PlanQueue(placement, placement.planner(WINDOW_BYTES))
    cold = [placement.find_cold_rows(ids) for ids in BATCHES[:2]]
    for rows in cold:
        queue.add(rows)
    queue.finish()
    first, second = (queue.take(rows.rows_U, is_fresh=True) for rows in cold)
    assert first.split is not None and second.split is None
    assert first.split.rows_U.tolist() == [1, 4] and first.split.num_slots == 1
    assert second.transfer is not None and second.transfer.after == 0


def test_a_warm_cache_writes_back_changed_rows_alone() -> None:
    steps, flushed = plans_of(cache(6, "lru", warmup=1.0))
    # The most frequent rows (0, 1, 4, 5, 6 and 9) come first, where the first batch leaves room.
    made = steps[0][0]
    assert made[:4] == [0, 3, 4, 9] and set(made[4:]) < {1, 5, 6} and len(made) == 6
    written = {row for _, _, write_back in steps for row in write_back} | set(flushed)
    used = {int(row) for ids in BATCHES for row in cache(6).find_cold_rows(ids).rows_U}
    assert written == used


def test_the_rows_of_several_batches_are_loaded_together() -> None:
    steps, _ = plans_of(cache(9, batches_per_item=2))
    assert len(steps[0][0]) > 3 and steps[1] == ([], [], [])
