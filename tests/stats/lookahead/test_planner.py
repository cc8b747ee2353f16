"""Miss ratios of policies: known traces, a slow LRU, and that none beats Belady.

The staging area between epochs: empty, as a new one is.

Planners against their slow twin, and their plans on a machine that runs them in any order allowed.

Tests what planners are made of, too: `policies`, `policies`, `step_plans`, `policies`,
`kernel`, `kernel`, `policies`, `step_plans` and `victims`.

Slots and prefetch depth fit each other, whatever the widths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.lookahead.planner import (
    POLICIES,
    CacheSweep,
    StagingPlanner,
    WidthSizes,
    cache_planner,
    deepest_prefetch,
    default_staging_bytes,
    distinct_stream,
    end_epoch,
    lookahead_planner,
    new_area,
    slots_of_widths,
    slots_to_try,
)
from hotset.stats.lookahead.policies import NOBODY, AreaState
from hotset.stats.lookahead.step_plans import (
    Residents,
    RowStream,
    StepPlans,
    TooFewSlotsError,
    Window,
    next_uses,
)
from hotset.tests.support.naive.naive_plans import (
    Item,
    Parts,
    PlanMachine,
    WrongPlanError,
    as_item,
    naive_items,
    num_warm,
    parts_of,
)


def sweep_of(batches: list[list[int]], num_rows: int, places: list[int] | None = None) -> CacheSweep:
    stream = RowStream.of([np.array(batch, np.int64) for batch in batches])
    place_of_row = np.arange(num_rows) if places is None else np.array(places, np.int64)
    return CacheSweep(stream, place_of_row, 12)


def naive_lru(batches: list[list[int]], num_slots: int) -> int:
    """Rows that came again, with a list from the oldest to the newest use."""
    held: list[int] = []
    seen: set[int] = set()
    again = 0
    for batch in batches:
        again += sum(row not in held and row in seen for row in batch)
        seen |= set(batch)
        held = [row for row in held if row not in batch]
        held = [*held[max(0, len(held) + len(batch) - num_slots) :], *batch]
    return again


batches_ = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), min_size=1, max_size=12)


@settings(max_examples=50, deadline=None)
@given(batches=batches_, num_slots=st.integers(4, 12), data=st.data())
def test_no_policy_fetches_less_than_belady(
    batches: list[list[int]], num_slots: int, data: st.DataObject
) -> None:
    places = data.draw(st.permutations(range(14)))[:10]
    sweep = sweep_of(batches, 10, places)
    found = {policy: sweep.refetches(policy, num_slots) for policy in POLICIES}
    assert found["lookahead"] == min(found.values())
    assert found["lru"] == naive_lru(batches, num_slots)
    assert sweep.least_slots == max(map(len, batches))


def test_a_known_trace() -> None:
    sweep = sweep_of([[0, 1], [2, 3], [0, 1], [2, 3]], 4)
    assert [sweep.refetches("lookahead", slots) for slots in (2, 3, 4)] == [4, 2, 0]
    assert [sweep.refetches("lru", slots) for slots in (2, 3, 4)] == [4, 2, 0]
    assert [sweep.refetches("static", slots) for slots in (2, 4)] == [4, 2]
    with pytest.raises(ValueError, match="no policy 'mru'"):
        sweep.refetches("mru", 4)


def test_rows_that_are_not_used_take_up_slots_too() -> None:
    batches = [[0], [1], [0], [1], [0], [1]]
    useful = sweep_of(batches, 2, [0, 1])
    useless = sweep_of(batches, 2, [10, 11])
    assert useful.refetches("static", 3) == 0
    assert useless.refetches("static", 3) == 4


def test_batches_become_their_distinct_rows() -> None:
    rows: NDArray[np.int64] = np.array([5, 5, 3, 1, 3, 1, 1], np.int64)
    stream = distinct_stream(rows, np.array([0, 3, 3, 6]))
    assert stream.rows.tolist() == [5, 3, 1, 3] and stream.offsets.tolist() == [0, 2, 2, 4]


def test_sizes_rise_from_the_least_to_the_most() -> None:
    assert slots_to_try(10, 1000, 3) == [10, 100, 1000]
    assert slots_to_try(10, 9, 3) == [10]
    assert slots_to_try(1, 3, 9) == [1, 2, 3]


NUM_SLOTS = 5
ANY_RANKS = np.empty(0, np.int32)


def naive_records(state: AreaState) -> None:
    """Empty the slots of ``state`` field by field."""
    for name, value in {"row": -1, "last_use": NOBODY, "is_pinned": 0, "is_listed": 0}.items():
        state.records[name] = value
    state.free[:] = np.arange(NUM_SLOTS - 1, -1, -1)


def test_an_ended_epoch_leaves_every_slot_empty_and_free(rng: np.random.Generator) -> None:
    state = new_area(40, NUM_SLOTS, ANY_RANKS, finds_uses=False)
    for name in state.records.dtype.names or ():
        state.records[name] = rng.integers(0, 2, NUM_SLOTS)
    state.records["row"] = [7, -1, 3, 30, 12]
    state.free[:] = 0
    wanted = state._replace(records=state.records.copy(), free=state.free.copy())
    naive_records(wanted)
    end_epoch(state)
    np.testing.assert_array_equal(state.records, wanted.records)
    np.testing.assert_array_equal(state.free, wanted.free)
    assert state.area[0].num_free == NUM_SLOTS


NUM_ROWS = 12
PLANNERS = ("lookahead", "window", "static", "lru", "lfu", "dataset")


class FixedWindow(Window):
    """A window that follows nothing."""

    def __init__(self, num_batches: int) -> None:
        super().__init__(1)
        self.num_batches = num_batches

    def follow(self, reaches: Iterable[int]) -> None:
        pass


@dataclass
class Trace:
    """Batches, the planner they go through, and in what portions."""

    policy: str
    batches: list[list[int]]
    lookups: list[list[int]]
    num_slots: int
    prefetch: int
    window: int
    group: int
    warmup_ratio: float
    portion: int
    seed: int
    splits: bool = False

    @property
    def warm(self) -> list[int]:
        return list(range(NUM_ROWS))[: num_warm(self.num_slots, self.warmup_ratio)] if self.is_cache else []

    @property
    def is_cache(self) -> bool:
        return self.policy in ("static", "lru", "lfu", "dataset")


@st.composite
def traces(draw: st.DrawFn, policies: tuple[str, ...] = PLANNERS) -> Trace:
    policy = draw(st.sampled_from(policies))
    rows = st.integers(0, NUM_ROWS - 1).map(lambda row: min(row, NUM_ROWS - 1))
    batches = draw(st.lists(st.lists(rows, max_size=4, unique=True), max_size=14))
    lookups = [[draw(st.integers(1, 5)) for _ in batch] for batch in batches]
    warmup_ratio = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    num_slots = draw(st.integers(max([1, *map(len, batches)]), 9))
    if policy == "static":
        warmup_ratio = 0.3
        num_slots += max(num_warm(num_slots + 4, 0.3), 1)
    return Trace(
        policy,
        batches,
        lookups,
        num_slots,
        prefetch=draw(st.integers(0, 4)),
        window=draw(st.integers(0, 6)),
        group=draw(st.integers(1, 3)),
        warmup_ratio=warmup_ratio,
        portion=draw(st.integers(1, 6)),
        seed=draw(st.integers(0, 2**32)),
    )


def arrays(lists: list[list[int]]) -> list[NDArray[np.int64]]:
    return [np.array(values, np.int64) for values in lists]


def planner_of(trace: Trace) -> StagingPlanner:
    if not trace.is_cache:
        window = FixedWindow(trace.window) if trace.policy == "window" else None
        return lookahead_planner(
            NUM_ROWS, trace.num_slots, prefetch=trace.prefetch, window=window, splits=trace.splits
        )
    order = np.arange(NUM_ROWS, dtype=np.int32)
    return cache_planner(
        trace.policy,  # type: ignore[arg-type]
        NUM_ROWS,
        trace.num_slots,
        prefetch=trace.prefetch,
        batches_per_item=trace.group,
        warmup_ratio=trace.warmup_ratio,
        warm_rows=order.astype(np.int64),
        warm_counts=order[::-1].astype(np.int64),
        rank_of_row=order,
        splits=trace.splits,
    )


def plan_epoch(planner: StagingPlanner, trace: Trace) -> tuple[list[StepPlans], Residents]:
    whole = RowStream.of(arrays(trace.batches), arrays(trace.lookups))
    uses = next_uses(whole.offsets, whole.rows, NUM_ROWS)
    plans: list[StepPlans] = []
    for first in range(0, len(trace.batches), trace.portion):
        stop = min(first + trace.portion, len(trace.batches))
        part = RowStream.of(arrays(trace.batches[first:stop]), arrays(trace.lookups[first:stop]))
        known = uses[whole.offsets[first] : whole.offsets[stop]]
        plans += planner.plan(replace(part, next_uses=known))
    plans += planner.plan_rest()
    return plans, planner.end_epoch()


def naive_epoch(trace: Trace, used: set[int]) -> tuple[list[Item], set[int]]:
    return naive_items(
        "lookahead" if trace.policy == "window" else trace.policy,
        trace.batches,
        trace.num_slots,
        trace.prefetch,
        lookups=trace.lookups,
        window=trace.window if trace.policy == "window" else len(trace.batches),
        group=trace.group if trace.is_cache else 1,
        warm=trace.warm,
        warm_counts=list(range(NUM_ROWS))[::-1],
        used_before=used,
    )


def all_parts(plans: list[StepPlans]) -> list[Parts]:
    return [part for plan in plans for part in parts_of(plan)]


@given(traces())
@settings(max_examples=60, deadline=None)
def test_plans_are_those_of_the_twin(trace: Trace) -> None:
    planner = planner_of(trace)
    used = set[int]()
    for _ in range(2):
        plans, residents = plan_epoch(planner, trace)
        items, home = naive_epoch(trace, used)
        assert [as_item(part) for part in all_parts(plans)] == items
        assert set(residents.rows.tolist()) == home


@given(traces())
@settings(max_examples=60, deadline=None)
def test_no_order_of_events_reads_a_stale_row_or_finds_no_slot(trace: Trace) -> None:
    plans, residents = plan_epoch(planner_of(trace), trace)
    for seed in range(3):
        PlanMachine(trace.batches, all_parts(plans), trace.num_slots, trace.seed + seed).run(residents)


@given(traces(("lookahead", "window", "lru", "lfu", "dataset")), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_batches_too_large_run_in_passes(trace: Trace, num_slots: int) -> None:
    trace = replace(trace, num_slots=num_slots, splits=True)
    plans, residents = plan_epoch(planner_of(trace), trace)
    parts = all_parts(plans)
    assert [part.is_split for part in parts] == [len(batch) > num_slots for batch in trace.batches]
    PlanMachine(trace.batches, parts, num_slots, trace.seed).run(residents)


@given(traces(("lookahead", "window", "lru", "lfu", "dataset")))
@settings(max_examples=60, deadline=None)
def test_a_batch_too_large_is_refused_with_the_number_that_would_do(trace: Trace) -> None:
    largest = max(map(len, trace.batches), default=0)
    if largest > 1:
        with pytest.raises(TooFewSlotsError) as refused:
            plan_epoch(planner_of(replace(trace, num_slots=1)), trace)
        assert 1 < refused.value.num_needed <= largest
    plan_epoch(planner_of(replace(trace, num_slots=max(largest, 1))), trace)


@given(traces())
@settings(max_examples=60, deadline=None)
def test_no_policy_fetches_fewer_rows_than_lookahead(trace: Trace) -> None:
    best = plan_epoch(planner_of(replace(trace, policy="lookahead", prefetch=0)), trace)[0]
    same = plan_epoch(planner_of(replace(trace, policy="lookahead")), trace)[0]
    other = plan_epoch(planner_of(trace), trace)[0]
    num_fetches = [sum(plan.fetch_rows.size for plan in plans) for plans in (best, same, other)]
    assert num_fetches[0] <= num_fetches[1]
    assert num_fetches[1] <= num_fetches[2] or trace.group > 1


@given(traces())
@settings(max_examples=60, deadline=None)
def test_hits_and_misses_are_all_lookups(trace: Trace) -> None:
    plans, _ = plan_epoch(planner_of(trace), trace)
    found = [lookups for plan in plans for lookups in (plan.num_hits + plan.num_misses).tolist()]
    assert found == [sum(lookups) for lookups in trace.lookups]
    ones = replace(trace, lookups=[[1] * len(batch) for batch in trace.batches])
    plans, _ = plan_epoch(planner_of(ones), ones)
    if trace.warmup_ratio == 0:
        assert sum(plan.num_misses.sum() for plan in plans) == sum(plan.fetch_rows.size for plan in plans)


REFERENCE_STRING = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1]
"""Silberschatz, Galvin and Gagne, Operating System Concepts, 10.4: 9 faults of OPT in 3 frames, 12 of LRU."""


def trace_of(policy: str, batches: list[list[int]], num_slots: int, **changes: Any) -> Trace:
    lookups = [[1] * len(batch) for batch in batches]
    return replace(Trace(policy, batches, lookups, num_slots, 0, 0, 1, 0.0, 20, 0), **changes)


def fetched(trace: Trace) -> list[list[int]]:
    return [
        [row for row, _, _ in part.fetches] for part in all_parts(plan_epoch(planner_of(trace), trace)[0])
    ]


@pytest.mark.parametrize(("policy", "num_faults"), [("lookahead", 9), ("lru", 12)])
def test_a_known_reference_string_faults_as_often_as_known(policy: str, num_faults: int) -> None:
    trace = trace_of(policy, [[row] for row in REFERENCE_STRING], 3)
    assert sum(map(len, fetched(trace))) == num_faults


def test_lfu_lets_the_row_with_the_fewest_lookups_go() -> None:
    # 0 and 1 have two lookups each when 3 comes, 2 has one; a row that comes again begins at 0.
    batches = [[0], [0], [1], [1], [2], [3], [2], [3]]
    assert fetched(trace_of("lfu", batches, 3)) == [[0], [], [1], [], [2], [3], [2], [3]]


def test_dataset_lets_the_last_rank_go_but_never_a_row_of_the_batch() -> None:
    batches = [[9, 8], [1], [9, 2], [8]]
    assert fetched(trace_of("dataset", batches, 2)) == [[9, 8], [1], [9, 2], [8]]
    assert fetched(trace_of("dataset", batches, 3)) == [[9, 8], [1], [2], [8]]


def test_static_keeps_the_warm_rows_alone() -> None:
    batches = [[9], [0], [9, 1], [5], [0]]
    assert fetched(trace_of("static", batches, 4, warmup_ratio=0.5)) == [[9, 0, 1], [], [9], [5], []]
    assert fetched(trace_of("static", [[9], [8], [9]], 4, warmup_ratio=0.5)) == [[9, 0, 1], [8], [9]]


def test_one_item_serves_a_window_of_batches() -> None:
    batches = [[0], [1], [2], [0], [4], [5]]
    assert fetched(trace_of("lru", batches, 3, group=3)) == [[0, 1, 2], [], [], [4, 5], [], []]
    assert fetched(trace_of("lru", batches, 2, group=3)) == [[0, 1], [], [2], [], [4, 5], []]


def test_a_limited_view_takes_all_rows_beyond_it_for_equally_far() -> None:
    # When 3 comes, 2 is not used again, but only a view of three batches shows that 0 and 1 are.
    batches = [[0], [1], [2], [3], [3], [0], [1]]
    assert fetched(trace_of("window", batches, 3, window=1))[3:] == [[3], [], [0], []]
    assert fetched(trace_of("window", batches, 3, window=3))[3:] == [[3], [], [], []]


def test_of_rows_that_are_used_next_in_the_same_step_the_one_used_longest_ago_goes() -> None:
    # That step is known only when six of them have had their last use, and names the latest one first.
    batches = [*([row] for row in range(7)), [7, 8, 9], [6, 5, 4, 3, 2, 1, 0]]
    assert fetched(trace_of("window", batches, 7, window=1))[8] == [2, 1, 0]


def test_a_transfer_may_run_ahead_by_the_prefetch_depth() -> None:
    batches = [[0], [1], [2], [3], [4], [5]]
    for prefetch, after in [(0, [-1, 0, 1, 2, 3, 4]), (1, [-1, -1, 0, 1, 2, 3]), (3, [-1, -1, -1, -1, 0, 1])]:
        trace = trace_of("lookahead", batches, 4, prefetch=prefetch)
        parts = all_parts(plan_epoch(planner_of(trace), trace)[0])
        assert [part.after for part in parts] == after
        assert not any(part.is_shortened for part in parts)


def test_a_step_is_shortened_where_too_few_rows_may_leave() -> None:
    trace = trace_of("lookahead", [[0, 1], [2, 3], [0, 1], [2, 3]], 3, prefetch=1)
    parts = all_parts(plan_epoch(planner_of(trace), trace)[0])
    assert [part.after for part in parts] == [-1, 0, 1, 2]
    assert [part.is_shortened for part in parts] == [False, True, True, True]


FAULTS: dict[str, Callable[[Parts], Parts]] = {
    "starts one step early": lambda part: replace(part, after=part.after - 1),
    "skips a write-back": lambda part: replace(part, write_backs=part.write_backs[1:]),
    "makes a row that was used before": lambda part: replace(
        part, fetches=[(row, slot, True) for row, slot, _ in part.fetches]
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("policy", ["lookahead", "lru", "lfu", "dataset"])
def test_a_plan_with_a_fault_is_found_out(fault: str, policy: str, rng: np.random.Generator) -> None:
    batches = [rng.choice(NUM_ROWS, 2, replace=False).tolist() for _ in range(60)]
    trace = trace_of(policy, batches, 5, prefetch=3)
    plans, residents = plan_epoch(planner_of(trace), trace)
    parts = all_parts(plans)
    faulty = [FAULTS[fault](part) for part in parts]
    with pytest.raises(WrongPlanError):
        for seed in range(50):
            PlanMachine(batches, faulty, trace.num_slots, seed).run(residents)


def test_a_planner_is_told_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="num_slots must be 1 or more, got 0"):
        lookahead_planner(1, 0, prefetch=0)
    with pytest.raises(ValueError, match="prefetch depth must be 0 or more, got -1"):
        lookahead_planner(1, 1, prefetch=-1)
    with pytest.raises(ValueError, match="no cache policy 'fifo'"):
        cache_planner("fifo", 1, 1, prefetch=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dataset needs the rank of 3 rows, got 0"):
        cache_planner("dataset", 3, 1, prefetch=0)
    with pytest.raises(ValueError, match="needs the next use"):
        lookahead_planner(1, 1, prefetch=0).plan(RowStream.of(arrays([[0]])))


def test_rows_that_cross_are_counted_with_first_uses_and_without() -> None:
    trace = trace_of("lru", [[0], [1], [0], [2, 3, 4]], 1, splits=True)
    (plans,), residents = plan_epoch(planner_of(trace), trace)
    assert plans.rows_to_fast(initializes_first_uses=False).tolist() == [1, 1, 1, 6]
    assert plans.rows_to_fast(initializes_first_uses=True).tolist() == [0, 0, 1, 0]
    assert plans.rows_to_slow().tolist() == [0, 1, 1, 4]
    assert residents.rows.size == 0


NARROW = WidthSizes(num_hot=10, num_cold=9_000, row_bytes=64, num_in_batch=100)
WIDE = WidthSizes(num_hot=5, num_cold=1_000, row_bytes=256, num_in_batch=90)


def test_the_hot_rows_set_the_default_where_they_are_many() -> None:
    many = WidthSizes(num_hot=5_000, num_cold=9_000, row_bytes=64, num_in_batch=100)
    assert default_staging_bytes([many], None) == 5_000 * 64
    assert deepest_prefetch([many], 5_000 * 64) == 2


@pytest.mark.parametrize("prefetch", [None, 0, 1, 2, 4])
@pytest.mark.parametrize("widths", [[NARROW], [NARROW, WIDE], [WIDE, NARROW]])
def test_the_default_has_room_for_two_batches_for_each_one_ahead(
    prefetch: int | None, widths: list[WidthSizes]
) -> None:
    num_bytes = default_staging_bytes(widths, prefetch)
    wanted = 1 if prefetch is None else prefetch
    for slots, width in zip(slots_of_widths(widths, num_bytes), widths, strict=True):
        assert slots >= min(2 * (wanted + 1) * width.num_in_batch, width.num_cold)
    assert deepest_prefetch(widths, num_bytes) >= min(wanted, 2)


def test_the_depth_follows_the_slots() -> None:
    found = [deepest_prefetch([NARROW], slots * 64) for slots in (50, 399, 400, 599, 600, 9_000)]
    assert found == [0, 0, 1, 1, 2, 2]


def test_a_slot_for_every_cold_row_allows_any_depth() -> None:
    few = WidthSizes(num_hot=1, num_cold=150, row_bytes=64, num_in_batch=100)
    assert deepest_prefetch([few], 150 * 64) == 2
    assert default_staging_bytes([few], None) < 160 * 64


def test_without_cold_rows_there_is_nothing_to_choose() -> None:
    assert default_staging_bytes([WidthSizes(7, 0, 64, 0)], None) == 7 * 64
    assert deepest_prefetch([WidthSizes(7, 0, 64, 0)], 0) == 2
