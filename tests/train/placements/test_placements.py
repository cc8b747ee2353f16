"""The step plans of all-fast, hybrid and hybrid-dedup."""

from __future__ import annotations

from hotset.train.data.batch import EmbeddingTable
from hotset.train.placements.placements import AllFast, Hybrid, HybridDedup
from hotset.train.rows.step_plan import NOTHING_TO_MOVE, InPlace, StepPlan

TABLES = [EmbeddingTable("C1", 4, 2, 16), EmbeddingTable("C2", 6, 3, 16)]


def test_all_fast_moves_nothing() -> None:
    placement = AllFast(TABLES)
    assert placement.plan(is_hot_only=False) is NOTHING_TO_MOVE
    assert placement.plan_evaluation(is_replica_current=False) is NOTHING_TO_MOVE
    assert (placement.fast.num_own_slots, placement.slow.num_own_slots) == (10, 0)


def test_hybrid_sends_one_vector_a_bag() -> None:
    placement = Hybrid(TABLES)
    assert placement.plan(is_hot_only=False) == StepPlan(in_place=InPlace("bags"))
    assert (placement.fast.num_own_slots, placement.slow.num_own_slots) == (0, 10)


def test_hybrid_dedup_sends_each_distinct_row_once() -> None:
    assert HybridDedup(TABLES).plan(is_hot_only=False) == StepPlan(in_place=InPlace("rows"))


def test_evaluation_plans_are_those_of_training_here() -> None:
    for placement in (Hybrid(TABLES), HybridDedup(TABLES)):
        plan = placement.plan(is_hot_only=False)
        assert placement.plan_evaluation(is_replica_current=False) == plan
        assert placement.plan_finish() is NOTHING_TO_MOVE
