"""Cells and their order: names that stay, factors that change one or two at a time.

Also the tests of `grid`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import islice
from typing import Any

import pytest

from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.grid import (
    FACTORS,
    grid,
    pairs,
    presets,
    single_factors,
    value_of,
    with_factor,
)

CHANGED: dict[str, Any] = {
    "preset": "M1",
    "placement": "cache",
    "codec": "int8",
    "optimizer": "sgd",
    "bottom_mlp": (64,),
    "top_mlp": (64,),
}


def test_a_cell_has_the_same_name_for_ever() -> None:
    # Halves of sweeps that are recorded already follow from these names.
    assert Cell().key == "1c5c28f6fe6ce9ff" and Cell().is_held_out is True
    assert Cell.from_json({}) == Cell() and Cell().to_json() == {}


@pytest.mark.parametrize("name", [each.name for each in fields(Cell)])
def test_every_factor_is_part_of_the_name(name: str) -> None:
    value = CHANGED.get(name, getattr(Cell(), name) / 2 if name == "fast_share" else None)
    if value is None:
        value = getattr(Cell(), name) + 1
    cell = replace(Cell(), **{name: value})
    assert cell.key != Cell().key
    assert Cell.from_json(cell.to_json()) == cell and set(cell.to_json()) == {name}


def test_cells_that_train_the_same_steps_are_on_one_side_of_the_split() -> None:
    for cell in grid(1 << 26, 2)[:80]:
        others = [replace(cell, preset=name, row_scale=0.5) for name in ("M1", "M2", "RM1", "RM2")]
        if cell.placement not in ("cache", "lookahead", "fae"):
            others += [replace(cell, fast_share=share) for share in (0.1, 0.5, 1.0)]
        assert {each.is_held_out for each in others} == {cell.is_held_out}
    # A budget that is used is a factor of its own.
    shares = [Cell(placement="cache", fast_share=share / 16) for share in range(1, 17)]
    assert {cell.is_held_out for cell in shares} == {True, False}


def test_only_fae_keeps_rows_on_both_tiers_and_one_at_least() -> None:
    for placement in FACTORS["placement"]:
        cell = Cell(placement=placement, fast_share=0.1, rows_of_table=1000)
        assert cell.num_hot == (100 if placement == "fae" else 0)
    assert Cell(placement="fae", fast_share=1e-9).num_hot == 1


@pytest.mark.parametrize(("optimizer", "floats"), [("sgd", 0), ("rowwise-adagrad", 1), ("adagrad", 16)])
def test_the_bytes_of_a_cell_are_those_of_its_rows_with_their_state(optimizer: str, floats: int) -> None:
    cell = Cell(
        num_tables=3, rows_of_table=100, embedding_dim=16, optimizer=optimizer, pooling=5, batch_size=7
    )
    assert cell.bytes_of_rows == 3 * 100 * 4 * (16 + floats)
    assert cell.lookups == 3 * 5 * 7


@pytest.mark.parametrize("factor", FACTORS)
def test_a_factor_that_is_set_is_read_back_and_changes_no_other(factor: str) -> None:
    for value in FACTORS[factor]:
        cell = with_factor(Cell(), factor, value)
        assert value_of(cell, factor) == value
        assert all(value_of(cell, other) == value_of(Cell(), other) for other in FACTORS if other != factor)
    tried = {value_of(cell, factor) for cell in single_factors()}
    assert tried == {value_of(Cell(), factor), *FACTORS[factor]}


def test_pairs_change_two_factors_and_take_turns() -> None:
    changed = [
        frozenset(factor for factor in FACTORS if value_of(cell, factor) != value_of(Cell(), factor))
        for cell in pairs()
    ]
    assert max(map(len, changed)) == 2
    # A sweep that ends after a few turns has seen most pairs.
    assert len({both for both in islice(changed, 60) if len(both) == 2}) >= 9
    dense = [cell for cell in pairs() if value_of(cell, "placement") == "all-fast"]
    assert max(cell.batch_size * max(cell.top_mlp) for cell in dense) < 16384 * 512


def test_less_memory_leaves_cells_out_and_keeps_the_order_of_the_others() -> None:
    large, small = ([cell for cell in grid(most) if not cell.preset] for most in (1 << 28, 1 << 24))
    assert small == [cell for cell in large if cell.bytes_of_rows <= 1 << 24] and len(small) < len(large)
    assert large[0] == Cell() and grid(0) == []
    # Not even one row of every table fits, and one remains.
    assert {cell.rows_of_table for cell in presets(1)} == {1}
