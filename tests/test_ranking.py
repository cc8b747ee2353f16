"""Ids by importance, and places over all tables, against sorted lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.ranking import places_over_all_tables, rank_by_frequency

_COUNTS = st.dictionaries(st.sampled_from([0, 1, 7, 2**32 - 1, *range(20, 40)]), st.integers(1, 9))


def naive_ranks(
    counts: dict[int, int], num_missing: int, min_count: int
) -> list[tuple[int, tuple[int, int]]]:
    """(count, (0 missing, 1 a category, 2 oov; category)) of each row, most important first."""
    own = {category: count for category, count in counts.items() if count >= min_count}
    rows = [(count, (1, category)) for category, count in own.items()]
    rare = sum(counts.values()) - sum(own.values())
    has_missing = num_missing > 0 and num_missing >= min_count
    rows += [(num_missing, (0, 0))] if has_missing else []
    rows += [(rare if has_missing else rare + num_missing, (2, 0))]
    return sorted(rows, key=lambda row: (-row[0], row[1]))


@settings(max_examples=300, deadline=None)
@given(counts=_COUNTS, num_missing=st.integers(0, 9), min_count=st.integers(1, 6))
def test_ranks_agree_with_a_sorted_list(counts: dict[int, int], num_missing: int, min_count: int) -> None:
    categories = np.array(sorted(counts), np.uint64)
    occurrences = np.array([counts[int(category)] for category in categories], np.int64)
    ranked = rank_by_frequency(categories, occurrences, num_missing, min_count)
    wanted = naive_ranks(counts, num_missing, min_count)
    assert ranked.counts.tolist() == [count for count, _ in wanted]
    kinds = [kind for _, (kind, _) in wanted]
    assert ranked.oov_id == kinds.index(2)
    assert ranked.missing_id == (kinds.index(0) if 0 in kinds else kinds.index(2))
    assert ranked.categories.tolist() == [category for _, (_, category) in wanted]
    assert int(ranked.counts.sum()) == sum(counts.values()) + num_missing


def test_a_table_of_one_count_is_in_the_order_of_its_categories() -> None:
    ranked = rank_by_frequency(np.array([3, 5, 9], np.uint64), np.full(3, 4, np.int64), 4, 1)
    assert (ranked.missing_id, ranked.categories.tolist(), ranked.oov_id) == (0, [0, 3, 5, 9, 0], 4)


def test_the_oov_row_comes_last_in_a_tie_and_by_its_total_otherwise() -> None:
    categories, counts = np.array([3, 5, 9], np.uint64), np.array([2, 1, 1], np.int64)
    assert rank_by_frequency(categories, counts, 0, 2).oov_id == 1
    assert rank_by_frequency(categories, np.array([2, 2, 1], np.int64), 2, 2).oov_id == 3
    assert rank_by_frequency(categories, np.array([3, 2, 2], np.int64), 0, 3).oov_id == 0


def naive_places(counts_of_tables: list[NDArray[np.int64]]) -> list[list[int]]:
    rows = [
        (-int(c), table, row) for table, counts in enumerate(counts_of_tables) for row, c in enumerate(counts)
    ]
    place = {(table, row): n for n, (_, table, row) in enumerate(sorted(rows))}
    return [[place[table, row] for row in range(len(c))] for table, c in enumerate(counts_of_tables)]


@settings(max_examples=200, deadline=None)
@given(tables=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=20), min_size=1, max_size=5))
def test_places_agree_with_a_sort_of_all_rows(tables: list[list[int]]) -> None:
    counts = [np.array(sorted(table, reverse=True), np.int64) for table in tables]
    places = places_over_all_tables(counts)
    assert [place.tolist() for place in places] == naive_places(counts)
    assert all(place.dtype == np.int64 for place in places)
