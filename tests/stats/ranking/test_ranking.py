"""Ids by importance, and places over all tables, against sorted lists.

Hot rows under many budgets at once, against a pass for each.

Hot rows under a budget and fully hot samples, against a walk row by row.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.ranking.ranking import (
    MAX_BUDGETS,
    RankedRuns,
    expand_runs,
    first_places,
    largest_ids,
    levels_by_count,
    levels_of_prefixes,
    num_hot_of_tables,
    place_categories,
    prefixes_of_places,
    prefixes_of_runs,
    raise_levels,
    rank_by_frequency,
    runs_of,
    tag_hot_samples,
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


ONE_EACH = np.zeros(0, np.int32)


@pytest.mark.parametrize(("num_samples", "num_budgets"), [(0, 2), (1, 1), (7, 3), (300, 6)])
def test_budgets_in_one_pass_agree_with_a_pass_each(
    num_samples: int, num_budgets: int, rng: np.random.Generator
) -> None:
    ids = np.minimum(rng.zipf(1.5, (num_samples, 5)) - 1, 79).astype(np.int32)
    num_hot = np.sort(rng.integers(0, 80, (num_budgets, 5)), axis=0)
    level_B = np.zeros(num_samples, np.uint8)
    lookups_L = np.full(num_budgets + 1, 100, np.int64)
    for table in range(5):
        raise_levels(ids[:, table], ONE_EACH, levels_of_prefixes(num_hot[:, table], 80), level_B, lookups_L)
    is_hot = ids[None] < num_hot[:, None]
    np.testing.assert_array_equal(np.cumsum(lookups_L - 100)[:-1], is_hot.sum(axis=(1, 2)))
    hot_samples = np.cumsum(np.bincount(level_B, minlength=num_budgets + 1))[:-1]
    np.testing.assert_array_equal(hot_samples, is_hot.all(axis=2).sum(axis=1))
    assert lookups_L.sum() == ids.size + 100 * (num_budgets + 1)


def test_lists_and_rows_that_are_no_prefix(rng: np.random.Generator) -> None:
    lengths = rng.integers(0, 4, 50)
    offsets = np.cumsum([0, *lengths], dtype=np.int32)
    ids = rng.integers(0, 20, offsets[-1]).astype(np.int32)
    level_T = rng.integers(0, 4, 20).astype(np.uint8)
    level_B = np.zeros(50, np.uint8)
    lookups_L = np.zeros(4, np.int64)
    raise_levels(ids, offsets, level_T, level_B, lookups_L)
    bags = [ids[first:stop] for first, stop in pairwise(offsets)]
    assert level_B.tolist() == [max((int(level_T[row]) for row in bag), default=0) for bag in bags]
    assert lookups_L.tolist() == np.bincount(level_T[ids], minlength=4).tolist()


def test_levels_of_a_table_shorter_than_its_hot_rows() -> None:
    assert levels_of_prefixes(np.array([1, 1, 3, 9]), 5).tolist() == [0, 2, 2, 3, 3]
    assert levels_of_prefixes(np.array([0, 2]), 4).tolist() == [1, 1, 2, 2]
    assert levels_of_prefixes(np.array([0]), 0).tolist() == []
    with pytest.raises(ValueError, match="256 budgets"):
        levels_of_prefixes(np.zeros(MAX_BUDGETS + 1, np.int64), 4)


@pytest.mark.parametrize("num_rows", [0, 1, 200])
def test_levels_by_count_agree_with_filling_each_budget(num_rows: int, rng: np.random.Generator) -> None:
    counts = rng.integers(0, 4, num_rows).astype(np.int32)
    ends = np.array([0, num_rows // 3, num_rows])
    of_table = np.array([4, 64])
    widths = np.repeat(of_table, np.diff(ends))
    budgets = np.array([0, 4, 100, 1000, 10**6])
    levels = levels_by_count(counts, ends, of_table, budgets, seed=1)
    assert levels.max(initial=0) <= 4
    for level, budget in enumerate(budgets[:4]):
        hot = (levels <= level) & (counts > 0)
        if not hot[counts > 0].all():
            assert not (levels <= level)[counts == 0].any()
        assert widths[hot].sum() <= budget
        if hot.any() and (cold := ~hot & (counts > 0)).any():
            assert counts[cold].max() <= counts[hot].min()
            assert widths[hot].sum() + 64 > budget


def test_rows_without_a_count_fill_what_is_left() -> None:
    counts = np.zeros(10_000, np.int32)
    counts[:100] = 1
    budgets = np.array([6400, 64 * 5000, 640_000])
    levels = levels_by_count(counts, np.array([0, 10_000]), np.array([64]), budgets, seed=1)
    assert (levels[:100] == 0).all() and not (levels[100:] == 0).any()
    assert abs(int((levels <= 1).sum()) - 5000) < 200
    assert (levels <= 2).all()


def naive_num_hot(
    places: list[NDArray[np.int64]], row_bytes: list[int], budget_bytes: int
) -> tuple[list[int], int]:
    table_of_place = {int(p): table for table, place in enumerate(places) for p in place}
    num_hot = [0] * len(places)
    taken = 0
    for place in range(len(table_of_place)):
        table = table_of_place[place]
        if taken + row_bytes[table] > budget_bytes:
            return num_hot, place
        taken += row_bytes[table]
        num_hot[table] += 1
    return num_hot, len(table_of_place)


@settings(max_examples=200, deadline=None)
@given(
    tables=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=4),
    widths=st.lists(st.integers(1, 90), min_size=4, max_size=4),
    budget_bytes=st.integers(0, 3000),
)
def test_hot_rows_are_the_longest_prefix_that_fits(
    tables: list[list[int]], widths: list[int], budget_bytes: int
) -> None:
    order = sorted(
        (-count, table, row)
        for table, rows in enumerate(tables)
        for row, count in enumerate(sorted(rows, reverse=True))
    )
    places = [np.flatnonzero([where == table for _, where, _ in order]) for table in range(len(tables))]
    row_bytes = widths[: len(places)]
    found = num_hot_of_tables(prefixes_of_places(places), len(order), row_bytes, budget_bytes)
    assert found == naive_num_hot(places, row_bytes, budget_bytes)


def skewed_ids(num_samples: int, num_features: int, rng: np.random.Generator) -> NDArray[np.int32]:
    return (rng.zipf(1.5, (num_samples, num_features)) - 1).clip(0, 500).astype(np.int32)


@pytest.mark.parametrize(("num_samples", "num_features"), [(0, 3), (1, 1), (7, 3), (500, 26)])
def test_tags_agree_with_a_comparison(num_samples: int, num_features: int, rng: np.random.Generator) -> None:
    ids = skewed_ids(num_samples, num_features, rng)
    num_hot = rng.integers(0, 400, num_features)
    is_hot = np.full(num_samples, 9, np.uint8)
    total = tag_hot_samples(ids, num_hot, is_hot)
    wanted = (ids < num_hot).all(axis=1)
    np.testing.assert_array_equal(is_hot, wanted)
    assert total == wanted.sum()


@pytest.mark.parametrize("num_samples", [0, 1, 9])
def test_largest_ids_count_negative_ones_as_larger_than_any_table(
    num_samples: int, rng: np.random.Generator
) -> None:
    ids = rng.integers(-3, 40, (num_samples, 5)).astype(np.int32)
    largest = np.array([0, 7, 2**31, 0, 2**32 - 1], np.uint32)
    wanted = [
        max([int(before), *(int(row) % 2**32 for row in column)])
        for before, column in zip(largest, ids.T, strict=True)
    ]
    largest_ids(ids, largest)
    assert largest.tolist() == wanted


def naive_num_hot_by_density(
    tables: list[list[int]], row_bytes: list[int], budget_bytes: int
) -> tuple[list[int], int]:
    """Walk all rows by lookups per byte, ties by table and id, until one does not fit."""
    rows = sorted(
        (-Fraction(count, row_bytes[table]), table, row)
        for table, counts in enumerate(tables)
        for row, count in enumerate(counts)
    )
    num_hot = [0] * len(tables)
    left = budget_bytes
    for _, table, _ in rows:
        if row_bytes[table] > left:
            break
        left -= row_bytes[table]
        num_hot[table] += 1
    return num_hot, sum(num_hot)


@settings(max_examples=300, deadline=None)
@given(
    tables=st.lists(st.lists(st.integers(0, 9) | st.integers(2**40, 2**50), max_size=12), max_size=4),
    widths=st.lists(st.integers(1, 90), min_size=4, max_size=4),
    budget_bytes=st.integers(0, 3000),
)
def test_rows_of_several_widths_are_hot_by_lookups_per_byte(
    tables: list[list[int]], widths: list[int], budget_bytes: int
) -> None:
    counts = [np.array(sorted(rows, reverse=True), np.int64) for rows in tables]
    row_bytes = widths[: len(tables)]
    rows_of = prefixes_of_runs([runs_of(rows) for rows in counts], row_bytes)
    found = num_hot_of_tables(rows_of, sum(map(len, tables)), row_bytes, budget_bytes)
    assert found == naive_num_hot_by_density([rows.tolist() for rows in counts], row_bytes, budget_bytes)


@settings(max_examples=100, deadline=None)
@given(
    tables=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=12), min_size=1, max_size=4),
    budget_bytes=st.integers(0, 500),
)
def test_with_one_width_density_is_frequency(tables: list[list[int]], budget_bytes: int) -> None:
    counts = [np.array(sorted(rows, reverse=True), np.int64) for rows in tables]
    order = sorted((-int(c), t, row) for t, rows in enumerate(counts) for row, c in enumerate(rows))
    places = [np.zeros(rows.shape[0], np.int64) for rows in counts]
    for place, (_, table, row) in enumerate(order):
        places[table][row] = place
    row_bytes = [8] * len(tables)
    rows_of = prefixes_of_runs([runs_of(rows) for rows in counts], row_bytes)
    wanted = num_hot_of_tables(prefixes_of_places(places), len(order), row_bytes, budget_bytes)
    assert num_hot_of_tables(rows_of, len(order), row_bytes, budget_bytes) == wanted
