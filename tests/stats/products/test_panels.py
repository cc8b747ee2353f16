"""Panels hold the numbers of a matrix where products look for them."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.kernel import kernel
from hotset.stats.products.panels import (
    PART_FLOATS,
    SQUARES,
    num_panel_floats,
    num_stored_rows,
    pack,
    pack_rows,
    pack_squares,
    pack_whole_row,
    unpack,
)

SIZES = [(1, 1), (9, 16), (5, 64), (3, 70), (16, 140), (0, 7)]
PARTS = [(64, 64), (1, 1), (16, 16), (40, 64), (64, 33), (17, 48)]


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("num_rows", "num_columns"), SIZES)
def test_a_panel_has_sixty_four_columns_and_ends_with_zeros(
    num_rows: int, num_columns: int, rng: np.random.Generator
) -> None:
    matrix = drawn(rng, num_rows, num_columns)
    stored = num_stored_rows(num_rows)
    panels = np.full(num_panel_floats(stored, num_columns), np.nan, np.float32)
    pack(matrix, stored, panels)
    by_panel = panels.reshape(-(-num_columns // 64), stored, 64)[:, :num_rows]
    wanted = np.zeros((num_rows, by_panel.shape[0] * 64), np.float32)
    wanted[:, :num_columns] = matrix
    np.testing.assert_array_equal(by_panel.transpose(1, 0, 2).reshape(wanted.shape), wanted)
    found = np.empty_like(matrix)
    unpack(panels, stored, found)
    np.testing.assert_array_equal(found, matrix)


@kernel
def pack_both(
    matrix: np.ndarray, num_columns: int, height: int, width: int, part: np.ndarray, other: np.ndarray
) -> None:
    pack_rows(matrix, num_columns, num_columns + 2, height, width, part, 0)
    # In two calls, as shares of the blocks of a product.
    pack_squares(matrix, num_columns, num_columns + 2, height, width, 0, 5, other, 0)
    pack_squares(matrix, num_columns, num_columns + 2, height, width, 5, SQUARES, other, 0)


@pytest.mark.parametrize(("height", "width"), PARTS)
def test_a_part_and_its_transpose_end_with_zeros(height: int, width: int, rng: np.random.Generator) -> None:
    matrix = drawn(rng, 70, 80)
    part, other = (np.full(PART_FLOATS, np.nan, np.float32) for _ in range(2))
    pack_both(matrix.reshape(-1), 80, height, width, part, other)
    wanted = np.zeros((64, 64), np.float32)
    wanted[:height, :width] = matrix[1 : 1 + height, 2 : 2 + width]
    np.testing.assert_array_equal(part.reshape(64, 64)[:height], wanted[:height])
    np.testing.assert_array_equal(other.reshape(64, 64)[:width], wanted.T[:width])


@kernel
def pack_one(matrix: np.ndarray, part: np.ndarray) -> None:
    pack_whole_row(matrix, 3, 100, part, 64)


def test_a_whole_row_is_copied(rng: np.random.Generator) -> None:
    matrix = drawn(rng, 200)
    part = np.zeros(PART_FLOATS, np.float32)
    pack_one(matrix, part)
    np.testing.assert_array_equal(part[64:128], matrix[3:67])
    assert not part[:64].any() and not part[128:].any()
