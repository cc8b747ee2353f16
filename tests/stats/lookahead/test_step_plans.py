"""Next fetches over a whole run: held against a walk forward that remembers who is waiting."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.lookahead.planner import lookahead_planner
from hotset.stats.lookahead.step_plans import (
    NO_FETCH,
    Residents,
    RowStream,
    StepPlans,
    cut_groups,
    find_next_fetches,
    in_order,
    next_uses,
)


def test_rows_are_put_in_order_with_their_lookups() -> None:
    rows, lookups = in_order(np.array([7, 2**31 - 1, 0], np.int32), np.array([3, 1, 2**32 - 1], np.int64))
    assert (rows.tolist(), lookups.tolist()) == ([0, 7, 2**31 - 1], [2**32 - 1, 3, 1])


def planned(
    rng: np.random.Generator, num_rows: int, num_slots: int, num_epochs: int
) -> list[tuple[StepPlans, Residents]]:
    """Epochs of batches of up to twice as many rows as slots, so that some are split."""
    planner = lookahead_planner(num_rows, num_slots, prefetch=1, splits=True)
    epochs = []
    for _ in range(num_epochs):
        sizes = rng.integers(0, min(2 * num_slots + 2, num_rows), 12)
        stream = RowStream.of([rng.permutation(num_rows)[:size] for size in sizes])
        uses = next_uses(stream.offsets, stream.rows, num_rows)
        (plans,) = planner.plan(RowStream(stream.offsets, stream.rows, None, uses))
        assert planner.num_held_back == 0
        epochs.append((plans, planner.end_epoch()))
    return epochs


def naive_next_fetches(epochs: list[tuple[StepPlans, Residents]]) -> list[list[int]]:
    """For each write-back of the run, in order, the number of the next fetch of its row.

    Of each epoch three lists: of write-backs, of rows of split steps, of residents.
    """
    number = 0
    waiting: dict[int, tuple[list[int], int]] = {}
    lists: list[list[int]] = []
    for plans, residents in epochs:
        backs = [NO_FETCH] * plans.write_back_rows.size
        splits = [NO_FETCH] * plans.fetch_rows.size
        for step in range(plans.num_steps):
            for i in range(plans.write_back_offsets[step], plans.write_back_offsets[step + 1]):
                waiting[int(plans.write_back_rows[i])] = (backs, i)
            fetches = range(plans.fetch_offsets[step], plans.fetch_offsets[step + 1])
            for i in fetches:
                if not plans.fetch_is_first[i]:
                    where, position = waiting.pop(int(plans.fetch_rows[i]))
                    where[position] = number
                    number += 1
            for i in fetches if plans.is_split[step] else ():
                waiting[int(plans.fetch_rows[i])] = (splits, i)
        left = [NO_FETCH] * residents.rows.size
        for i, row in enumerate(residents.rows.tolist()):
            waiting[row] = (left, i)
        lists += [backs, splits, left]
    return lists


@pytest.mark.parametrize("rows_of_pass", [3, 40, 1000])
@pytest.mark.parametrize("num_slots", [1, 5, 30])
def test_next_fetches_agree_with_a_walk_forward(
    num_slots: int, rows_of_pass: int, rng: np.random.Generator
) -> None:
    num_rows = 40
    epochs = planned(rng, num_rows, num_slots, 3)
    total = sum(int(np.count_nonzero(~plans.fetch_is_first)) for plans, _ in epochs)
    found = [
        (
            np.full(plans.write_back_rows.size, -7),
            np.full(plans.fetch_rows.size, -7),
            np.full(residents.rows.size, -7),
        )
        for plans, residents in epochs
    ]
    # The rows of one range after another, each from the end of the run to its start.
    for first_row in range(0, num_rows, rows_of_pass):
        next_of_row = np.full(min(rows_of_pass, num_rows - first_row), NO_FETCH, np.int64)
        end = total
        for (plans, residents), (backs, splits, left) in zip(epochs[::-1], found[::-1], strict=True):
            rows = residents.rows - first_row
            is_inside = (rows >= 0) & (rows < next_of_row.size)
            left[is_inside] = next_of_row[rows[is_inside]]
            end = find_next_fetches(plans, end, first_row, next_of_row, backs, splits)
        assert end == 0
    is_split = [
        np.repeat(plans.is_split, np.diff(plans.fetch_offsets)).astype(np.bool_) for plans, _ in epochs
    ]
    naive = naive_next_fetches(epochs)
    assert total > 0 and (num_slots == 30 or any(mask.any() for mask in is_split))
    for number, (backs, splits, left) in enumerate(found):
        assert backs.tolist() == naive[3 * number] and left.tolist() == naive[3 * number + 2]
        mask = is_split[number]
        assert splits[mask].tolist() == np.array(naive[3 * number + 1])[mask].tolist()
        assert (splits[~mask] == -7).all()


@pytest.mark.parametrize(
    ("fetches", "capacity", "wanted"),
    [
        ([], 5, [0, 0]),
        ([0, 0], 5, [0, 0]),
        ([3, 2, 1, 4, 0, 1], 5, [0, 5, 10, 11]),
        ([5, 5], 5, [0, 5, 10]),
        ([1, 1, 1], 100, [0, 3]),
    ],
)
def test_groups_are_whole_items(fetches: list[int], capacity: int, wanted: list[int]) -> None:
    assert cut_groups(np.array(fetches, np.int64), capacity).tolist() == wanted


def test_an_item_larger_than_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="fetches 6 rows, a group holds 5"):
        cut_groups(np.array([1, 6]), 5)


def test_groups_cover_all_fetches(rng: np.random.Generator) -> None:
    fetches: NDArray[np.int64] = rng.integers(0, 9, 200)
    bounds = cut_groups(fetches, 11)
    ends = np.cumsum(fetches)
    assert bounds[0] == 0 and bounds[-1] == ends[-1] and (np.diff(bounds) > 0).all()
    assert (np.diff(bounds) <= 11).all() and set(bounds[1:].tolist()) <= set(ends.tolist())
