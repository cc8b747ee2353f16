"""Homes that move: as cheap as the cheapest of all paths, row by row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.exchange.home_moves import (
    NO_HOME,
    HomeChoices,
    RowRange,
    choose_homes_backward,
    follow_choices,
    move_costs,
    unset_choices,
)
from hotset.tests.support.naive.naive_exchange import (
    DrawnSteps,
    drawn_steps,
    least_numbers,
    path_numbers,
)

COSTS = st.tuples(st.integers(1, 4), st.integers(0, 9))


def homes_after(drawn: DrawnSteps, costs: tuple[int, int], rows_of_pass: int) -> list[NDArray[np.uint8]]:
    """The home of each row of each step after it, planned backward and followed forward."""
    sizes = [len(step) for step in drawn.steps]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.concatenate([np.empty(0, np.int32), *(drawn.rows(number) for number in range(len(sizes)))])
    masks = np.concatenate([np.empty(0, np.uint8), *(drawn.masks(number) for number in range(len(sizes)))])
    choices = unset_choices(rows.size, drawn.num_ranks)
    for first_row in range(0, drawn.num_rows, rows_of_pass):
        values_KW = np.zeros((min(rows_of_pass, drawn.num_rows - first_row), drawn.num_ranks), np.int16)
        part = RowRange(first_row, values_KW)
        choose_homes_backward(np.arange(len(sizes)), offsets, rows, masks, move_costs(*costs), part, choices)
    homes = np.full(drawn.num_rows, NO_HOME, np.uint8)
    found = []
    for first, last in pairwise(offsets):
        taken = HomeChoices(*(each[first:last] for each in choices))
        known = homes[rows[first:last]]
        before, after = follow_choices(rows[first:last], taken, homes)
        assert before.tolist() == known.tolist() and homes[rows[first:last]].tolist() == after.tolist()
        found.append(after)
    return found


@given(drawn_steps(), COSTS, st.integers(1, 5))
def test_no_path_of_homes_is_cheaper(drawn: DrawnSteps, costs: tuple[int, int], rows_of_pass: int) -> None:
    after = homes_after(drawn, costs, rows_of_pass)
    for row in range(drawn.num_rows):
        path = [
            int(homes[drawn.rows(number).tolist().index(row)])
            for number, homes in enumerate(after)
            if row in drawn.rows(number)
        ]
        uses = drawn.uses_of(row)
        assert path_numbers(uses, path, *costs) == least_numbers(uses, drawn.num_ranks, *costs)


def test_rows_that_every_rank_uses_alike_are_spread_over_the_ranks() -> None:
    num_rows = 4000
    rows = np.arange(num_rows, dtype=np.int32)
    masks = np.full(num_rows, 0b1111, np.uint8)
    choices = unset_choices(num_rows, 4)
    part = RowRange(0, np.zeros((num_rows, 4), np.int16))
    choose_homes_backward(
        np.zeros(1, np.int64), np.array([0, num_rows]), rows, masks, move_costs(16, 16), part, choices
    )
    assert np.bincount(choices.best_U, minlength=4).min() > 0.9 * num_rows / 4


def test_values_of_the_widest_rows_fit() -> None:
    costs = move_costs(10922, 2 * 10922 + 1)
    values_KW = np.zeros((1, 2), np.int16)
    rows = np.zeros(6, np.int32)
    masks = np.array([1, 2, 1, 2, 3, 1], np.uint8)
    choices = unset_choices(6, 2)
    choose_homes_backward(np.arange(6), np.arange(7), rows, masks, costs, RowRange(0, values_KW), choices)
    assert values_KW.min() == 0 and values_KW.max() <= costs.vector + costs.state


@pytest.mark.parametrize(("vector", "state"), [(0, 0), (1, -1), (16_384, 16_384)])
def test_rows_that_cannot_be_planned_are_refused(vector: int, state: int) -> None:
    with pytest.raises(ValueError, match="cannot plan rows of"):
        move_costs(vector, state)
