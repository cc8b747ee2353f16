"""Distinct cold rows against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.staging.cold_rows import add_cold_rows, free_cells, in_order


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
