"""Distinct rows against a dictionary.

Lookups by row against a dictionary of lists; and batches of lookups (`batch_rows`).

Numbers within tables, for numbers of tables whose quotients are hard to get right.

Slots of lookups, worked out by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batch_rows import (
    LONG_LOOKUPS,
    BatchLookups,
    LookupsByRow,
    PackedLookups,
    count_long_rows,
    find_distinct,
    first_stray_lookup,
    group_lookups,
    locate_distinct_rows,
    locate_rows,
    of_bags,
    of_matrix,
    of_tables,
    pack_lookups,
)


def naive_distinct(rows: list[int]) -> tuple[list[int], list[int]]:
    places: dict[int, int] = {}
    inverse = [places.setdefault(row, len(places)) for row in rows]
    return list(places), inverse


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**62)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_distinct_rows_come_in_order_of_first_appearance(rows: list[int]) -> None:
    distinct, inverse = find_distinct(np.array(rows, np.int64))
    assert (distinct.tolist(), inverse.tolist()) == naive_distinct(rows)


@pytest.mark.parametrize("num_lookups", [0, 1, 7, 53_248])
def test_distinct_rows_of_skewed_lookups(num_lookups: int, rng: np.random.Generator) -> None:
    rows = rng.zipf(1.2, num_lookups) % 100_000
    distinct, inverse = find_distinct(rows)
    assert (distinct.tolist(), inverse.tolist()) == naive_distinct(rows.tolist())


Lists = list[tuple[int, int, list[int]]]
"""Table, id and lookups of each distinct row, in order."""


def naive_groups(ids: list[tuple[int, int, int]]) -> Lists:
    """Group (table, id, lookup) by table and id; lookups stay in the order given."""
    groups: dict[tuple[int, int], list[int]] = {}
    for table, row, lookup in ids:
        groups.setdefault((table, row), []).append(lookup)
    return [(table, row, groups[table, row]) for table, row in sorted(groups)]


def lists_of(found: LookupsByRow) -> Lists:
    """The same of what was found."""
    tables = np.repeat(np.arange(found.first_F1.size - 1), np.diff(found.first_F1))
    starts = found.starts_U1.tolist()
    return [
        (table, row, found.order_N[starts[i] : starts[i + 1]].tolist())
        for i, (table, row) in enumerate(zip(tables.tolist(), found.rows_U.tolist(), strict=True))
    ]


def draw_ids(
    num_samples: int, num_rows: list[int], skew: float, rng: np.random.Generator
) -> NDArray[np.int32]:
    """(num_samples, tables); Zipf-like ids, those of the first table spread evenly."""
    columns = [rng.integers(0, num_rows[0], num_samples)]
    columns += [np.minimum(rng.zipf(skew, num_samples) - 1, rows - 1) for rows in num_rows[1:]]
    return np.stack(columns, axis=1).astype(np.int32)


def bags_of(lengths_BF: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.repeat(np.arange(lengths_BF.size), lengths_BF.reshape(-1))


@pytest.mark.parametrize("num_samples", [0, 1, 7, 128, 3000])
@pytest.mark.parametrize("skew", [1.05, 3.0])
def test_one_lookup_a_sample(num_samples: int, skew: float, rng: np.random.Generator) -> None:
    num_rows = [1, 2, 17, 2049, 2**31 - 1, 40_000_000]
    ids = draw_ids(num_samples, num_rows[::-1], skew, rng)
    batch = of_matrix(ids.reshape(-1), np.array(num_rows[::-1], np.int64))
    by_table = [
        (table, int(ids[sample, table]), sample * 6 + table)
        for table in range(6)
        for sample in range(num_samples)
    ]
    found = group_lookups(batch)
    assert lists_of(found) == naive_groups(by_table)
    assert found.num_rows == len(naive_groups(by_table))
    assert found.counts_U.sum() == ids.size
    # Numbered within the table, they are sample numbers.
    local = [(table, row, position // 6) for table, row, position in by_table]
    assert lists_of(group_lookups(batch, is_local=True)) == naive_groups(local)


@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 60), st.integers(0, 2**32))
@settings(max_examples=60, derandomize=True)
def test_bags(num_samples: int, num_tables: int, most_rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_rows = rng.integers(1, most_rows + 1, num_tables)
    bags = bags_of(rng.integers(0, 4, (num_samples, num_tables)))
    tables = bags % num_tables
    ids = rng.integers(0, num_rows[tables]).astype(np.int32)
    wanted = [(int(table), int(ids[i]), i) for i, table in enumerate(tables)]
    batch = of_bags(ids, bags, num_rows)
    assert lists_of(group_lookups(batch)) == naive_groups(wanted)
    # Given table by table, numbers within the table are the same as those of the bags.
    local = group_lookups(of_tables([ids[tables == t] for t in range(num_tables)], num_rows), is_local=True)
    again = group_lookups(batch, is_local=True)
    for mine, other in zip(local, again, strict=True):
        np.testing.assert_array_equal(mine, other)
    assert local.order_N.size == ids.size


@pytest.mark.parametrize("row", [-1, 5, 2**31 - 1])
def test_an_id_outside_its_table_is_named_by_its_position(row: int) -> None:
    ids = np.array([[0, 1], [2, 3], [4, 0]], np.int32)
    ids[1, 1] = row
    with pytest.raises(IndexError) as caught:
        group_lookups(of_matrix(ids.reshape(-1), np.array([5, 5], np.int64)))
    assert caught.value.args == (3,)


def test_no_tables() -> None:
    nothing = np.empty(0, np.int64)
    for batch in (
        of_matrix(np.empty(0, np.int32), nothing),
        of_bags(np.empty(0, np.int32), nothing, nothing),
        of_tables([], nothing),
    ):
        assert isinstance(batch, BatchLookups)
        assert group_lookups(batch).num_rows == 0


@pytest.mark.parametrize("num_tables", [1, 2, 3, 7, 26, 64, 100, 1000, 32_767])
def test_samples_are_exact_up_to_the_last_position(num_tables: int, rng: np.random.Generator) -> None:
    last = np.iinfo(np.int32).max - 1
    multiples = rng.integers(1, last // num_tables, 300) * num_tables
    positions = np.concatenate([[0, last], multiples, multiples - 1]).astype(np.int32)
    first = np.zeros(num_tables + 1, np.int64)
    lookups = LookupsByRow(positions, np.empty(0, np.int32), np.zeros(1, np.int32), first)
    order = np.empty(positions.size, np.int32)
    offsets = [np.empty(num_tables + 1, np.int32) for _ in range(2)]
    places = PackedLookups(order, np.empty(0, np.int32), np.empty(0, np.int32), *offsets)
    nothing = np.zeros(num_tables, np.int64)
    pack_lookups(lookups, positions.size, nothing, nothing, places)
    np.testing.assert_array_equal(order, positions // num_tables)


def test_long_rows_have_more_lookups_than_the_limit() -> None:
    starts = np.cumsum([0, LONG_LOOKUPS, 1, LONG_LOOKUPS + 1, 5000]).astype(np.int32)
    assert count_long_rows(starts) == 2
    assert count_long_rows(np.zeros(1, np.int32)) == 0


def located(
    ids: list[list[int]], first: list[int], last: list[int], base: list[int]
) -> tuple[int, list[int]]:
    ids_BF = np.array(ids, np.int32)
    slots_N = np.empty(ids_BF.size, np.int64)
    ranges = [np.array(bound, np.int64) for bound in (first, last, base)]
    return locate_rows(ids_BF, *ranges, slots_N), slots_N.tolist()


def test_a_slot_is_base_plus_id() -> None:
    assert located([[0, 0], [4, 2]], [0, 0], [5, 3], [0, 5]) == (0, [0, 5, 4, 7])


def test_rows_outside_the_tier_have_no_slot() -> None:
    assert located([[1, 2], [9, 3], [-1, 0]], [2, 0], [9, 3], [10, 20]) == (4, [-1, 22, -1, -1, -1, 20])


@pytest.mark.parametrize(
    ("ids", "position"), [([[0, 2], [4, 0]], -1), ([[0, 2], [5, 9]], 2), ([[0, -1]], 1), ([], -1)]
)
def test_the_first_stray_lookup_is_found(ids: list[list[int]], position: int) -> None:
    ids_BF = np.array(ids, np.int32).reshape(-1, 2)
    assert first_stray_lookup(ids_BF, np.array([5, 3], np.int64)) == position


def test_distinct_rows_are_located_table_by_table() -> None:
    rows_U = np.array([1, 2, 8, 9, 0, 3], np.int32)
    slots_U = np.empty(6, np.int64)
    offsets_F1 = np.array([0, 4, 4, 6])
    ranges = [np.array(bound, np.int64) for bound in ([2, 0, 0], [9, 5, 3], [10, 20, 30])]
    assert locate_distinct_rows(rows_U, offsets_F1, *ranges, slots_U) == 3
    assert slots_U.tolist() == [-1, 10, 16, -1, 30, -1]
