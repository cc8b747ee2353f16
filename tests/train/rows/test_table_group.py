"""A table group on plans made by hand.

Tests `embeddings`, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.stats.batch_rows import group_lookups, of_matrix
from hotset.tests.support.drawn_tiers import one_hot_ids
from hotset.train.data.batch import EmbeddingTable, IdReader, MicroBatches
from hotset.train.metrics import Meter
from hotset.train.placements.placements import AllFast
from hotset.train.rows.backends import RowOptimizer
from hotset.train.rows.step_plan import NOTHING_TO_MOVE, GroupStep, InPlace, SplitBatch, StepPlan, Transfer
from hotset.train.rows.table_group import TableGroup
from hotset.train.rows.tiers import InitialValues, Layout, Moves, Tier, TrafficCounter
from hotset.train.threads import WorkThreads

NUM_ROWS, NUM_HOT, DIM = [3, 8], [3, 2], 4
HOST = torch.device("cpu")


def array(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def make_group(
    first_fast: list[int], last_fast: list[int], first_slow: list[int], last_slow: list[int], **options: Any
) -> TableGroup:
    optimizer = RowOptimizer(options.get("optimizer", "adagrad"), 0.1)
    width = optimizer.state_width(DIM)
    fast = Tier(Layout.of(first_fast, last_fast), DIM, width, num_staging=options.get("num_staging", 0))
    slow = Tier(Layout.of(first_slow, last_slow), DIM, width)
    meter = Meter(HOST)
    meter.enter("mixed")
    tables = [EmbeddingTable(f"C{n}", num_rows, 0, DIM) for n, num_rows in enumerate(NUM_ROWS)]
    group = TableGroup(
        embedding_dim=DIM,
        tables=(0, 1),
        reader=IdReader(tables, (0, 1)),
        placement=AllFast(tables),
        fast=fast,
        slow=slow,
        optimizer=optimizer,
        initial=InitialValues.of(0, [0, 1], NUM_ROWS),
        traffic=TrafficCounter(meter, slow.layout),
        threads=WorkThreads(1),
        micro_batches=MicroBatches(64),
    )
    group.initialize()
    return group


def part_of(ids: list[list[int]], plan: StepPlan) -> GroupStep:
    ids_BF = one_hot_ids(np.array(ids, np.int32))
    return GroupStep(ids_BF, group_lookups(of_matrix(ids_BF.ids_N, np.array(NUM_ROWS, np.int64))), plan=plan)


def train(group: TableGroup, steps: list[tuple[list[list[int]], StepPlan]]) -> None:
    """Take steps whose gradient depends on the embeddings, so that a stale row shows."""
    for ids, plan in steps:
        if plan.transfer:
            group.load(plan.transfer)
        part = part_of(ids, plan)
        emb_BFD = group.look_up(part)
        (emb_BFD.sin() * torch.arange(1, emb_BFD.numel() + 1).view_as(emb_BFD)).sum().backward()  # type: ignore[no-untyped-call]
        group.update(part, emb_BFD)


def table_of(group: TableGroup, position: int) -> torch.Tensor:
    return torch.cat(list(group.table_parts(position)))


def assert_equal_tables(first: TableGroup, second: TableGroup) -> None:
    for table in range(len(NUM_ROWS)):
        assert torch.equal(table_of(first, table), table_of(second, table))


BATCHES = [[[0, 7], [1, 0]], [[2, 7], [2, 5]], [[0, 5], [1, 6]], [[0, 7], [0, 1]]]


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise-adagrad"])
def test_staged_rows_train_as_rows_of_the_fast_tier(optimizer: str) -> None:
    reference = make_group([0, 0], NUM_ROWS, [0, 0], [0, 0], optimizer=optimizer)
    train(reference, [(ids, NOTHING_TO_MOVE) for ids in BATCHES])
    # Cold rows 2..7 of the second table are slow slots 0..5; slots 5 and 6 of the fast tier stage them.
    staging = make_group([0, 0], NUM_HOT, [3, 2], NUM_ROWS, num_staging=2, optimizer=optimizer)
    plans = [
        StepPlan(transfer=Transfer(fetch=Moves(array(5), array(5))), staged_U=array(5)),
        StepPlan(transfer=Transfer(initialize=Moves(array(3), array(6))), staged_U=array(6, 5)),
        StepPlan(
            transfer=Transfer(write_back=Moves(array(5), array(5)), fetch=Moves(array(4), array(5))),
            staged_U=array(6, 5),
        ),
        StepPlan(
            transfer=Transfer(write_back=Moves(array(3, 4), array(6, 5)), fetch=Moves(array(5), array(6))),
            staged_U=array(6),
        ),
    ]
    train(staging, list(zip(BATCHES, plans, strict=True)))
    staging.load(Transfer(write_back=Moves(array(5), array(6))))
    assert_equal_tables(staging, reference)


def test_moved_rows_are_counted_with_their_state() -> None:
    group = make_group([0, 0], NUM_HOT, [3, 2], NUM_ROWS, num_staging=2)
    group.load(Transfer(fetch=Moves(array(5, 0), array(5, 6))))
    group.load(Transfer(write_back=Moves(array(5), array(5))))
    assert group.traffic.meter.training_bytes() == (2 * 32, 32)


def test_a_batch_in_passes_trains_as_rows_of_the_fast_tier() -> None:
    reference = make_group([0, 0], NUM_ROWS, [0, 0], [0, 0])
    train(reference, [(ids, NOTHING_TO_MOVE) for ids in BATCHES])
    # One slot: a pass for each cold row. Rows 5 and 7 of the second table are used before.
    passes = make_group([0, 0], NUM_HOT, [3, 2], NUM_ROWS, num_staging=1)
    used: set[int] = set()
    steps = []
    for ids in BATCHES:
        rows = sorted({row - 2 for _, row in ids if row >= 2})
        is_first = np.array([row not in used for row in rows])
        steps.append((ids, StepPlan(transfer=Transfer(), split=SplitBatch(array(*rows), is_first, 1))))
        used |= set(rows)
    train(passes, steps)
    assert_equal_tables(passes, reference)


@pytest.mark.parametrize(("sends", "num_vectors"), [("bags", 16), ("rows", 14)])
def test_rows_in_place_train_as_rows_of_the_fast_tier(sends: Any, num_vectors: int) -> None:
    reference = make_group([0, 0], NUM_ROWS, [0, 0], [0, 0])
    train(reference, [(ids, NOTHING_TO_MOVE) for ids in BATCHES])
    hybrid = make_group([0, 0], [0, 0], [0, 0], NUM_ROWS)
    train(hybrid, [(ids, StepPlan(in_place=InPlace(sends))) for ids in BATCHES])
    assert_equal_tables(hybrid, reference)
    assert hybrid.traffic.meter.training_bytes() == (num_vectors * DIM * 4, num_vectors * DIM * 4)


def test_rows_of_the_slow_tier_alone_may_be_in_place() -> None:
    group = make_group([0, 0], NUM_HOT, [0, 0], NUM_ROWS)
    group.slow.weights_SD[[0, 1, 3]] = 9.0  # stale copies of hot rows
    expected = torch.stack(
        [
            torch.stack([group.fast.weights_SD[0], group.slow.weights_SD[3 + 7]]),
            group.fast.weights_SD[[1, 3 + 0]],
        ]
    )
    with torch.no_grad():
        plan = StepPlan(in_place=InPlace("rows", is_whole=False))
        emb_BFD = group.look_up(part_of([[0, 7], [1, 0]], plan))
    assert torch.equal(emb_BFD, expected) and not emb_BFD.requires_grad
    assert group.traffic.meter.training_bytes() == (DIM * 4, 0)


def test_tables_are_put_together_from_both_tiers() -> None:
    whole = make_group([0, 0], NUM_ROWS, [0, 0], [0, 0])
    split = make_group([0, 0], NUM_HOT, NUM_HOT, NUM_ROWS)
    replica = make_group([0, 0], NUM_HOT, [0, 0], NUM_ROWS)
    assert_equal_tables(whole, split)
    assert_equal_tables(whole, replica)
    assert table_of(split, 1).shape == (8, DIM)


def test_a_plan_that_lists_too_little_is_a_bug() -> None:
    group = make_group([0, 0], NUM_HOT, NUM_HOT, NUM_ROWS)
    with pytest.raises(AssertionError, match="too few"):
        group.look_up(part_of([[0, 7]], NOTHING_TO_MOVE))


def test_a_slot_that_was_written_back_holds_no_row() -> None:
    """A copy of staged rows between transfers takes rows that are still staged alone."""
    group = make_group([0, 0], NUM_HOT, [3, 2], NUM_ROWS, num_staging=2)
    staged = Moves(array(0, 3), array(5, 6))
    group.load(Transfer(fetch=staged))
    group.load(Transfer(write_back=Moves(array(0), array(5))))
    group.slow.weights_SD[0] = 7.0
    group.slow.weights_SD[3] = 7.0
    group.write_back()
    assert torch.equal(group.slow.weights_SD[0], torch.full((DIM,), 7.0))
    assert torch.equal(group.slow.weights_SD[3], group.fast.weights_SD[6])
