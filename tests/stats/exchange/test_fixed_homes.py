"""Homes that stay: striped by id, or where a row is used most."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.exchange.fixed_homes import count_uses, homes_by_use, stay_at, striped_homes
from hotset.stats.exchange.home_moves import NO_HOME
from hotset.tests.support.naive.naive_exchange import DrawnSteps, drawn_steps


def test_striped_homes_count_from_the_first_row_of_the_table() -> None:
    assert striped_homes(5, 3).tolist() == [0, 1, 2, 0, 1]
    assert striped_homes(3, 3, first_row=4).tolist() == [1, 2, 0]


@given(drawn_steps(), st.integers(1, 5))
@settings(max_examples=50)
def test_a_row_lives_where_most_steps_use_it(drawn: DrawnSteps, rows_of_pass: int) -> None:
    loads = np.zeros(drawn.num_ranks, np.int64)
    homes: list[int] = []
    for first_row in range(0, drawn.num_rows, rows_of_pass):
        num_rows = min(rows_of_pass, drawn.num_rows - first_row)
        uses_KW = np.zeros((num_rows, drawn.num_ranks), np.uint32)
        for number in range(len(drawn.steps)):
            count_uses(drawn.rows(number), drawn.masks(number), first_row, uses_KW)
        homes += homes_by_use(uses_KW, loads, first_row).tolist()
    naive_loads = [0] * drawn.num_ranks
    for row in range(drawn.num_rows):
        counts = [sum(rank in users for users in drawn.uses_of(row)) for rank in range(drawn.num_ranks)]
        if not any(counts):
            assert homes[row] == row % drawn.num_ranks
            continue
        most = [rank for rank in range(drawn.num_ranks) if counts[rank] == max(counts)]
        wanted = min(most, key=lambda rank: (naive_loads[rank], rank))
        naive_loads[wanted] += 1
        assert homes[row] == wanted
    assert loads.tolist() == naive_loads


def test_a_row_has_no_home_before_its_first_use() -> None:
    homes = np.full(4, NO_HOME, np.uint8)
    fixed = np.array([3, 2, 1, 0], np.uint8)
    before, after = stay_at(np.array([0, 2], np.int32), fixed, homes)
    assert before.tolist() == [NO_HOME, NO_HOME] and after.tolist() == [3, 1]
    before, after = stay_at(np.array([2, 3], np.int32), fixed, homes)
    assert before.tolist() == [1, NO_HOME] and after.tolist() == [1, 0]
    assert homes.tolist() == [3, NO_HOME, 1, 0]
