"""The inputs of a batch against loops and dictionaries: rows, lists by row, bags, dense values and pieces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batch_rows import (
    MOST_TILE_SAMPLES,
    BatchLookups,
    LookupsByRow,
    PackedLookups,
    find_distinct,
    first_stray_lookup,
    group_lookups,
    locate_distinct_rows,
    locate_lookups,
    log1p_table,
    num_tiles_of,
    of_bags,
    of_matrix,
    pack_lookups,
    transform_dense,
    transform_values,
)
from hotset.stats.kernel import read_only


def naive_distinct(rows: list[int]) -> tuple[list[int], list[int]]:
    places: dict[int, int] = {}
    inverse = [places.setdefault(row, len(places)) for row in rows]
    return list(places), inverse


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**62)), max_size=200))
@settings(max_examples=60, deadline=None)
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


def test_rows_are_located_by_the_feature_of_their_bag(rng: np.random.Generator) -> None:
    first = np.array([0, 2])
    last = np.array([3, 6])
    base = np.array([0, 3])
    ids_N = rng.integers(-1, 8, 50).astype(np.int32)
    bags_N = np.sort(rng.integers(0, 12, 50))
    slots_N = np.empty(50, np.int64)
    # Without bags, each feature of each sample has one lookup.
    for bags, one_each in ((bags_N, bags_N), (np.empty(0, np.int64), np.arange(50))):
        num_absent = locate_lookups(ids_N, bags, first, last, base, slots_N)
        for row, bag, slot in zip(ids_N.tolist(), one_each.tolist(), slots_N.tolist(), strict=True):
            feature = bag % 2
            is_here = first[feature] <= row < last[feature]
            assert slot == (base[feature] + row - first[feature] if is_here else -1)
        assert num_absent == np.count_nonzero(slots_N < 0)


def naive_transform(values: NDArray[np.float64], is_valid: NDArray[np.bool_], is_log: bool) -> list[float]:
    kept = [float(value) if valid else 0.0 for value, valid in zip(values, is_valid, strict=True)]
    return [float(np.float32(math.log1p(max(value, 0)) if is_log else value)) for value in kept]


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.int32])
@pytest.mark.parametrize("num_values", [0, 1, 9, 1000])
def test_values_are_those_of_the_naive_transform(
    num_values: int, dtype: type, is_log: bool, rng: np.random.Generator
) -> None:
    values: NDArray[Any] = read_only((rng.standard_normal(num_values) * 1e6).astype(dtype))
    is_valid = rng.random(num_values) < 0.7
    bitmap = read_only(np.packbits(is_valid, bitorder="little"))
    out = np.empty((num_values, 2), np.float32)
    every = np.arange(num_values, dtype=np.int32)
    transform_values(values, bitmap, every, is_log, out[:, 1])
    assert out[:, 1].tolist() == naive_transform(values.astype(np.float64), is_valid, is_log)
    transform_values(values, read_only(np.zeros(0, np.uint8)), every, is_log, out[:, 0])
    assert out[:, 0].tolist() == naive_transform(values.astype(np.float64), np.ones(num_values, bool), is_log)
    # Some of them, in order, leave the rest of the output alone.
    few = every[::3].copy()
    transform_values(values, bitmap, few, is_log, out[:, 0])
    assert out[: few.size, 0].tolist() == out[::3, 1].tolist()
    assert out[few.size :, 0].tolist() == naive_transform(
        values[few.size :].astype(np.float64), np.ones(num_values - few.size, bool), is_log
    )


def test_dense_values_agree_with_log1p_rounded_once(rng: np.random.Generator) -> None:
    values = np.concatenate(
        [[-(2**31), -1, 0, 1, 15, 16, 17, 2**31 - 1], rng.integers(-50, 2**31, 500)]
    ).astype(np.int32)
    is_present = rng.random(values.shape[0]) < 0.8
    wanted = np.log1p(np.maximum(values, 0).astype(np.float64)).astype(np.float32)
    values = read_only(values)
    matrix = np.full((values.shape[0], 3), -1, np.float32)
    every = np.arange(values.shape[0], dtype=np.int32)
    transform_dense(values, read_only(np.zeros(0, np.uint8)), every, log1p_table(16), matrix[:, 1])
    np.testing.assert_array_equal(matrix[:, 1], wanted)
    bitmap = read_only(np.packbits(is_present, bitorder="little"))
    transform_dense(values, bitmap, every, log1p_table(16), matrix[:, 2])
    np.testing.assert_array_equal(matrix[:, 2], np.where(is_present, wanted, 0))
    assert (matrix[:, 0] == -1).all()
    few = np.flatnonzero(rng.random(values.shape[0]) < 0.3).astype(np.int32)
    transform_dense(values, bitmap, few, log1p_table(16), matrix[:, 0])
    np.testing.assert_array_equal(matrix[: few.size, 0], matrix[few, 2])
    assert (matrix[few.size :, 0] == -1).all()


@pytest.mark.parametrize("num_samples", [0, 1, 255, 511, 512, 1023, 1024, 2047, 2049, 16_384, 16_385])
def test_tiles_are_the_fewest_powers_of_two_that_are_small_enough_and_serve_a_few_threads(
    num_samples: int,
) -> None:
    # The naive way: of all powers of two the first with tiles of at most 512 samples, or more of them, up to
    # four, as long as each has 256.
    powers = [1 << power for power in range(12)]
    fewest = next(count for count in powers if num_samples <= count * MOST_TILE_SAMPLES)
    for_threads = max(count for count in powers[:3] if count == 1 or num_samples >= 256 * count)
    assert num_tiles_of(num_samples) == max(fewest, for_threads)
