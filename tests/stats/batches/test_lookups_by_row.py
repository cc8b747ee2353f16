"""Lookups by row against a dictionary of lists; and batches of lookups (`batch_lookups`)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batches.batch_lookups import BatchLookups, of_bags, of_matrix, of_tables
from hotset.stats.batches.lookups_by_row import LookupsByRow, group_lookups

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
