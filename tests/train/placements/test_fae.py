"""FAE: which tier serves a batch, when hot rows are copied, and the order of batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hotset.train.data.batch import EmbeddingTable
from hotset.train.placements.fae import Fae, FaeOrder
from hotset.train.placements.shuffle_scheduler import ShuffleScheduler
from hotset.train.rows.step_plan import NOTHING_TO_MOVE, InPlace, StepPlan

TABLES = [EmbeddingTable("C1", 4, 2, 16), EmbeddingTable("C2", 6, 3, 16)]


def test_hot_rows_are_copied_where_the_kind_of_batch_changes() -> None:
    placement = Fae(TABLES)
    kinds = (False, False, True, True, False, True)
    copies = [placement.plan(is_hot_only=is_hot_only).copy_hot for is_hot_only in kinds]
    assert copies == [None, None, "to_fast", None, "to_slow", "to_fast"]
    assert placement.plan_finish().copy_hot == "to_slow"
    assert placement.plan_finish() is NOTHING_TO_MOVE


def test_the_replica_holds_the_hot_rows_and_the_slow_tier_all() -> None:
    placement = Fae(TABLES)
    assert (placement.fast.num_own_slots, placement.slow.num_own_slots) == (5, 10)


def test_mixed_batches_do_all_their_embedding_work_in_place() -> None:
    assert Fae(TABLES).plan(is_hot_only=False) == StepPlan(in_place=InPlace("bags"))


def test_hot_only_batches_touch_the_fast_tier_alone() -> None:
    placement = Fae(TABLES)
    assert placement.plan(is_hot_only=True).in_place is None
    assert placement.plan(is_hot_only=True) is NOTHING_TO_MOVE


def test_evaluation_reads_hot_rows_where_they_are_current() -> None:
    placement = Fae(TABLES)
    # Batches planned ahead change nothing: the copies may not have been made yet.
    placement.plan(is_hot_only=True)
    assert placement.plan_evaluation(is_replica_current=False) == StepPlan(in_place=InPlace("bags"))
    of_cold_rows = StepPlan(in_place=InPlace("rows", is_whole=False))
    assert placement.plan_evaluation(is_replica_current=True) == of_cold_rows


def run_order(
    num_hot_only: int, num_mixed: int, losses: list[float], *, epochs: int = 1, variant: str = "paper"
) -> tuple[list[int], list[tuple[str, int]], list[float]]:
    """The order, its phases as (kind, length), and the losses that were not asked for."""
    left: Iterator[float] = iter(losses)
    kinds = np.arange(num_hot_only + num_mixed) < num_hot_only
    order = FaeOrder(kinds, 1, epochs, ShuffleScheduler.variant(variant), lambda: next(left))
    numbers = [number for epoch in order.epochs() for number in epoch]
    phases: list[tuple[str, int]] = []
    for number in numbers:
        kind = "hot" if kinds[number] else "mixed"
        count = phases.pop()[1] if phases and phases[-1][0] == kind else 0
        phases.append((kind, count + 1))
    return numbers, phases, list(left)


def test_mixed_batches_come_first_and_each_batch_comes_once() -> None:
    numbers, phases, left = run_order(8, 4, [0.5, 0.4, 0.3])
    assert sorted(numbers) == list(range(12))
    assert phases == [("mixed", 2), ("hot", 4), ("mixed", 2), ("hot", 4)]
    assert left == []


def test_a_rise_of_test_loss_shortens_the_turns() -> None:
    _, phases, left = run_order(8, 8, [0.5, 0.6, 0.6, 0.6, 0.6])
    assert phases == [("mixed", 4), ("hot", 4), *[("mixed", 2), ("hot", 2)] * 2]
    assert left == []


def test_the_rate_is_kept_over_epochs() -> None:
    _, phases, _ = run_order(4, 4, [0.5, 0.6, *[0.6] * 20], epochs=2)
    assert phases == [("mixed", 2), ("hot", 2), *[("mixed", 1), ("hot", 1)] * 6]


def test_the_codes_variant_switches_once_an_epoch_and_tests_nothing() -> None:
    _, phases, _ = run_order(6, 4, [], epochs=2, variant="code")
    assert phases == [("mixed", 4), ("hot", 6)] * 2


@pytest.mark.parametrize(("num_hot_only", "num_mixed"), [(5, 0), (0, 5)])
def test_one_kind_alone_never_switches(num_hot_only: int, num_mixed: int) -> None:
    numbers, phases, _ = run_order(num_hot_only, num_mixed, [])
    assert len(phases) == 1 and sorted(numbers) == list(range(5))


def test_without_test_losses_the_rate_stays() -> None:
    kinds = np.arange(8) < 4
    scheduler = ShuffleScheduler()
    epochs = FaeOrder(kinds, 0, 2, scheduler, lambda: None).epochs()
    assert sum(len(list(epoch)) for epoch in epochs) == 16
    assert (scheduler.rate, scheduler.losses) == (50.0, [])


def test_epochs_are_shuffled_anew() -> None:
    numbers, _, _ = run_order(0, 20, [], epochs=2)
    assert numbers[:20] != numbers[20:]
