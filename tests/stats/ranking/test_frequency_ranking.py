"""Ids by importance, and places over all tables, against sorted lists."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.ranking.frequency_ranking import (
    RankedRuns,
    expand_runs,
    first_places,
    place_categories,
    rank_by_frequency,
    runs_of,
)

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


def ranked_rows(
    categories: NDArray[np.uint64], counts: NDArray[np.int64], num_missing: int, min_count: int
) -> tuple[RankedRuns, list[int], list[int]]:
    """The runs, and the category and count of every row."""
    ranked = rank_by_frequency(counts, num_missing, min_count)
    rows = np.zeros(ranked.num_rows, np.uint64)
    totals = np.empty(ranked.num_rows, np.int64)
    place_categories(categories, counts, min_count, ranked, rows)
    expand_runs(ranked.counts, ranked.lengths, 0, totals)
    return ranked, rows.tolist(), totals.tolist()


@settings(max_examples=300, deadline=None)
@given(counts=_COUNTS, num_missing=st.integers(0, 9), min_count=st.integers(1, 6))
def test_ranks_agree_with_a_sorted_list(counts: dict[int, int], num_missing: int, min_count: int) -> None:
    categories = np.array(sorted(counts), np.uint64)
    occurrences = np.array([counts[int(category)] for category in categories], np.int64)
    ranked, rows, totals = ranked_rows(categories, occurrences, num_missing, min_count)
    wanted = naive_ranks(counts, num_missing, min_count)
    assert totals == [count for count, _ in wanted] and ranked.num_rows == len(wanted)
    assert (np.diff(ranked.counts) < 0).all() and (ranked.lengths > 0).all()
    kinds = [kind for _, (kind, _) in wanted]
    assert ranked.oov_id == kinds.index(2)
    assert ranked.missing_id == (kinds.index(0) if 0 in kinds else kinds.index(2))
    assert rows == [category for _, (_, category) in wanted]
    assert sum(totals) == sum(counts.values()) + num_missing
    assert totals[ranked.oov_id] == ranked.oov_count


def test_a_table_of_one_count_is_in_the_order_of_its_categories() -> None:
    categories = np.array([3, 5, 9], np.uint64)
    ranked, rows, _ = ranked_rows(categories, np.full(3, 4, np.int64), 4, 1)
    assert (ranked.missing_id, rows, ranked.oov_id) == (0, [0, 3, 5, 9, 0], 4)


def test_the_oov_row_comes_last_in_a_tie_and_by_its_total_otherwise() -> None:
    for counts, num_missing, min_count, oov_id in (
        ([2, 1, 1], 0, 2, 1),
        ([2, 2, 1], 2, 2, 3),
        ([3, 2, 2], 0, 3, 0),
    ):
        assert rank_by_frequency(np.array(counts, np.int64), num_missing, min_count).oov_id == oov_id


def test_large_counts_and_many_rows_agree_with_a_sort(rng: np.random.Generator) -> None:
    counts = np.concatenate([rng.integers(1, 2**40, 300), rng.zipf(1.5, 300_000).clip(1, 2**50)])
    categories = np.arange(counts.shape[0], dtype=np.uint64) + 1
    ranked, rows, _ = ranked_rows(categories, counts, 0, 1)
    assert rows[: ranked.oov_id] == (np.argsort(-counts, kind="stable") + 1).tolist()


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
    runs = [runs_of(each) for each in counts]
    places = []
    for (_, lengths), firsts in zip(runs, first_places(runs, [8] * len(runs)), strict=True):
        places.append(np.empty(int(lengths.sum()), np.int64))
        expand_runs(firsts, lengths, 1, places[-1])
    assert [place.tolist() for place in places] == naive_places(counts)


@given(counts=st.lists(st.integers(0, 4), max_size=20))
def test_runs_are_what_stands_together(counts: list[int]) -> None:
    values, lengths = runs_of(np.array(counts, np.int64))
    groups = [(value, len(list(group))) for value, group in itertools.groupby(counts)]
    assert list(zip(values.tolist(), lengths.tolist(), strict=True)) == groups
