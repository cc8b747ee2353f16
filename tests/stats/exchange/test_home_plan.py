"""Plans of moving homes for batches in any order, and where rows begin."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.exchange import home_plan as module
from hotset.stats.exchange.home_moves import NO_HOME, HomeChoices, follow_choices, move_costs, unset_choices
from hotset.stats.exchange.home_plan import RowUses, first_homes, plan_order
from hotset.tests.support.naive.naive_exchange import DrawnSteps, drawn_steps, least_numbers, path_numbers


def uses_of(drawn: DrawnSteps) -> RowUses:
    numbers = range(len(drawn.steps))
    keys = [np.empty(0, np.int32), *(drawn.rows(number) for number in numbers)]
    masks = [np.empty(0, np.uint8), *(drawn.masks(number) for number in numbers)]
    offsets = np.cumsum([0, *(len(step) for step in drawn.steps)])
    return RowUses(offsets, np.concatenate(keys), np.concatenate(masks), drawn.num_rows, drawn.num_ranks)


@given(drawn_steps(), st.integers(0, 3), st.randoms())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_homes_are_the_cheapest_in_any_order_of_batches(
    drawn: DrawnSteps, state: int, random: Random
) -> None:
    order = list(range(len(drawn.steps)))
    random.shuffle(order)
    uses = uses_of(drawn)
    choices = unset_choices(uses.keys.size, drawn.num_ranks)
    plan_order(uses, np.array(order, np.int64), move_costs(4, state), choices)
    homes = np.full(drawn.num_rows, NO_HOME, np.uint8)
    path: dict[int, list[int]] = {row: [] for row in range(drawn.num_rows)}
    for number in order:
        entries = uses.of_batch(number)
        _, after = follow_choices(
            uses.keys[entries], HomeChoices(*(each[entries] for each in choices)), homes
        )
        for row, home in zip(uses.keys[entries].tolist(), after.tolist(), strict=True):
            path[row].append(home)
    shuffled = DrawnSteps(drawn.num_ranks, drawn.num_rows, tuple(drawn.steps[number] for number in order))
    for row, found in path.items():
        users = shuffled.uses_of(row)
        # The bound tries all paths of homes, of which there are many.
        if len(users) <= 4:
            least = least_numbers(users, drawn.num_ranks, 4, state)
            assert path_numbers(users, found, 4, state) == least
        # No row comes to a rank that has no place for it.
        for home in found:
            assert first_homes(uses, home)[1][row]


@given(drawn_steps())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_rows_begin_where_most_steps_use_them(drawn: DrawnSteps) -> None:
    uses = uses_of(drawn)
    for rank in range(drawn.num_ranks):
        homes, is_held = first_homes(uses, rank)
        for row in range(drawn.num_rows):
            users = drawn.uses_of(row)
            counts = [sum(each in of_step for of_step in users) for each in range(drawn.num_ranks)]
            assert counts[homes[row]] == max(counts)
            assert is_held[row] == (counts[rank] > 0 or homes[row] == rank)


def test_ranges_of_rows_change_no_plan(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    keys = [np.unique(rng.integers(0, 50, 30)).astype(np.int32) for _ in range(9)]
    offsets = np.cumsum([0, *(each.size for each in keys)])
    masks = rng.integers(1, 16, int(offsets[-1])).astype(np.uint8)
    uses = RowUses(offsets, np.concatenate(keys), masks, 50, 4)
    order = rng.permutation(9)

    def planned() -> list[list[int]]:
        choices = unset_choices(uses.keys.size, 4)
        plan_order(uses, order, move_costs(4, 1), choices)
        return [each.tolist() for each in (*choices, *first_homes(uses, 2))]

    whole = planned()
    monkeypatch.setattr(module, "_RANGE_BYTES", 100)
    parts = planned()
    # Ties between first homes go to the rank with fewer rows so far, whatever the range.
    assert parts == whole
