"""Planners against their slow twin, and their plans on a machine that runs them in any order allowed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.cache_policies import StagingPlanner, cache_planner, lookahead_planner
from hotset.stats.lookahead import next_uses
from hotset.stats.step_plan_stream import Residents, RowStream, StepPlans
from hotset.tests.naive_plans import Item, Machine, Parts, as_item, naive_items, num_warm, parts_of

NUM_ROWS = 12
POLICIES = ("lookahead", "window", "static", "lru", "lfu", "dataset")


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

    @property
    def warm(self) -> list[int]:
        return list(range(NUM_ROWS))[: num_warm(self.num_slots, self.warmup_ratio)] if self.is_cache else []

    @property
    def is_cache(self) -> bool:
        return self.policy in ("static", "lru", "lfu", "dataset")


@st.composite
def traces(draw: st.DrawFn, policies: tuple[str, ...] = POLICIES) -> Trace:
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
    if trace.policy == "lookahead":
        return lookahead_planner(NUM_ROWS, trace.num_slots, prefetch=trace.prefetch)
    if trace.policy == "window":
        return lookahead_planner(NUM_ROWS, trace.num_slots, prefetch=trace.prefetch, window=trace.window)
    order = np.arange(NUM_ROWS)
    return cache_planner(
        trace.policy,  # type: ignore[arg-type]
        NUM_ROWS,
        trace.num_slots,
        prefetch=trace.prefetch,
        batches_per_item=trace.group,
        warmup_ratio=trace.warmup_ratio,
        warm_rows=order,
        warm_counts=order[::-1].copy(),
        rank_of_row=order,
    )


def plan_epoch(planner: StagingPlanner, trace: Trace) -> tuple[list[StepPlans], Residents]:
    whole = RowStream.of(arrays(trace.batches), arrays(trace.lookups))
    uses = next_uses(whole.offsets, whole.rows, NUM_ROWS)
    plans = []
    for first in range(0, len(trace.batches), trace.portion):
        stop = min(first + trace.portion, len(trace.batches))
        part = RowStream.of(arrays(trace.batches[first:stop]), arrays(trace.lookups[first:stop]))
        known = uses[whole.offsets[first] : whole.offsets[stop]]
        plans.append(planner.plan(replace(part, next_uses=known)))
    rest, residents = planner.finish()
    return [*plans, rest], residents


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
@settings(max_examples=400, deadline=None)
def test_plans_are_those_of_the_twin(trace: Trace) -> None:
    planner, used = planner_of(trace), set[int]()
    for _ in range(2):
        plans, residents = plan_epoch(planner, trace)
        items, home = naive_epoch(trace, used)
        assert [as_item(part) for part in all_parts(plans)] == items
        assert set(residents.rows.tolist()) == home


@given(traces())
@settings(max_examples=400, deadline=None)
def test_no_order_of_events_reads_a_stale_row_or_finds_no_slot(trace: Trace) -> None:
    plans, residents = plan_epoch(planner_of(trace), trace)
    for seed in range(3):
        Machine(trace.batches, all_parts(plans), trace.num_slots, trace.seed + seed).run(residents)
