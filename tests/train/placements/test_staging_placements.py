"""Staging placements: their lookups and step plans on small batches.

Tests `plan_queue`, too.
"""

from __future__ import annotations

import numpy as np

from hotset.train.data.batch import BatchIds, EmbeddingTable
from hotset.train.placements.plan_queue import PlanQueue
from hotset.train.placements.staging_placements import Cache, Lookahead, StagingPlacement

TABLES = [EmbeddingTable("C1", 4, 2, 16), EmbeddingTable("C2", 6, 3, 16)]
BATCHES = [
    BatchIds.of_matrix(np.array(ids, np.int32))
    for ids in ([[0, 5], [3, 0], [0, 5]], [[1, 1], [2, 2]], [[3, 5], [0, 4]], [[2, 3], [2, 5]])
]


def cache(num_slots: int, policy: str = "lru", batches_per_item: int = 1, warmup: float = 0.0) -> Cache:
    counts = np.array([9, 5, 1, 2, 9, 9, 3, 1, 1, 4])
    return Cache(TABLES, num_slots, 0, policy, batches_per_item, warmup, counts)  # type: ignore[arg-type]


def plans_of(placement: StagingPlacement) -> tuple[list[tuple[list[int], ...]], list[int]]:
    """Rows initialized, fetched and written back by each step's transfer, and rows flushed."""
    queue = PlanQueue(placement, placement.planner())
    lookups = [placement.cold_lookups(ids) for ids in BATCHES]
    for cold in lookups:
        queue.add(cold)
    queue.finish()
    assert queue.num_ready == len(BATCHES)
    steps = []
    for cold in lookups:
        plan = queue.take(cold, is_fresh=True)
        assert plan.transfer is not None
        moves = (plan.transfer.initialize, plan.transfer.fetch, plan.transfer.write_back)
        steps.append(tuple(move.rows_N.tolist() for move in moves))
    return steps, sorted(queue.flush.write_back.rows_N.tolist())


def test_cold_lookups_are_those_of_rows_that_live_on_the_slow_tier() -> None:
    placement = Lookahead(TABLES, 3, 0, None)
    cold = placement.cold_lookups(BATCHES[0])
    # Rows 2 and 3 of the first table are slow slots 0 and 1, rows 3 to 5 of the second 2 to 4.
    assert cold.positions_N.tolist() == [1, 2, 5]
    assert cold.rows_U.tolist() == [4, 1] and cold.inverse_N.tolist() == [0, 1, 0]
    assert cold.lookups_of_rows.tolist() == [2, 1]
    assert cache(9).cold_lookups(BATCHES[0]).positions_N.tolist() == list(range(6))


def test_lookahead_keeps_what_is_used_again_first() -> None:
    steps, flushed = plans_of(Lookahead(TABLES, 3, 0, None))
    assert steps == [
        ([4, 1], [], []),
        ([0], [], []),
        ([3], [], [0]),
        # Row 0 of the second batch is used again and had been written: it is fetched, not initialized.
        ([2], [0], [1, 3]),
    ]
    assert flushed == [0, 2, 4]


def test_planning_ahead_and_online_agree_where_all_is_known() -> None:
    assert plans_of(Lookahead(TABLES, 3, 0, None)) == plans_of(Lookahead(TABLES, 3, 0, 4))


def test_staging_slots_follow_the_hot_rows() -> None:
    placement = Lookahead(TABLES, 3, 0, None)
    queue = PlanQueue(placement, placement.planner())
    cold = placement.cold_lookups(BATCHES[0])
    queue.add(cold)
    queue.finish()
    plan = queue.take(cold, is_fresh=False)
    assert plan.staged is not None and plan.transfer is not None
    assert placement.fast.num_own_slots == 5
    assert set(plan.staged.slots_N.tolist()) <= {5, 6, 7}
    assert plan.staged.slots_N[0] == plan.staged.slots_N[2] != plan.staged.slots_N[1]
    # Weights that were loaded are fetched, first use or not.
    assert plan.transfer.fetch.rows_N.tolist() == [4, 1] and plan.transfer.initialize.num_rows == 0


def test_a_batch_of_too_many_rows_runs_in_passes() -> None:
    placement = Lookahead(TABLES, 1, 0, None)
    queue = PlanQueue(placement, placement.planner())
    lookups = [placement.cold_lookups(ids) for ids in BATCHES[:2]]
    for cold in lookups:
        queue.add(cold)
    queue.finish()
    first, second = (queue.take(cold, is_fresh=True) for cold in lookups)
    assert first.split is not None and second.split is None
    assert first.split.rows_U.tolist() == [4, 1] and first.split.num_slots == 1
    assert second.transfer is not None and second.transfer.after == 0


def test_a_warm_cache_writes_back_changed_rows_alone() -> None:
    steps, flushed = plans_of(cache(6, "lru", warmup=1.0))
    # The most frequent rows (0, 1, 4, 5, 6 and 9) come first, where the first batch leaves room.
    made = steps[0][0]
    assert made[:3] == [0, 9, 3] and set(made[3:]) < {1, 4, 5, 6} and len(made) == 6
    written = {row for _, _, write_back in steps for row in write_back} | set(flushed)
    used = {int(row) for ids in BATCHES for row in cache(6).cold_lookups(ids).rows_U}
    assert written == used


def test_the_rows_of_several_batches_are_loaded_together() -> None:
    steps, _ = plans_of(cache(9, batches_per_item=2))
    assert len(steps[0][0]) > 3 and steps[1] == ([], [], [])
