"""Owners striped by id, or where a row is used most."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.exchange.fixed_homes import count_uses, owners_by_use, striped_owners
from hotset.tests.support.naive.naive_exchange import DrawnSteps, drawn_steps


def test_striped_owners_count_from_the_first_row_of_the_table() -> None:
    assert striped_owners(5, 3).tolist() == [0, 1, 2, 0, 1]
    assert striped_owners(3, 3, first_row=4).tolist() == [1, 2, 0]


@given(drawn_steps(), st.integers(1, 5))
@settings(max_examples=50)
def test_the_owner_uses_a_row_in_most_steps(drawn: DrawnSteps, rows_of_pass: int) -> None:
    loads = np.zeros(drawn.num_ranks, np.int64)
    owners: list[int] = []
    for first_row in range(0, drawn.num_rows, rows_of_pass):
        num_rows = min(rows_of_pass, drawn.num_rows - first_row)
        uses_KW = np.zeros((num_rows, drawn.num_ranks), np.uint32)
        for number in range(len(drawn.steps)):
            count_uses(drawn.rows(number), drawn.masks(number), first_row, uses_KW)
        owners += owners_by_use(uses_KW, loads, first_row).tolist()
    naive_loads = [0] * drawn.num_ranks
    for row in range(drawn.num_rows):
        counts = [sum(rank in users for users in drawn.uses_of(row)) for rank in range(drawn.num_ranks)]
        if not any(counts):
            assert owners[row] == row % drawn.num_ranks
            continue
        most = [rank for rank in range(drawn.num_ranks) if counts[rank] == max(counts)]
        wanted = min(most, key=lambda rank: (naive_loads[rank], rank))
        naive_loads[wanted] += 1
        assert owners[row] == wanted
    assert loads.tolist() == naive_loads
