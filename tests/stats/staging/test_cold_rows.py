"""Distinct cold rows against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.batches.stored_lookups import StoredLookups
from hotset.stats.staging.cold_rows import add_cold_rows, free_cells, in_order, stored_cold_rows


def found_in(
    ids: list[list[int]], first: list[int], last: list[int], cells: np.ndarray | None = None
) -> tuple[int, dict[int, int]]:
    ids_BF = np.array(ids, np.int32).reshape(len(ids), len(first))
    first_F = np.array(first, np.int64)
    last_F = np.array(last, np.int64)
    base_F = np.cumsum(last_F - first_F) - (last_F - first_F)
    if cells is None:
        cells = np.full(1 << int(2 * ids_BF.size + 1).bit_length(), -1, np.int32)
    rows = np.empty(ids_BF.size, np.int32)
    lookups = np.empty(ids_BF.size, np.int32)
    num_rows = add_cold_rows(ids_BF, first_F, last_F, base_F, cells, rows, lookups)
    if num_rows >= 0:
        free_cells(rows, num_rows, cells)
        assert (cells == -1).all()
    return num_rows, dict(zip(rows[:num_rows].tolist(), lookups[:num_rows].tolist(), strict=True))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_cold_rows_come_in_order_of_first_appearance_with_their_lookups(ids: list[tuple[int, int]]) -> None:
    wanted: dict[int, int] = {}
    for a, b in ids:
        for key in ([a - 3] if a >= 3 else []) + ([b - 10 + 4] if b >= 10 else []):
            wanted[key] = wanted.get(key, 0) + 1
    num_rows, found = found_in([list(sample) for sample in ids], [3, 10], [7, 41])
    assert num_rows == len(wanted)
    assert list(found.items()) == list(wanted.items())


@pytest.mark.parametrize("stray", [-1, 5, 2**31 - 1, -(2**31)])
def test_an_id_outside_its_table_is_named_by_its_position(stray: int) -> None:
    assert found_in([[0, 1], [4, stray]], [2, 2], [5, 5])[0] == -1 - 3


def test_a_table_is_used_again_for_many_batches(rng: np.random.Generator) -> None:
    cells = np.full(256, -1, np.int32)
    for _ in range(50):
        ids = rng.integers(0, 1000, (100, 1))
        assert found_in(ids.tolist(), [0], [1000], cells)[0] == np.unique(ids).size


def test_rows_are_put_in_order_with_their_lookups() -> None:
    rows, lookups = in_order(np.array([7, 2**31 - 1, 0], np.int32), np.array([3, 1, 2**32 - 1], np.int64))
    assert (rows.tolist(), lookups.tolist()) == ([0, 7, 2**31 - 1], [2**32 - 1, 3, 1])


def stored(rows: list[list[int]], starts: list[list[int]], num_lookups: int) -> StoredLookups:
    """Two tables with as many lookups each."""
    offsets = np.array([0, len(rows[0]), len(rows[0]) + len(rows[1])])
    nothing = np.empty(0, np.int32)
    return StoredLookups(
        np.zeros(2 * num_lookups, np.uint16),
        np.array([0, num_lookups, 2 * num_lookups]),
        np.array([*rows[0], *rows[1]], np.int32),
        offsets,
        np.array([*starts[0], *starts[1]], np.uint16),
        nothing,
        np.zeros(3, np.int64),
    )


def listed(found: StoredLookups, tables: list[int], hot: list[int]) -> tuple[list[int], list[int]]:
    first, last = np.array(hot, np.int64), np.array([10, 20], np.int64)[tables]
    base = np.cumsum(last - first) - (last - first)
    rows, lookups = stored_cold_rows(found, np.array(tables), first, last, base)
    return rows.tolist(), lookups.tolist()


def test_stored_rows_from_the_first_cold_one_on_are_cold() -> None:
    found = stored([[0, 3, 9], [5, 6]], [[0, 2, 3], [0, 1]], 8)
    assert listed(found, [0, 1], [3, 6]) == ([0, 6, 7], [1, 5, 7])
    assert listed(found, [0, 1], [10, 20]) == ([], [])
    assert listed(found, [1], [0]) == ([5, 6], [1, 7])
    assert listed(stored([[], []], [[], []], 0), [0, 1], [3, 6]) == ([], [])


@pytest.mark.parametrize(
    ("rows", "starts"),
    [
        ([[0, 3, 10], [5, 6]], [[0, 2, 3], [0, 1]]),
        ([[3, 3, 9], [5, 6]], [[0, 2, 3], [0, 1]]),
        ([[-1, 3, 9], [5, 6]], [[0, 2, 3], [0, 1]]),
        ([[0, 3, 9], [5, 6]], [[1, 2, 3], [0, 1]]),
        ([[0, 3, 9], [5, 6]], [[0, 3, 2], [0, 1]]),
        ([[0, 3, 9], [5, 6]], [[0, 2, 8], [0, 1]]),
        ([[], [5, 6]], [[], [0, 1]]),
    ],
)
def test_stored_rows_out_of_order_or_range_are_refused(
    rows: list[list[int]], starts: list[list[int]]
) -> None:
    with pytest.raises(ValueError) as caught:
        listed(stored(rows, starts, 8), [0, 1], [3, 6])
    assert caught.value.args == (0,)
    if rows[0]:
        assert listed(stored(rows, starts, 8), [1], [6]) == ([0], [7]), "a table of another width is not read"
