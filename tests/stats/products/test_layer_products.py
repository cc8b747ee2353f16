"""The products of a layer against NumPy in float64, at the edges of blocks; tests `block_product`, too."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.products.layer_products import (
    input_gradients,
    layer_outputs,
    mask_gradients,
    masked_input_gradients,
    weight_gradients,
)
from hotset.stats.products.panels import PART_FLOATS, num_panel_floats, num_stored_rows, pack, unpack

Matrix = NDArray[np.float32]
SIZES = [
    (1, 1, 1),
    (8, 32, 5),
    (16, 64, 16),
    (7, 31, 3),
    (9, 33, 40),
    (17, 16, 13),
    (24, 48, 0),
    (130, 40, 96),
    (9, 40, 64),
    (20, 33, 500),
    (64, 64, 128),
    (600, 70, 65),
]
"""Rows and columns of a product, and terms of its sums."""


def drawn(rng: np.random.Generator, *shape: int) -> Matrix:
    return rng.standard_normal(shape).astype(np.float32)


def dirty(num_floats: int) -> Matrix:
    """Memory in which nothing is zero by chance."""
    return np.full(num_floats, np.nan, np.float32)


def panels_of(matrix_MN: Matrix) -> Matrix:
    """The panels of a left matrix; the rows behind it are no numbers."""
    num_rows, num_columns = matrix_MN.shape
    panels = dirty(num_panel_floats(num_stored_rows(num_rows), num_columns))
    pack(matrix_MN, num_stored_rows(num_rows), panels)
    return panels


def matrix_of(panels: Matrix, num_rows: int, num_columns: int) -> Matrix:
    matrix = dirty(num_rows * num_columns).reshape(num_rows, num_columns)
    unpack(panels, num_stored_rows(num_rows), matrix)
    return matrix


def outputs_of(inputs_MK: Matrix, weight_KN: Matrix, bias_N: Matrix) -> Matrix:
    num_rows, num_columns = inputs_MK.shape[0], weight_KN.shape[1]
    outputs = dirty(num_panel_floats(num_stored_rows(num_rows), num_columns))
    stored = num_stored_rows(num_rows)
    layer_outputs(panels_of(inputs_MK), stored, weight_KN, bias_N, dirty(2 * PART_FLOATS), outputs)
    return matrix_of(outputs, num_rows, num_columns)


def product(left_MK: Matrix, right_KN: Matrix) -> Matrix:
    """A product without ReLU: the gradients by the inputs of a layer with the transposed weight."""
    num_rows, num_columns = left_MK.shape[0], right_KN.shape[1]
    found = dirty(num_panel_floats(num_stored_rows(num_rows), num_columns))
    weight = np.ascontiguousarray(right_KN.T)
    stored = num_stored_rows(num_rows)
    input_gradients(panels_of(left_MK), stored, weight, dirty(2 * PART_FLOATS), found)
    return matrix_of(found, num_rows, num_columns)


def product_of_transposed(left_KM: Matrix, right_KN: Matrix) -> Matrix:
    num_terms, num_rows = left_KM.shape
    found = dirty(num_rows * right_KN.shape[1]).reshape(num_rows, -1)
    panels = panels_of(left_KM), panels_of(right_KN)
    weight_gradients(*panels, num_stored_rows(num_terms), num_terms, dirty(PART_FLOATS), found)
    return found


def assert_within_the_bound(
    found: Matrix, left_MK: Matrix, right_KN: Matrix, bias_N: Matrix | None = None
) -> None:
    exact = left_MK.astype(np.float64) @ right_KN.astype(np.float64)
    magnitudes = np.abs(left_MK).astype(np.float64) @ np.abs(right_KN).astype(np.float64)
    num_terms = left_MK.shape[1]
    num_rounded = min(num_terms, 64) + num_terms // 64
    if bias_N is not None:
        exact = np.maximum(exact + bias_N, 0)
        magnitudes = magnitudes + np.abs(bias_N)
        num_rounded += 1
    assert np.all(np.abs(found - exact) <= num_rounded * 2.0**-24 * magnitudes)


@pytest.mark.parametrize(("num_rows", "num_columns", "num_terms"), SIZES)
def test_the_outputs_of_a_layer_are_those_of_numpy_within_the_bound(
    num_rows: int, num_columns: int, num_terms: int, rng: np.random.Generator
) -> None:
    inputs, weight = drawn(rng, num_rows, num_terms), drawn(rng, num_terms, num_columns)
    bias = drawn(rng, num_columns)
    assert_within_the_bound(outputs_of(inputs, weight, bias), inputs, weight, bias)


@pytest.mark.parametrize(("num_rows", "num_columns", "num_terms"), SIZES)
def test_so_are_the_gradients_by_its_inputs(
    num_rows: int, num_columns: int, num_terms: int, rng: np.random.Generator
) -> None:
    left, right = drawn(rng, num_rows, num_terms), drawn(rng, num_terms, num_columns)
    assert_within_the_bound(product(left, right), left, right)


@pytest.mark.parametrize(("num_rows", "num_columns", "num_terms"), SIZES)
def test_so_are_those_by_its_weights(
    num_rows: int, num_columns: int, num_terms: int, rng: np.random.Generator
) -> None:
    left, right = drawn(rng, num_terms, num_rows), drawn(rng, num_terms, num_columns)
    assert_within_the_bound(product_of_transposed(left, right), left.T, right)


@pytest.mark.parametrize(("num_rows", "num_columns", "num_terms"), SIZES)
def test_no_gradient_passes_where_relu_was_zero(
    num_rows: int, num_columns: int, num_terms: int, rng: np.random.Generator
) -> None:
    grads, weight = drawn(rng, num_rows, num_terms), drawn(rng, num_columns, num_terms)
    inputs = np.maximum(drawn(rng, num_rows, num_columns), 0)
    stored = num_stored_rows(num_rows)
    found = dirty(num_panel_floats(stored, num_columns))
    bias_grad = dirty(num_columns)
    parts = dirty(2 * PART_FLOATS)
    masked_input_gradients(
        panels_of(grads), stored, weight, parts, found, panels_of(inputs), bias_grad, num_rows
    )
    wanted = product(grads, np.ascontiguousarray(weight.T))
    wanted[inputs <= 0] = 0
    np.testing.assert_array_equal(matrix_of(found, num_rows, num_columns), wanted)
    assert_serial_sum(bias_grad, wanted)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(1, 1), (9, 33), (8, 64), (70, 130)])
def test_so_it_is_with_those_that_are_given(
    num_rows: int, num_columns: int, rng: np.random.Generator
) -> None:
    grads = drawn(rng, num_rows, num_columns)
    outputs = np.maximum(drawn(rng, num_rows, num_columns), 0)
    panels, bias_grad = panels_of(grads), dirty(num_columns)
    mask_gradients(panels, panels_of(outputs), num_stored_rows(num_rows), num_rows, bias_grad)
    wanted = np.where(outputs <= 0, np.float32(0), grads)
    np.testing.assert_array_equal(matrix_of(panels, num_rows, num_columns), wanted)
    assert_serial_sum(bias_grad, wanted)


def assert_serial_sum(bias_grad_N: Matrix, grads_MN: Matrix) -> None:
    total = np.zeros_like(bias_grad_N)
    for row_N in grads_MN:
        total = total + row_N
    np.testing.assert_array_equal(bias_grad_N, total)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="NumPy has an order of its own")
@pytest.mark.parametrize(("first", "stop"), [(0, 1), (3, 20), (8, 16), (5, 29)])
def test_the_sums_of_a_row_do_not_depend_on_the_rows_beside_it(
    first: int, stop: int, rng: np.random.Generator
) -> None:
    left, right, bias = drawn(rng, 29, 150), drawn(rng, 150, 70), drawn(rng, 70)
    np.testing.assert_array_equal(product(left[first:stop], right), product(left, right)[first:stop])
    outputs = outputs_of(left, right, bias)[first:stop]
    np.testing.assert_array_equal(outputs_of(left[first:stop], right, bias), outputs)


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="NumPy has an order of its own")
def test_all_three_products_add_in_parts_of_sixty_four_terms(rng: np.random.Generator) -> None:
    left, right = drawn(rng, 3, 150), drawn(rng, 150, 5)
    wanted = np.zeros((3, 5), np.float32)
    for begin in range(0, 150, 64):
        sums = np.zeros((3, 5), np.float32)
        for term in range(begin, min(begin + 64, 150)):
            # A product of two float32 is exact in float64, so the sum is rounded once, or twice at a tie.
            sums = (left[:, term, None].astype(np.float64) * right[None, term] + sums).astype(np.float32)
        wanted = wanted + sums if begin else sums
    np.testing.assert_array_equal(product(left, right), wanted)
    np.testing.assert_array_equal(product_of_transposed(np.ascontiguousarray(left.T), right), wanted)
    no_bias = np.zeros(5, np.float32)
    np.testing.assert_array_equal(outputs_of(left, right, no_bias), np.maximum(wanted, 0))


def test_what_is_no_number_stays_in_its_row(rng: np.random.Generator) -> None:
    left, right, bias = drawn(rng, 9, 4), drawn(rng, 4, 3), drawn(rng, 3)
    left[8, 2] = np.nan
    for found in (product(left, right), outputs_of(left, right, bias)):
        assert np.isnan(found[8]).all()
        assert np.isfinite(found[:8]).all()


def test_without_samples_gradients_of_weights_are_zero() -> None:
    none = np.zeros((0, 9), np.float32)
    np.testing.assert_array_equal(product_of_transposed(none, none), np.zeros((9, 9), np.float32))
    assert outputs_of(none, np.ones((9, 4), np.float32), np.ones(4, np.float32)).shape == (0, 4)
