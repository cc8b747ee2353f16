"""Slots of lookups, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.batches.row_slots import (
    first_stray_lookup,
    locate_distinct_rows,
    locate_named_rows,
    locate_rows,
    name_rows,
)


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


def test_rows_numbered_through_all_tables_are_named_and_located() -> None:
    rows_N = np.array([0, 2, 3, 5, 9], np.int64)
    tables_N, ids_N = np.empty(5, np.int32), np.empty(5, np.int32)
    # Four tables of 3, 0, 2 and 5 rows.
    name_rows(rows_N, np.array([0, 3, 3, 5]), tables_N, ids_N)
    assert list(zip(tables_N.tolist(), ids_N.tolist(), strict=True)) == [
        (0, 0),
        (0, 2),
        (2, 0),
        (3, 0),
        (3, 4),
    ]
    slots_N = np.empty(5, np.int64)
    ranges = [np.array(bound, np.int64) for bound in ([1, 0, 0, 4], [3, 0, 2, 5], [7, 9, 9, 20])]
    assert locate_named_rows(tables_N, ids_N, *ranges, slots_N) == 2
    assert slots_N.tolist() == [-1, 8, 9, -1, 20]
