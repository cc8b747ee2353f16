"""The executor on plans made by hand.

Tests `embeddings`, `in_place` and `traffic`, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.train.data.batch import BatchIds
from hotset.train.execution.executor import Executor
from hotset.train.meter import Meter
from hotset.train.rows.initial_values import InitialValues
from hotset.train.rows.row_optimizers import RowOptimizer
from hotset.train.rows.step_plan import NOTHING_TO_MOVE, InPlace, Moves, StagedLookups, StepPlan, Transfer
from hotset.train.rows.tiers import Layout, Tier

NUM_ROWS, NUM_HOT, DIM = [3, 8], [3, 2], 4
HOST = torch.device("cpu")


def array(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def make_executor(
    first_fast: list[int], last_fast: list[int], first_slow: list[int], last_slow: list[int], **options: Any
) -> Executor:
    optimizer = RowOptimizer(options.get("optimizer", "adagrad"), 0.1)
    width = optimizer.state_width(DIM)
    fast = Tier(Layout.of(first_fast, last_fast), DIM, width, num_staging=options.get("num_staging", 0))
    slow = Tier(Layout.of(first_slow, last_slow), DIM, width)
    meter = Meter(HOST)
    meter.enter("mixed")
    executor = Executor(fast, slow, optimizer, InitialValues.of(0, [0, 1], NUM_ROWS), meter)
    executor.initialize()
    return executor


def move(executor: Executor, plan: StepPlan) -> None:
    executor.copy_hot(plan)
    if plan.transfer:
        executor.transfer(plan.transfer)


def train(executor: Executor, steps: list[tuple[list[list[int]], StepPlan]]) -> None:
    """Take steps whose gradient depends on the embeddings, so that a stale row shows."""
    for ids, plan in steps:
        ids_BF = BatchIds.of_matrix(np.array(ids, np.int32))
        move(executor, plan)
        emb_BFD = executor.look_up(ids_BF, plan)
        (emb_BFD.sin() * torch.arange(1, emb_BFD.numel() + 1).view_as(emb_BFD)).sum().backward()  # type: ignore[no-untyped-call]
        executor.update(ids_BF, emb_BFD, plan)


def assert_equal_tables(first: Executor, second: Executor) -> None:
    for table in range(len(NUM_ROWS)):
        assert torch.equal(first.table(table), second.table(table))


BATCHES = [[[0, 7], [1, 0]], [[2, 7], [2, 5]], [[0, 5], [1, 6]], [[0, 7], [0, 1]]]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise-adagrad"])
def test_staged_rows_train_as_rows_of_the_fast_tier(optimizer: str) -> None:
    reference = make_executor([0, 0], NUM_ROWS, [0, 0], [0, 0], optimizer=optimizer)
    train(reference, [(ids, NOTHING_TO_MOVE) for ids in BATCHES])
    # Cold rows 2..7 of the second table are slow slots 0..5; slots 5 and 6 of the fast tier stage them.
    staging = make_executor([0, 0], NUM_HOT, [3, 2], NUM_ROWS, num_staging=2, optimizer=optimizer)
    plans = [
        StepPlan(
            transfer=Transfer(fetch=Moves(array(5), array(5))), staged=StagedLookups(array(1), array(5))
        ),
        StepPlan(
            transfer=Transfer(initialize=Moves(array(3), array(6))),
            staged=StagedLookups(array(1, 3), array(5, 6)),
        ),
        StepPlan(
            transfer=Transfer(write_back=Moves(array(5), array(5)), fetch=Moves(array(4), array(5))),
            staged=StagedLookups(array(1, 3), array(6, 5)),
        ),
        StepPlan(
            transfer=Transfer(write_back=Moves(array(3, 4), array(6, 5)), fetch=Moves(array(5), array(6))),
            staged=StagedLookups(array(1), array(6)),
        ),
    ]
    train(staging, list(zip(BATCHES, plans, strict=True)))
    staging.transfer(Transfer(write_back=Moves(array(5), array(6))))
    assert_equal_tables(staging, reference)


def test_moved_rows_are_counted_with_their_state() -> None:
    executor = make_executor([0, 0], NUM_HOT, [3, 2], NUM_ROWS, num_staging=2)
    executor.transfer(Transfer(fetch=Moves(array(5, 0), array(5, 6))))
    executor.transfer(Transfer(write_back=Moves(array(5), array(5))))
    assert executor.traffic.meter.training_bytes() == (2 * 32, 32)


def hybrid_plans(executor: Executor, *, dedup: bool) -> list[tuple[list[list[int]], StepPlan]]:
    steps = []
    for ids in BATCHES:
        rows_N, _ = executor.slow.layout.locate(BatchIds.of_matrix(np.array(ids, np.int32)))
        in_place = InPlace(rows_N)
        if dedup:
            distinct, inverse = np.unique(rows_N, return_inverse=True)
            in_place = InPlace(distinct, inverse.astype(np.int32))
        steps.append((ids, StepPlan(in_place=in_place)))
    return steps


@pytest.mark.parametrize(("dedup", "num_vectors"), [(False, 16), (True, 14)])
def test_rows_in_place_train_as_rows_of_the_fast_tier(dedup: bool, num_vectors: int) -> None:
    reference = make_executor([0, 0], NUM_ROWS, [0, 0], [0, 0])
    train(reference, [(ids, NOTHING_TO_MOVE) for ids in BATCHES])
    hybrid = make_executor([0, 0], [0, 0], [0, 0], NUM_ROWS)
    train(hybrid, hybrid_plans(hybrid, dedup=dedup))
    assert_equal_tables(hybrid, reference)
    assert hybrid.traffic.meter.training_bytes() == (num_vectors * DIM * 4, num_vectors * DIM * 4)


def test_a_part_of_the_lookups_may_be_in_place() -> None:
    executor = make_executor([0, 0], NUM_HOT, [0, 0], NUM_ROWS)
    ids_BF = BatchIds.of_matrix(np.array([[0, 7], [1, 0]], np.int32))
    expected = torch.stack([executor.slow.weights_SD[[0, 3 + 7]], executor.slow.weights_SD[[1, 3 + 0]]])
    with torch.no_grad():
        emb_BFD = executor.look_up(ids_BF, StepPlan(in_place=InPlace(array(10), positions_N=array(1))))
    assert torch.equal(emb_BFD, expected) and not emb_BFD.requires_grad


def test_a_switch_is_counted_apart() -> None:
    executor = make_executor([0, 0], NUM_HOT, [0, 0], NUM_ROWS)
    executor.fast.weights_SD.fill_(7.0)
    executor.copy_hot(StepPlan(copy_hot="to_slow"))
    assert (
        executor.slow.weights_SD[[0, 1, 2, 3, 4]].eq(7.0).all()
        and not executor.slow.weights_SD[5:].eq(7.0).any()
    )
    assert executor.traffic.meter.bytes_to_slow["switch"] == 5 * 32
    assert executor.traffic.meter.bytes_to_fast["switch"] == 0


def test_tables_are_put_together_from_both_tiers() -> None:
    whole = make_executor([0, 0], NUM_ROWS, [0, 0], [0, 0])
    split = make_executor([0, 0], NUM_HOT, NUM_HOT, NUM_ROWS)
    replica = make_executor([0, 0], NUM_HOT, [0, 0], NUM_ROWS)
    assert_equal_tables(whole, split)
    assert_equal_tables(whole, replica)
    assert split.table(1).shape == (8, DIM)


def test_a_plan_that_lists_too_little_is_a_bug() -> None:
    executor = make_executor([0, 0], NUM_HOT, NUM_HOT, NUM_ROWS)
    with pytest.raises(AssertionError, match="too few"):
        executor.look_up(BatchIds.of_matrix(np.array([[0, 7]], np.int32)), NOTHING_TO_MOVE)


def test_a_slot_that_was_written_back_holds_no_row() -> None:
    """A copy of staged rows between transfers takes rows that are still staged alone."""
    executor = make_executor([0, 0], NUM_HOT, [3, 2], NUM_ROWS, num_staging=2)
    staged = Moves(array(0, 3), array(5, 6))
    executor.transfer(Transfer(fetch=staged))
    executor.transfer(Transfer(write_back=Moves(array(0), array(5))))
    executor.slow.weights_SD[0] = 7.0
    executor.slow.weights_SD[3] = 7.0
    executor.write_back_residents()
    assert torch.equal(executor.slow.weights_SD[0], torch.full((DIM,), 7.0))
    assert torch.equal(executor.slow.weights_SD[3], executor.fast.weights_SD[6])
