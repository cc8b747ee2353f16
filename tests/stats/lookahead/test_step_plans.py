"""Next fetches over a whole run: held against a walk forward that remembers who is waiting.

The window of look-ahead against a slow twin, its buffers on random traces, and its limit of memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.lookahead import planner as module
from hotset.stats.lookahead.planner import StagingPlanner, lookahead_planner
from hotset.stats.lookahead.step_plans import (
    ENTRY_BYTES,
    LEAST_WINDOW,
    NO_FETCH,
    Residents,
    RowStream,
    RowTraffic,
    StepPlans,
    Window,
    cut_groups,
    find_next_fetches,
    in_order,
    next_uses,
)
from hotset.tests.support.naive.naive_plans import Item, PlanMachine, as_item, naive_items, parts_of


def test_rows_are_put_in_order_with_their_lookups() -> None:
    rows, lookups = in_order(np.array([7, 2**31 - 1, 0], np.int32), np.array([3, 1, 2**32 - 1], np.int64))
    assert (rows.tolist(), lookups.tolist()) == ([0, 7, 2**31 - 1], [2**32 - 1, 3, 1])


def planned_epochs(
    rng: np.random.Generator, num_rows: int, num_slots: int, num_epochs: int
) -> list[tuple[StepPlans, Residents]]:
    """Epochs of batches of up to twice as many rows as slots, so that some are split."""
    planner = lookahead_planner(num_rows, num_slots, prefetch=1, splits=True)
    epochs = []
    for _ in range(num_epochs):
        sizes = rng.integers(0, min(2 * num_slots + 2, num_rows), 12)
        stream = RowStream.of([rng.permutation(num_rows)[:size] for size in sizes])
        uses = next_uses(stream.offsets, stream.rows, num_rows)
        (plans,) = planner.plan(RowStream(stream.offsets, stream.rows, None, uses))
        assert planner.num_held_back == 0
        epochs.append((plans, planner.end_epoch()))
    return epochs


def naive_next_fetches(epochs: list[tuple[StepPlans, Residents]]) -> list[list[int]]:
    """For each write-back of the run, in order, the number of the next fetch of its row.

    Of each epoch three lists: of write-backs, of rows of split steps, of residents.
    """
    number = 0
    waiting: dict[int, tuple[list[int], int]] = {}
    lists: list[list[int]] = []
    for plans, residents in epochs:
        backs = [NO_FETCH] * plans.write_back_rows.size
        splits = [NO_FETCH] * plans.fetch_rows.size
        for step in range(plans.num_steps):
            for i in range(plans.write_back_offsets[step], plans.write_back_offsets[step + 1]):
                waiting[int(plans.write_back_rows[i])] = (backs, i)
            fetches = range(plans.fetch_offsets[step], plans.fetch_offsets[step + 1])
            for i in fetches:
                if not plans.fetch_is_first[i]:
                    where, position = waiting.pop(int(plans.fetch_rows[i]))
                    where[position] = number
                    number += 1
            for i in fetches if plans.is_split[step] else ():
                waiting[int(plans.fetch_rows[i])] = (splits, i)
        left = [NO_FETCH] * residents.rows.size
        for i, row in enumerate(residents.rows.tolist()):
            waiting[row] = (left, i)
        lists += [backs, splits, left]
    return lists


@pytest.mark.parametrize("rows_of_pass", [3, 40, 1000])
@pytest.mark.parametrize("num_slots", [1, 5, 30])
def test_next_fetches_agree_with_a_walk_forward(
    num_slots: int, rows_of_pass: int, rng: np.random.Generator
) -> None:
    num_rows = 40
    epochs = planned_epochs(rng, num_rows, num_slots, 3)
    total = sum(int(np.count_nonzero(~plans.fetch_is_first)) for plans, _ in epochs)
    found = [
        (
            np.full(plans.write_back_rows.size, -7),
            np.full(plans.fetch_rows.size, -7),
            np.full(residents.rows.size, -7),
        )
        for plans, residents in epochs
    ]
    # The rows of one range after another, each from the end of the run to its start.
    for first_row in range(0, num_rows, rows_of_pass):
        next_of_row = np.full(min(rows_of_pass, num_rows - first_row), NO_FETCH, np.int64)
        end = total
        for (plans, residents), (backs, splits, left) in zip(epochs[::-1], found[::-1], strict=True):
            rows = residents.rows - first_row
            is_inside = (rows >= 0) & (rows < next_of_row.size)
            left[is_inside] = next_of_row[rows[is_inside]]
            end = find_next_fetches(plans, end, first_row, next_of_row, backs, splits)
        assert end == 0
    is_split = [
        np.repeat(plans.is_split, np.diff(plans.fetch_offsets)).astype(np.bool_) for plans, _ in epochs
    ]
    naive = naive_next_fetches(epochs)
    assert total > 0 and (num_slots == 30 or any(mask.any() for mask in is_split))
    for number, (backs, splits, left) in enumerate(found):
        assert backs.tolist() == naive[3 * number] and left.tolist() == naive[3 * number + 2]
        mask = is_split[number]
        assert splits[mask].tolist() == np.array(naive[3 * number + 1])[mask].tolist()
        assert (splits[~mask] == -7).all()


@pytest.mark.parametrize(
    ("fetches", "capacity", "wanted"),
    [
        ([], 5, [0, 0]),
        ([0, 0], 5, [0, 0]),
        ([3, 2, 1, 4, 0, 1], 5, [0, 5, 10, 11]),
        ([5, 5], 5, [0, 5, 10]),
        ([1, 1, 1], 100, [0, 3]),
    ],
)
def test_groups_are_whole_items(fetches: list[int], capacity: int, wanted: list[int]) -> None:
    assert cut_groups(np.array(fetches, np.int64), capacity).tolist() == wanted


def test_an_item_larger_than_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="fetches 6 rows, a group holds 5"):
        cut_groups(np.array([1, 6]), 5)


def test_groups_cover_all_fetches(rng: np.random.Generator) -> None:
    fetches: NDArray[np.int64] = rng.integers(0, 9, 200)
    bounds = cut_groups(fetches, 11)
    ends = np.cumsum(fetches)
    assert bounds[0] == 0 and bounds[-1] == ends[-1] and (np.diff(bounds) > 0).all()
    assert (np.diff(bounds) <= 11).all() and set(bounds[1:].tolist()) <= set(ends.tolist())


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
@settings(max_examples=80, deadline=None)
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
