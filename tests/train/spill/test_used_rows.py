"""Used rows are counted by cells, and ranges are cut by them: against plain loops over rows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.train.spill import used_rows
from hotset.train.spill.used_rows import UsedRows


def naive_cut(used: set[int], tables: list[int], cell_rows: int, most_used: int, most_rows: int) -> list[int]:
    """Walk all rows; a range ends at a cell whose rows it has no room for, and at the end of a table."""
    bounds = [0]
    row = 0
    for num_rows in tables:
        stop = row + num_rows
        in_range = 0
        while row < stop:
            end = min((row // cell_rows + 1) * cell_rows, stop)
            first_of_cell = row // cell_rows * cell_rows
            in_cell = sum(each in used for each in range(first_of_cell, first_of_cell + cell_rows))
            in_cell = min(in_cell, end - row)
            is_full = in_range + in_cell > most_used and end - bounds[-1] > most_rows
            if is_full and row > bounds[-1]:
                bounds.append(row)
                in_range = 0
            in_range += in_cell
            row = end
        if num_rows:
            bounds.append(stop)
    return bounds if len(bounds) > 1 else [0, 0]


@given(st.data())
def test_ranges_agree_with_a_walk_over_all_rows(data: st.DataObject) -> None:
    tables = data.draw(st.lists(st.integers(0, 60), max_size=5))
    num_rows = sum(tables)
    cell_rows = data.draw(st.integers(1, 9))
    # Often less than a cell.
    most_used = data.draw(st.integers(1, 5) | st.integers(1, 70))
    most_rows = data.draw(st.integers(1, 5) | st.integers(1, 70))
    is_used = data.draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows))
    used = {row for row in range(num_rows) if is_used[row]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(used_rows, "_LEAST_CELL_ROWS", cell_rows)
        counts = UsedRows(num_rows)
    counts.add(np.array(sorted(used), np.int64))
    assert counts.total == len(used)
    bounds = counts.cut(tables, most_used, most_rows).tolist()
    assert bounds == naive_cut(used, tables, cell_rows, most_used, most_rows)
    # A range with too many rows and too many used ones is a single cell.
    for first, stop in pairwise(bounds):
        num_used = sum(first <= row < stop for row in used)
        assert num_used <= most_used or stop - first <= max(most_rows, cell_rows)
    table_stops = np.cumsum(tables).tolist()
    assert {stop for stop in table_stops if stop} <= set(bounds)


@pytest.mark.parametrize(
    ("tables", "most", "wanted"),
    [
        ((), 5, [0, 0]),
        ((0, 0), 5, [0, 0]),
        ((5, 0, 6, 1), 5, [0, 5, 10, 11, 12]),
        ((10,), 3, [0, 3, 6, 9, 10]),
    ],
)
def test_where_every_row_is_used_ranges_have_so_many_rows(
    tables: tuple[int, ...], most: int, wanted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(used_rows, "_LEAST_CELL_ROWS", 1)
    used = UsedRows.all_of(sum(tables))
    assert used.total == sum(tables)
    assert used.cut(tables, most, 1).tolist() == used.cut(tables, 1, most).tolist() == wanted


def test_a_cell_of_two_tables_counts_as_far_as_its_rows_in_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(used_rows, "_LEAST_CELL_ROWS", 5)
    # The second cell has one row of the first table and four of the second, which go with the third cell.
    assert UsedRows.all_of(20).cut([6, 14], 9, 1).tolist() == [0, 6, 15, 20]


def test_a_table_of_which_no_row_is_used_is_one_range() -> None:
    assert UsedRows(3_000_000_000).cut([1_000_000_000, 2_000_000_000], 1, 1).tolist() == [
        0,
        1_000_000_000,
        3_000_000_000,
    ]


def test_rows_are_counted_in_parts(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rng.permutation(10_000)[:4000].astype(np.int32)
    whole = UsedRows(10_000)
    whole.add(rows)
    monkeypatch.setattr(used_rows, "_PART_ROWS", 7)
    parts = UsedRows(10_000)
    parts.add(rows)
    for most in (1, 100, 3000):
        np.testing.assert_array_equal(whole.cut([10_000], most, 1), parts.cut([10_000], most, 1))


def test_counts_take_little_memory_whatever_the_number_of_rows() -> None:
    assert UsedRows(0).num_bytes == 0
    assert UsedRows(2000).num_bytes <= 256
    used = UsedRows((1 << 40) + 1)
    assert used.num_bytes <= 64 << 10
    used.add(np.array([0, 1 << 40], np.int64))
    assert used.total == 2
