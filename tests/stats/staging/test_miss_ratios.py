"""Miss ratios of policies: known traces, a slow LRU, and that none beats Belady."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.staging.miss_ratios import POLICIES, CacheSweep, distinct_stream, slots_to_try
from hotset.stats.staging.step_plans import RowStream


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
