"""Hot rows under a budget and fully hot samples, against a walk row by row."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.ranking.frequency_ranking import runs_by_density, runs_of
from hotset.stats.ranking.hot_rows import largest_ids, num_hot_of_runs, num_hot_of_tables, tag_hot_samples


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
    found = num_hot_of_tables(places, row_bytes, budget_bytes)
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
    table_of_run, lengths = runs_by_density([runs_of(rows) for rows in counts], row_bytes)
    found = num_hot_of_runs(table_of_run, lengths, row_bytes, budget_bytes)
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
    table_of_run, lengths = runs_by_density([runs_of(rows) for rows in counts], row_bytes)
    wanted = num_hot_of_tables(places, row_bytes, budget_bytes)
    assert num_hot_of_runs(table_of_run, lengths, row_bytes, budget_bytes) == wanted
