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
from hotset.stats.exchange.rank_masks import mask_type
from hotset.stats.hashing import mix64_pair
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


def naive_choices(masks: list[int], row: int, num_ranks: int, vector: int, state: int) -> list[list[int]]:
    """The choices of the uses of one row, from the last to the first."""
    turn = int(mix64_pair(np.uint64(0), np.uint64(row))) % num_ranks
    homes = [(turn + distance) % num_ranks for distance in range(num_ranks)]
    behind = [0] * num_ranks
    found = []
    for mask in masks[::-1]:
        after = [cost - vector * (mask >> home & 1) for home, cost in enumerate(behind)]
        # The first of the cheapest, from the row's own home on.
        best = min((home for home in homes if mask >> home & 1), key=lambda home: after[home])
        first = min(homes, key=lambda home: after[home])
        moved = after[best] + state
        stays = sum(1 << home for home in homes if after[home] <= moved)
        found.append([best, stays, first])
        behind = [min(cost, moved) - vector * (mask >> home & 1) for home, cost in enumerate(after)]
        behind = [cost - min(behind) for cost in behind]
    return found[::-1]


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7, 8, 9, 64])
@pytest.mark.parametrize("costs", [(16, 0), (16, 1), (3, 3), (2, 9)])
def test_choices_are_those_of_the_naive_twin(
    num_ranks: int, costs: tuple[int, int], rng: np.random.Generator
) -> None:
    num_rows, num_steps = 12, 9
    masks = rng.integers(1, 1 << min(num_ranks, 62), num_steps * num_rows).astype(mask_type(num_ranks))
    # Most rows have one user, or two.
    few = 1 << rng.integers(0, num_ranks, (2, masks.size), np.uint64)
    masks = np.where(rng.random(masks.size) < 0.7, few[0] | few[1], masks).astype(masks.dtype)
    rows = np.tile(np.arange(num_rows, dtype=np.int32), num_steps)
    choices = unset_choices(rows.size, num_ranks)
    offsets = np.arange(num_steps + 1) * num_rows
    for first_row in (0, 8):
        part = RowRange(first_row, np.zeros((min(8, num_rows - first_row), num_ranks), np.int16))
        choose_homes_backward(np.arange(num_steps), offsets, rows, masks, move_costs(*costs), part, choices)
    for row in range(num_rows):
        wanted = naive_choices(masks[row::num_rows].tolist(), row, num_ranks, *costs)
        assert [[int(each[i]) for each in choices] for i in range(row, rows.size, num_rows)] == wanted


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
