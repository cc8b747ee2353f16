"""Products by blocks against NumPy in float64, at the edges of blocks; tests `block_product`, too."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.products.dense_products import (
    multiply,
    multiply_transposed,
    num_edge_floats,
    num_left_floats,
    num_panel_floats,
    pack_left,
    pack_right,
    pack_transposed,
)

Matrix = NDArray[np.float32]
SIZES = [
    (1, 1, 1),
    (8, 32, 5),
    (16, 64, 16),
    (7, 31, 3),
    (9, 33, 40),
    (17, 16, 13),
    (24, 48, 0),
    (512, 40, 96),
    (9, 40, 64),
    (20, 33, 500),
]
"""Rows, columns and terms."""


def drawn(rng: np.random.Generator, *shape: int) -> Matrix:
    return rng.standard_normal(shape).astype(np.float32)


def dirty(num_floats: int) -> Matrix:
    """Memory in which nothing is zero by chance."""
    return np.full(num_floats, np.nan, np.float32)


def product(left_MK: Matrix, right_KN: Matrix) -> Matrix:
    num_terms, num_columns = right_KN.shape
    panels = dirty(num_panel_floats(num_terms, num_columns))
    pack_right(right_KN, panels)
    out = dirty(left_MK.shape[0] * num_columns).reshape(-1, num_columns)
    multiply(left_MK, panels, out, dirty(num_edge_floats(num_terms)))
    return out


def product_of_transposed(left_KM: Matrix, right_KN: Matrix) -> Matrix:
    num_terms, num_rows = left_KM.shape
    num_columns = right_KN.shape[1]
    panels = dirty(num_panel_floats(num_terms, num_columns))
    pack_right(right_KN, panels)
    left_panels = dirty(num_left_floats(num_terms, num_rows))
    pack_left(left_KM, left_panels)
    out = dirty(num_rows * num_columns).reshape(-1, num_columns)
    multiply_transposed(left_panels, num_terms, panels, out, dirty(num_edge_floats(num_terms)))
    return out


def assert_within_the_bound(found: Matrix, left_MK: Matrix, right_KN: Matrix) -> None:
    exact = left_MK.astype(np.float64) @ right_KN.astype(np.float64)
    magnitudes = np.abs(left_MK).astype(np.float64) @ np.abs(right_KN).astype(np.float64)
    num_terms = left_MK.shape[1]
    num_rounded = min(num_terms, 64) + num_terms // 64
    assert np.all(np.abs(found - exact) <= num_rounded * 2.0**-24 * magnitudes)


@pytest.mark.parametrize(("num_rows", "num_columns", "num_terms"), SIZES)
def test_a_product_is_that_of_numpy_within_the_bound(
    num_rows: int, num_columns: int, num_terms: int, rng: np.random.Generator
) -> None:
    left, right = drawn(rng, num_rows, num_terms), drawn(rng, num_terms, num_columns)
    assert_within_the_bound(product(left, right), left, right)


@pytest.mark.parametrize(("num_rows", "num_columns", "num_terms"), SIZES)
def test_so_is_that_of_a_transposed_matrix(
    num_rows: int, num_columns: int, num_terms: int, rng: np.random.Generator
) -> None:
    left, right = drawn(rng, num_terms, num_rows), drawn(rng, num_terms, num_columns)
    assert_within_the_bound(product_of_transposed(left, right), left.T, right)


@pytest.mark.parametrize(
    ("num_terms", "num_columns"), [(1, 1), (16, 32), (13, 40), (40, 64), (33, 17), (0, 5)]
)
def test_the_panels_of_a_transpose_are_those_of_its_copy(
    num_terms: int, num_columns: int, rng: np.random.Generator
) -> None:
    matrix = drawn(rng, num_columns, num_terms)
    found, wanted = (dirty(num_panel_floats(num_terms, num_columns)) for _ in range(2))
    pack_transposed(matrix, found)
    pack_right(np.ascontiguousarray(matrix.T), wanted)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="NumPy has an order of its own")
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (3, 20), (8, 16), (5, 29)])
def test_the_sums_of_a_row_do_not_depend_on_the_rows_beside_it(
    first: int, stop: int, rng: np.random.Generator
) -> None:
    left, right = drawn(rng, 29, 50), drawn(rng, 50, 70)
    np.testing.assert_array_equal(product(left[first:stop], right), product(left, right)[first:stop])


def test_what_is_no_number_stays_in_its_row(rng: np.random.Generator) -> None:
    left, right = drawn(rng, 9, 4), drawn(rng, 4, 3)
    left[8, 2] = np.nan
    found = product(left, right)
    assert np.isnan(found[8]).all()
    assert np.isfinite(found[:8]).all()
