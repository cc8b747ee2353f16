"""Hash tables against dictionaries: counts, growth, and categories that collide.

Tests `hash_probing`, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.counting.counting_loop import add_counts
from hotset.stats.counting.hash_probing import MAX_LOAD, most_used, new_table
from hotset.stats.counting.hash_table import compact_entries, copy_entries
from hotset.stats.kernel import read_only
from hotset.tests.support.hashed_categories import ALL_VALID, COLLIDING, bitmap, entries_of


@pytest.mark.parametrize("num_entries", [0, 1, 11, 12, 716, 717, 718, 100_000])
def test_a_new_table_has_room(num_entries: int) -> None:
    capacity = new_table(num_entries).shape[0]
    assert capacity & (capacity - 1) == 0 and capacity >= 16
    assert num_entries <= MAX_LOAD * capacity
    # The smallest such table that is no smaller than sixteen entries.
    assert num_entries <= most_used(capacity)
    assert capacity == 16 or num_entries > most_used(capacity // 2)


def test_a_table_in_the_cache_keeps_more_of_its_entries_free_than_a_large_one() -> None:
    free = {capacity: 1 - most_used(capacity) / capacity for capacity in (1 << bits for bits in range(4, 30))}
    assert all(free[capacity] >= 0.8 for capacity in free if capacity <= 1 << 15)
    assert all(0.29 < free[capacity] < 0.31 for capacity in free if capacity > 1 << 15)


@settings(max_examples=100, deadline=None)
@given(
    lookups=st.lists(
        st.tuples(st.sampled_from([0, 1, 2**32 - 1, 2**64 - 1, *COLLIDING]), st.booleans()), max_size=60
    ),
    room=st.integers(0, 15),
)
def test_counts_agree_with_a_counter_up_to_the_room(lookups: list[tuple[int, bool]], room: int) -> None:
    categories = read_only(np.array([category for category, _ in lookups], np.uint64))
    is_valid = bitmap([valid for _, valid in lookups]) if lookups else ALL_VALID
    table = new_table(0)
    stopped, num_used, num_missing = add_counts(categories, is_valid, 0, table, 0, room)
    seen: Counter[int] = Counter()
    wanted = len(lookups)
    for i, (category, valid) in enumerate(lookups):
        if valid and category not in seen and len(seen) == room:
            wanted = i
            break
        seen.update([category] if valid else [])
    assert stopped == wanted
    assert entries_of(table) == dict(seen) and num_used == len(seen)
    assert num_missing == sum(not valid for _, valid in lookups[:wanted])


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_counting_goes_on_where_it_stopped(dtype: type, rng: np.random.Generator) -> None:
    categories: NDArray[Any] = read_only((rng.zipf(1.3, 3000) % 400).astype(dtype))
    table = new_table(0)
    done = 0
    num_used = 0
    num_missing = 0
    while done < categories.shape[0]:
        max_used = int(MAX_LOAD * table.shape[0])
        done, num_used, missing = add_counts(categories, ALL_VALID, done, table, num_used, max_used)
        num_missing += missing
        larger = np.zeros((2 * table.shape[0], 2), np.uint64)
        copy_entries(table, larger)
        assert entries_of(larger) == entries_of(table)
        table = larger
    assert entries_of(table) == dict(Counter(categories.tolist()))
    assert num_used == len(set(categories.tolist())) and num_missing == 0


def test_taken_entries_move_to_the_front(rng: np.random.Generator) -> None:
    table = np.zeros((500, 2), np.uint64)
    rows = np.flatnonzero(rng.random(500) < 0.4)
    table[rows] = rng.integers(1, 2**63, (rows.shape[0], 2)).astype(np.uint64)
    wanted = table[rows].copy()
    assert compact_entries(table) == rows.shape[0]
    np.testing.assert_array_equal(table[: rows.shape[0]], wanted)
