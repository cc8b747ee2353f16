"""The step plans of all-fast, hybrid and hybrid-dedup."""

from __future__ import annotations

import numpy as np

from hotset.train.data.batch import BatchIds, EmbeddingTable
from hotset.train.placements.placements import AllFast, Hybrid, HybridDedup
from hotset.train.rows.step_plan import NOTHING_TO_MOVE

TABLES = [EmbeddingTable("C1", 4, 2, 16), EmbeddingTable("C2", 6, 3, 16)]
IDS = BatchIds.of_matrix(np.array([[0, 5], [3, 0], [0, 5]], np.int32))


def test_all_fast_moves_nothing() -> None:
    placement = AllFast(TABLES)
    assert placement.plan(IDS, is_hot_only=False) is NOTHING_TO_MOVE
    assert placement.plan_evaluation(IDS, is_replica_current=False) is NOTHING_TO_MOVE
    assert (placement.fast.num_own_slots, placement.slow.num_own_slots) == (10, 0)


def test_hybrid_reads_one_row_a_lookup_in_place() -> None:
    placement = Hybrid(TABLES)
    in_place = placement.plan(IDS, is_hot_only=False).in_place
    assert in_place is not None and in_place.positions_N is None and in_place.inverse_N is None
    assert in_place.rows_N.tolist() == [0, 9, 3, 4, 0, 9]
    assert (placement.fast.num_own_slots, placement.slow.num_own_slots) == (0, 10)


def test_hybrid_dedup_reads_each_distinct_row_once() -> None:
    in_place = HybridDedup(TABLES).plan(IDS, is_hot_only=False).in_place
    assert in_place is not None and in_place.inverse_N is not None
    assert in_place.rows_N.tolist() == [0, 9, 3, 4]
    assert in_place.inverse_N.tolist() == [0, 1, 2, 3, 0, 1]


def test_evaluation_plans_are_those_of_training_here() -> None:
    for placement in (Hybrid(TABLES), HybridDedup(TABLES)):
        plans = (
            placement.plan(IDS, is_hot_only=False),
            placement.plan_evaluation(IDS, is_replica_current=False),
        )
        first, second = (plan.in_place for plan in plans)
        assert first is not None and second is not None
        np.testing.assert_array_equal(first.rows_N, second.rows_N)
        assert placement.plan_finish() is NOTHING_TO_MOVE
