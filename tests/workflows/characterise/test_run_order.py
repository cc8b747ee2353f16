"""Cells run once, then again those that were disturbed, then all: which is next follows from what ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.run_order import RunOrder

CELLS = [replace(TINY, batch_size=size) for size in (1, 2, 3, 4)]


def run(
    order: RunOrder,
    count: int,
    begins_new: Callable[[int], bool] = lambda number: True,
    probe: Callable[[Cell, int], float] = lambda cell, number: 1.0,
    seconds: Callable[[Cell], float] = lambda cell: 0.0,
) -> list[int]:
    """Let so many cells run, or all that may; return their positions."""
    found = []
    for number in range(count):
        following = order.following(begins_new=begins_new(number))
        if following is None:
            break
        place, cell = following
        found.append(place)
        order.add(replace(made_up_record(cell), probe_seconds=probe(cell, number)), seconds(cell))
    return found


def after(done: Sequence[Cell], most: int = 3) -> RunOrder:
    order = RunOrder(CELLS, most)
    for cell in done:
        order.add(made_up_record(cell))
    return order


def test_cells_run_round_by_round_and_those_that_ran_less_often_first() -> None:
    assert run(after([], most=2), 99) == [0, 1, 2, 3] * 2
    # A sweep that was killed in its second round goes on there.
    assert run(after([CELLS[0], *CELLS]), 99) == [1, 2, 3, 0, 1, 2, 3]
    # Cells that other settings have done are not among these, and count for nothing.
    assert run(after([TINY, *CELLS], most=1), 99) == []
    order = after(CELLS[:1])
    assert order.has_run(CELLS[0]) and not order.has_run(CELLS[1])


def test_cells_that_were_disturbed_run_again_until_they_are_not() -> None:
    # The second and the fourth one meet a slow machine twice, and all others the usual one.
    met: dict[int, int] = {}

    def probe(cell: Cell, number: int) -> float:
        met[cell.batch_size] = met.get(cell.batch_size, 0) + 1
        return 1.5 if cell.batch_size in (2, 4) and met[cell.batch_size] <= 2 else 1.0

    order = RunOrder([*CELLS, *(replace(TINY, batch_size=size) for size in (5, 6, 7))], 9)
    # In turns, so that the runs of a cell lie apart, and undisturbed ones wait until all are.
    assert run(order, 11, probe=probe) == [0, 1, 2, 3, 4, 5, 6, 1, 3, 1, 3]
    assert run(order, 3, probe=probe) == [0, 2, 4]


def test_late_in_a_sweep_disturbed_cells_come_before_new_ones() -> None:
    def probe(cell: Cell, number: int) -> float:
        return 1.5 if number == 1 else 1.0

    order = RunOrder(CELLS, 5)
    assert run(order, 6, lambda number: number < 3, probe) == [0, 1, 2, 1, 3, 0]


def test_of_disturbed_cells_the_quick_ones_run_first_and_none_more_often_than_it_may() -> None:
    order = RunOrder(CELLS, 3)
    for _ in range(99):
        order.add(replace(made_up_record(TINY), probe_seconds=1.0))
    found = run(order, 99, probe=lambda cell, number: 2.0, seconds=lambda cell: 1 / cell.batch_size)
    # Round by round, in each the last one first, which takes the least time.
    assert found == [0, 1, 2, 3] + 2 * [3, 2, 1, 0]
