"""The copy of all hot rows at a switch.

FAE: which tier serves a batch, when hot rows are copied, and the order of batches.

The shuffle scheduler on hand-made sequences of test losses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hotset.train.data.batch import EmbeddingTable
from hotset.train.metrics import Meter
from hotset.train.placements.fae import Fae, FaeOrder, HotCopies, ShuffleScheduler
from hotset.train.rows.step_plan import NOTHING_TO_MOVE, GroupStep, HotCopy, InPlace, PlannedStep, StepPlan
from hotset.train.rows.tiers import Layout, Tier, TrafficCounter

NUM_ROWS, NUM_HOT = [4, 3, 6], [2, 0, 5]


def make_tiers() -> tuple[Tier, Tier]:
    fast, slow = (Tier(Layout.of([0, 0, 0], last), 3, 2, num_staging=1) for last in (NUM_HOT, NUM_ROWS))
    for tier, sign in ((fast, 1), (slow, -1)):
        numbers = torch.arange(tier.weights_SD.numel(), dtype=torch.float32)
        tier.weights_SD.copy_(sign * numbers.view_as(tier.weights_SD))
        tier.state_SW.copy_(sign * torch.arange(tier.state_SW.numel()).view_as(tier.state_SW))
    return fast, slow


def step_with(plan: StepPlan) -> PlannedStep:
    """Return a step of which only the plan is looked at."""
    nothing: Any = None
    return PlannedStep(0, nothing, 0, (GroupStep(nothing, nothing, plan=plan),))


def copies_of(fast: Tier, slow: Tier, meter: Meter) -> HotCopies:
    traffic = TrafficCounter(meter, slow.layout)
    group: Any = SimpleNamespace(placement=Fae([]), fast=fast, slow=slow, traffic=traffic)
    embeddings: Any = SimpleNamespace(groups=[group], transfers=SimpleNamespace(paused=nullcontext))
    return HotCopies(embeddings)


@pytest.mark.parametrize("direction", ["to_fast", "to_slow"])
def test_weights_and_state_of_every_hot_row_are_copied_and_nothing_else(direction: HotCopy) -> None:
    fast, slow = make_tiers()
    fast_before, slow_before = make_tiers()
    meter = Meter(torch.device("cpu"))
    meter.enter("mixed")
    copies_of(fast, slow, meter).before_step(step_with(StepPlan(copy_hot=direction)))
    assert getattr(meter, f"bytes_{direction}")["switch"] == sum(NUM_HOT) * fast.row_bytes
    assert slow.is_stale == (direction == "to_fast")
    pairs = [(table, row) for table in range(3) for row in range(NUM_HOT[table])]
    for name in ("weights_SD", "state_SW"):
        expected_fast, expected_slow = getattr(fast_before, name).clone(), getattr(slow_before, name).clone()
        for table, row in pairs:
            on_fast = fast.layout.slots_of_table(table).start + row
            on_slow = slow.layout.slots_of_table(table).start + row
            if direction == "to_fast":
                expected_fast[on_fast] = getattr(slow_before, name)[on_slow]
            else:
                expected_slow[on_slow] = getattr(fast_before, name)[on_fast]
        assert torch.equal(getattr(fast, name), expected_fast)
        assert torch.equal(getattr(slow, name), expected_slow)


def test_the_end_copies_hot_rows_where_they_are_newer_on_the_fast_tier() -> None:
    fast, slow = make_tiers()
    meter = Meter(torch.device("cpu"))
    meter.enter("flush")
    copies = copies_of(fast, slow, meter)
    copies.finish()
    assert meter.bytes_to_slow["switch"] == 0
    slow.is_stale = True
    copies.finish()
    assert meter.bytes_to_slow["switch"] == sum(NUM_HOT) * fast.row_bytes and not slow.is_stale


TABLES = [EmbeddingTable("C1", 4, 2, 16), EmbeddingTable("C2", 6, 3, 16)]


def test_hot_rows_are_copied_where_the_kind_of_batch_changes() -> None:
    placement = Fae(TABLES)
    kinds = (False, False, True, True, False, True)
    copies = [placement.plan(is_hot_only=is_hot_only).copy_hot for is_hot_only in kinds]
    assert copies == [None, None, "to_fast", None, "to_slow", "to_fast"]


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
    assert placement.plan_evaluation(is_stale=False) == StepPlan(in_place=InPlace("bags"))
    of_cold_rows = StepPlan(in_place=InPlace("rows", is_whole=False))
    assert placement.plan_evaluation(is_stale=True) == of_cold_rows


def run_order(
    num_hot_only: int, num_mixed: int, losses: list[float], epochs: int = 1, variant: str = "paper"
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


@pytest.mark.parametrize(
    ("order", "losses", "wanted"),
    [
        pytest.param(
            (8, 4, 1, "paper"), [0.5, 0.4, 0.3], [("mixed", 2), ("hot", 4)] * 2, id="mixed ones come first"
        ),
        pytest.param(
            (8, 8, 1, "paper"),
            [0.5, 0.6, 0.6, 0.6, 0.6],
            [("mixed", 4), ("hot", 4), *[("mixed", 2), ("hot", 2)] * 2],
            id="a rise of the test loss shortens the turns",
        ),
        pytest.param(
            (4, 4, 2, "paper"),
            [0.5, *[0.6] * 12],
            [("mixed", 2), ("hot", 2), *[("mixed", 1), ("hot", 1)] * 6],
            id="the rate is kept over epochs",
        ),
        pytest.param(
            (6, 4, 2, "code"), [], [("mixed", 4), ("hot", 6)] * 2, id="the code's variant tests nothing"
        ),
    ],
)
def test_turns_follow_the_test_losses(
    order: tuple[int, int, int, str], losses: list[float], wanted: list[tuple[str, int]]
) -> None:
    num_hot_only, num_mixed, epochs, variant = order
    numbers, phases, left = run_order(num_hot_only, num_mixed, losses, epochs=epochs, variant=variant)
    assert phases == wanted and left == []
    assert sorted(numbers) == sorted([*range(num_hot_only + num_mixed)] * epochs)


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


@pytest.mark.parametrize(
    ("losses", "start", "wanted"),
    [
        pytest.param([123.0], 50.0, [50.0], id="the first changes nothing"),
        pytest.param([0.5, 0.6, 0.7, 0.7], 50.0, [50, 25, 12.5, 12.5], id="a rise halves"),
        pytest.param([0.1, 0.2, 0.3, 0.4], 3.0, [3, 1.5, 1, 1], id="one at least"),
        pytest.param([0.9, 0.8, 0.7, 0.6, 0.5], 80.0, [80, 80, 80, 80, 100], id="a hundred at most"),
        pytest.param(
            [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1],
            10.0,
            [10, 10, 10, 10, 20, 20, 20, 20, 40],
            id="four falls in a row double, and count anew",
        ),
        pytest.param(
            [0.9, 0.8, 0.7, 0.6, 0.65, 0.6, 0.55, 0.5, 0.45],
            50.0,
            [50, 50, 50, 50, 25, 25, 25, 25, 50],
            id="a rise breaks a row of falls",
        ),
        pytest.param([0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.4, 0.3], 50.0, [50] * 8, id="an equal one, too"),
    ],
)
def test_losses_change_the_rate(losses: list[float], start: float, wanted: list[float]) -> None:
    scheduler = ShuffleScheduler(rate=start)
    found = []
    for loss in losses:
        scheduler.observe(loss)
        found.append(scheduler.rate)
    assert found == wanted and scheduler.losses == losses


@pytest.mark.parametrize(
    ("rate", "num_mixed", "num_hot_only", "expected"),
    [
        (50.0, 10, 30, [(5, 15), (5, 15)]),
        (100.0, 10, 30, [(10, 30)]),
        (1.0, 3, 6, [(1, 2), (1, 2), (1, 2)]),
        (50.0, 4, 1, [(2, 0), (2, 1)]),
        (40.0, 5, 7, [(2, 2), (2, 3), (1, 2)]),
        (50.0, 6, 0, [(3, 0), (3, 0)]),
        (50.0, 0, 4, [(0, 4)]),
    ],
)
def test_a_turn_is_a_share_of_the_epoch(
    rate: float, num_mixed: int, num_hot_only: int, expected: list[tuple[int, int]]
) -> None:
    assert list(ShuffleScheduler(rate=rate).turns(num_mixed, num_hot_only)) == expected


def test_a_changed_rate_holds_from_the_next_turn() -> None:
    scheduler = ShuffleScheduler()
    turns = scheduler.turns(8, 8)
    assert next(turns) == (4, 4)
    scheduler.rate = 25.0
    assert list(turns) == [(2, 2), (2, 2)]


def test_the_variants_are_those_of_paper_and_code() -> None:
    paper, code = ShuffleScheduler.variant("paper"), ShuffleScheduler.variant("code")
    assert (paper.rate, paper.is_adaptive) == (50.0, True)
    assert (code.rate, code.is_adaptive) == (100.0, False)
