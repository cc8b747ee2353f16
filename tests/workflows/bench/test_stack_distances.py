"""Stack distances compared with a list that is searched, and with the caches whose misses they predict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.staging.staging_planner import cache_planner
from hotset.stats.staging.step_plans import RowStream
from hotset.workflows.bench.stack_distances import add_stack_distances, lru_misses

Batches = list[list[int]]


def stream_of(batches: Batches) -> RowStream:
    return RowStream.of([np.array(batch, np.int64) for batch in batches])


def naive_distances(batches: Batches, num_rows: int) -> tuple[list[int], int]:
    stack: list[int] = []
    counts = [0] * (num_rows + 1)
    first = 0
    for batch in batches:
        for row in batch:
            if row in stack:
                counts[len(stack) - stack.index(row)] += 1
            else:
                first += 1
        for row in batch:
            if row in stack:
                stack.remove(row)
            stack.append(row)
    return counts, first


def batches_of(most_rows: int, most_batches: int) -> st.SearchStrategy[Batches]:
    batch = st.lists(st.integers(0, most_rows - 1), max_size=5, unique=True)
    return st.lists(batch, max_size=most_batches)


@given(batches_of(9, 60))
@settings(max_examples=200, deadline=None)
def test_distances_are_those_of_a_list_that_is_searched(batches: Batches) -> None:
    stream = stream_of(batches)
    counts = np.zeros(10, np.int64)
    first = add_stack_distances(stream.offsets, stream.rows, np.ones(stream.rows.size, np.int64), counts)
    assert (counts.tolist(), first) == naive_distances(batches, 9)


def test_a_long_stream_closes_its_gaps_many_times(rng: np.random.Generator) -> None:
    batches = [rng.choice(200, 7, replace=False).tolist() for _ in range(500)]
    stream = stream_of(batches)
    counts = np.zeros(201, np.int64)
    first = add_stack_distances(stream.offsets, stream.rows, np.ones(stream.rows.size, np.int64), counts)
    assert (counts.tolist(), first) == naive_distances(batches, 200)


@given(batches_of(12, 25), st.integers(0, 7))
@settings(max_examples=150, deadline=None)
def test_one_pass_gives_the_fetches_of_a_cache_of_each_size(batches: Batches, more: int) -> None:
    stream = stream_of(batches)
    num_slots = max([1, *map(len, batches)]) + more
    planner = cache_planner("lru", 12, num_slots, prefetch=0, warmup_ratio=0)
    fetched = planner.plan(stream).fetch_rows.size
    assert lru_misses(stream.offsets, stream.rows, 12)[min(num_slots, 12)] == fetched


def test_misses_are_weighed_by_lookups() -> None:
    stream = stream_of([[0, 1], [2], [0]])
    weights = np.array([5, 1, 1, 7], np.int64)
    assert lru_misses(stream.offsets, stream.rows, 3, weights).tolist() == [14, 14, 14, 7]


@pytest.mark.parametrize("num_slots", range(1, 6))
def test_from_lookup_to_lookup_it_is_the_textbook_stack(num_slots: int, rng: np.random.Generator) -> None:
    rows = rng.zipf(1.3, 300) % 20
    held: list[int] = []
    misses = 0
    for row in rows.tolist():
        misses += row not in held
        held = [other for other in held if other != row][-(num_slots - 1) :] if num_slots > 1 else []
        held.append(row)
    assert lru_misses(np.arange(301), rows.astype(np.int64), 20)[num_slots] == misses


def test_nothing_is_used() -> None:
    assert lru_misses(np.zeros(1, np.int64), np.empty(0, np.int64), 0).tolist() == [0]
