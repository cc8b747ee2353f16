"""The window of look-ahead against a slow twin, its buffers on random traces, and its limit of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.lookahead import planner as module
from hotset.stats.lookahead.kernel import hold_steps
from hotset.stats.lookahead.planner import StagingPlanner, lookahead_planner
from hotset.stats.lookahead.step_plans import Residents, RowStream, RowTraffic, StepPlans, next_uses
from hotset.stats.lookahead.window import ENTRY_BYTES, LEAST_WINDOW, Window
from hotset.tests.support.naive.naive_plans import Item, PlanMachine, as_item, naive_items, parts_of

NUM_ROWS = 40
Batches = list[list[int]]


@dataclass
class NaiveWindow:
    """How many batches are known behind the one that is planned, by the rule, one batch after another."""

    batches: Batches
    num_slots: int
    least: int
    most_entries: int
    num_known: int = 0
    width: int | None = None
    seen: list[int] = field(default_factory=list)
    is_capped: bool = False
    is_rest: bool = False

    def __call__(self, items: list[Item]) -> int:
        step = len(items)
        if items and not self.is_rest:
            self.follow(items[-1].reach)
        while not self.is_rest and not self.is_covered(step):
            if self.num_known == len(self.batches):
                self.is_rest = True
            elif self.num_known > step and self.entries(step, self.num_known + 1) > self.most_entries:
                self.is_capped = True
                self.width = self.num_known - step - 1
                break
            else:
                self.num_known += 1
        return self.num_known - step - 1

    def entries(self, first: int, stop: int) -> int:
        return sum(map(len, self.batches[first:stop]))

    def is_covered(self, step: int) -> bool:
        num_held = self.num_known - step
        if self.width is None and num_held > self.least:
            turnover = Fraction(6 * self.num_slots * num_held, max(self.entries(step, self.num_known), 1))
            self.width = max(self.least, math.ceil(turnover))
        return self.width is not None and num_held > self.width

    def follow(self, reach: int) -> None:
        self.seen += [reach] * (reach >= 0)
        if len(self.seen) == 16:
            assert self.width is not None
            known = sorted(reach for reach in self.seen if reach > 0)
            median = known[len(known) // 2] if known else 0
            self.width = (
                max(self.least, math.ceil(1.5 * median))
                if len(known) >= 13
                else math.ceil(1.5 * max(self.width, 1))
            )
            self.seen = []


def random_batches(seed: int, num_batches: int, most: int, once_share: float) -> Batches:
    """Batches of rows of which some are common, and some come once in a long while."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(num_batches):
        size = int(rng.integers(0, most + 1))
        rare = rng.random(size) < once_share
        rows = np.where(rare, rng.integers(0, NUM_ROWS, size), np.minimum(rng.zipf(1.4, size), NUM_ROWS) - 1)
        batches.append(list(dict.fromkeys(rows.tolist())))
    return batches


def stream_of(batches: Batches) -> RowStream:
    return RowStream.of([np.array(batch, np.int64) for batch in batches])


def planned(planner: StagingPlanner, batches: Batches, portion: int) -> tuple[list[StepPlans], Residents]:
    """Plan an epoch, ``portion`` batches at a time."""
    plans: list[StepPlans] = []
    for first in range(0, len(batches), portion):
        plans += planner.plan(stream_of(batches[first : first + portion]))
    plans += planner.plan_rest()
    return plans, planner.end_epoch()


traces = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "num_batches": st.integers(0, 110),
        "most": st.integers(1, 6),
        "once_share": st.sampled_from([0.0, 0.3, 0.9]),
        "num_slots": st.integers(6, 16),
        "prefetch": st.integers(0, 2),
        "least": st.integers(0, 9),
        "most_entries": st.sampled_from([1, 7, 30, 10**6]),
        "portion": st.sampled_from([1, 3, 1000]),
    }
)


@given(traces)
@settings(max_examples=150, deadline=None)
def test_plans_are_those_of_a_twin_with_the_rule_of_windows(trace: dict[str, Any]) -> None:
    window = Window(trace["num_slots"], trace["most_entries"] * ENTRY_BYTES, trace["least"])
    planner = lookahead_planner(NUM_ROWS, trace["num_slots"], prefetch=trace["prefetch"], window=window)
    used = set[int]()
    twin = NaiveWindow([], trace["num_slots"], trace["least"], trace["most_entries"])
    for epoch in range(2):
        batches = random_batches(
            trace["seed"] + epoch, trace["num_batches"], trace["most"], trace["once_share"]
        )
        plans, residents = planned(planner, batches, trace["portion"])
        # What the window has seen goes on from epoch to epoch.
        twin.batches, twin.num_known, twin.is_rest = batches, 0, False
        items, home = naive_items(
            "lookahead", batches, trace["num_slots"], trace["prefetch"], window=twin, used_before=used
        )
        if items and not twin.is_rest:
            twin.follow(items[-1].reach)
        parts = [part for plan in plans for part in parts_of(plan)]
        assert [as_item(part) for part in parts] == items
        assert set(residents.rows.tolist()) == home
        PlanMachine(batches, parts, trace["num_slots"], trace["seed"]).run(residents)
    assert window.is_capped == twin.is_capped
    assert window.num_batches == twin.width


@given(traces)
@settings(max_examples=60, deadline=None)
def test_plans_do_not_depend_on_how_many_batches_are_given_together(trace: dict[str, Any]) -> None:
    batches = random_batches(trace["seed"], trace["num_batches"], trace["most"], trace["once_share"])
    found = []
    for portion in (1, 5, 1000):
        window = Window(trace["num_slots"], trace["most_entries"] * ENTRY_BYTES, trace["least"])
        planner = lookahead_planner(NUM_ROWS, trace["num_slots"], prefetch=1, window=window)
        plans, _ = planned(planner, batches, portion)
        found.append([part for plan in plans for part in parts_of(plan)])
    assert found[0] == found[1] == found[2]


def test_a_window_of_the_whole_epoch_plans_as_exact_next_uses_do(monkeypatch: pytest.MonkeyPatch) -> None:
    # Buffers that begin small grow in the middle of an epoch, with their ends in the middle, too.
    monkeypatch.setattr(module, "_LEAST_ENTRIES", 8)
    monkeypatch.setattr(module, "_LEAST_STEPS", 2)
    batches = random_batches(3, 300, 6, 0.3)
    whole = stream_of(batches)
    exact = lookahead_planner(NUM_ROWS, 12, prefetch=1)
    uses = next_uses(whole.offsets, whole.rows, NUM_ROWS)
    (wanted,) = exact.plan(RowStream(whole.offsets, whole.rows, None, uses))
    following = lookahead_planner(NUM_ROWS, 12, prefetch=1, window=Window(12, least=1000))
    assert not following.plan(whole)
    (rest,) = following.plan_rest()
    assert list(parts_of(rest)) == list(parts_of(wanted))


def moved(planner: StagingPlanner, stream: RowStream) -> int:
    traffic = RowTraffic()
    traffic.add([*planner.plan(stream), *planner.plan_rest()])
    return traffic.rows_to_fast + traffic.rows_made + traffic.rows_to_slow + planner.end_epoch().rows.size


def test_the_window_settles_above_the_nearest_next_use_that_is_evicted() -> None:
    # Every row comes every 30 batches, and slots are for two thirds of them.
    batches = [[10 * (step % 30) + i for i in range(10)] for step in range(1500)]
    whole = stream_of(batches)
    uses = next_uses(whole.offsets, whole.rows, 300)
    window = Window(200, least=2)
    window.num_batches = 3
    found = moved(lookahead_planner(300, 200, prefetch=0, window=window), whole)
    best = moved(lookahead_planner(300, 200, prefetch=0), RowStream(whole.offsets, whole.rows, None, uses))
    assert window.num_batches is not None and 20 < window.num_batches < 60
    assert best <= found < 1.1 * best
    assert not window.is_capped


def test_rows_that_never_come_again_let_the_window_grow_up_to_its_memory() -> None:
    batches = [[5 * step + i for i in range(5)] for step in range(2000)]
    window = Window(20, num_bytes=300 * ENTRY_BYTES)
    planner = lookahead_planner(10_000, 20, prefetch=0, window=window)
    for batch in batches:
        planner.plan(stream_of([batch]))
        assert planner.num_held_back <= 60
        assert planner._held.rows.size <= 4096
    assert window.is_capped and planner.num_held_back == 60
    assert window.num_batches == 59 or window.num_batches == math.ceil(1.5 * 59)


def test_without_memory_for_a_window_batches_are_planned_one_at_a_time() -> None:
    planner = lookahead_planner(40, 8, prefetch=0, window=Window(8, num_bytes=0))
    batches = ([1, 2], [3], [1])
    assert [len(planner.plan(stream_of([batch]))) for batch in batches] == [0, 2, 1]
    assert not [*planner.plan_rest()]


def test_the_first_window_is_the_time_that_slots_take_to_turn_over_six_times() -> None:
    window = Window(1000)
    assert not window.is_covered(LEAST_WINDOW, LEAST_WINDOW * 10)
    assert not window.is_covered(LEAST_WINDOW + 1, (LEAST_WINDOW + 1) * 10)
    assert window.num_batches == 600
    assert window.is_covered(601, 6010) and not window.is_covered(600, 6000)


def test_a_lost_next_use_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(state: Any, *others: Any) -> None:
        hold_steps(state, *others)
        state.last_place[:] = -1

    monkeypatch.setattr(module, "hold_steps", forgetful)
    with pytest.raises(AssertionError):
        test_a_window_of_the_whole_epoch_plans_as_exact_next_uses_do(monkeypatch)
