"""Blocks of lookups without the missing ones.

Tests `counting_loop`, too: that counting in both kinds of tables stops at the same lookup as a loop does,
wherever in a block it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.counting.counting_loop import add_counts
from hotset.stats.counting.hash_probing import HALF, LOW_HALF, new_short_table, new_table
from hotset.stats.counting.valid_blocks import BLOCK, keep_last, place_of, take_valid
from hotset.stats.kernel import read_only
from hotset.tests.support.hashed_categories import ALL_VALID, bitmap, entries_of

_BLOCK = int(BLOCK)


def counts_in(table: NDArray[np.uint64]) -> dict[int, int]:
    """Return the count of each category in a table of either kind."""
    if table.ndim == 2:
        return entries_of(table)
    return {int(word >> HALF): int(word & LOW_HALF) for word in table if word != 0}


def counted_one_by_one(
    categories: list[int], is_there: list[bool], start: int, known: dict[int, int], room: int
) -> tuple[int, int, int]:
    """Count into ``known`` up to ``room`` categories; where it stopped, categories, missing lookups."""
    num_missing = 0
    for i in range(start, len(categories)):
        if not is_there[i]:
            num_missing += 1
            continue
        if categories[i] not in known and len(known) == room:
            return i, len(known), num_missing
        known[categories[i]] = known.get(categories[i], 0) + 1
    return len(categories), len(known), num_missing


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), max_size=20), st.integers(0, 20), st.integers(0, 20), st.integers(0, 3))
def test_a_block_keeps_what_is_there(is_there: list[bool], first: int, stop: int, num_before: int) -> None:
    first, stop = sorted(min(bound, len(is_there)) for bound in (first, stop))
    categories = read_only(np.arange(100, 100 + len(is_there), dtype=np.uint32))
    taken = np.full(num_before + stop - first, 7, np.uint32)
    bounds = (np.uint64(first), np.uint64(stop))
    num_taken = int(take_valid(categories, bitmap(is_there), *bounds, taken, np.uint64(num_before)))
    wanted = [i for i in range(first, stop) if is_there[i]]
    assert taken[:num_taken].tolist() == [7] * num_before + [100 + i for i in wanted]
    keep_last(taken, np.uint64(num_before), np.uint64(len(wanted)))
    assert taken[: len(wanted)].tolist() == [100 + i for i in wanted]


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40))
def test_a_place_is_that_of_a_lookup_that_is_there(is_there: list[bool], start: int) -> None:
    there = [place for place in range(start, len(is_there)) if is_there[place]]
    found = [place_of(bitmap(is_there), np.uint64(start), np.uint64(k)) for k in range(len(there))]
    assert found == there


@pytest.mark.parametrize("share_missing", [0.0, 0.3, 0.95])
@pytest.mark.parametrize(
    ("new", "dtype"), [(new_short_table, np.uint32), (new_table, np.uint32), (new_table, np.uint64)]
)
def test_a_full_table_stops_at_the_lookup_that_finds_no_room(
    new: Callable[..., Any], dtype: type, share_missing: float
) -> None:
    rng = np.random.default_rng(17)
    num_lookups = 3 * _BLOCK + 70
    for num_categories, start in ((40, 0), (900, 0), (900, 5), (900, num_lookups)):
        categories: NDArray[Any] = rng.integers(0, num_categories, num_lookups).astype(dtype)
        is_there = (rng.random(num_lookups) >= share_missing).tolist()
        is_valid = bitmap(is_there) if share_missing else ALL_VALID
        num_distinct = len({int(c) for c, there in zip(categories, is_there, strict=True) if there})
        # No room, some, all but one, just enough, and more.
        for room in (0, 1, num_distinct // 2, num_distinct - 1, num_distinct, num_distinct + 400):
            table = new(1500)
            known: dict[int, int] = {}
            wanted = counted_one_by_one(categories.tolist(), is_there, start, known, max(room, 0))
            found = add_counts(read_only(categories), is_valid, start, table, 0, max(room, 0))
            assert found == wanted
            assert counts_in(table) == known


def test_a_full_count_stops_in_the_middle_of_a_block() -> None:
    categories = np.full(2 * _BLOCK, 5, np.uint32)
    is_there = [i % 3 != 1 for i in range(2 * _BLOCK)]
    table = new_short_table(1)
    add_counts(read_only(categories[:1]), ALL_VALID, 0, table, 0, 8)
    table[table != 0] += np.uint64(2**32 - 2 - 300)  # room for 300 more
    stopped, num_used, num_missing = add_counts(read_only(categories), bitmap(is_there), 0, table, 1, 8)
    assert sum(is_there[:stopped]) == 300 and is_there[stopped]
    assert (num_used, num_missing) == (1, stopped - 300)
    assert counts_in(table) == {5: 2**32 - 1}


@pytest.mark.parametrize("has_missing", [False, True])
@pytest.mark.parametrize("num_lookups", [1, 7, _BLOCK, _BLOCK + 1])
@pytest.mark.parametrize(("new", "dtype"), [(new_short_table, np.uint32), (new_table, np.uint64)])
def test_room_for_all_new_categories_but_one_is_too_little(
    new: Callable[..., Any], dtype: type, num_lookups: int, has_missing: bool
) -> None:
    categories: NDArray[Any] = read_only(np.arange(num_lookups, dtype=dtype))
    is_valid = bitmap([True] * num_lookups) if has_missing else ALL_VALID
    for room in (num_lookups - 1, num_lookups):
        assert add_counts(categories, is_valid, 0, new(2000), 0, room) == (room, room, 0)
