"""Logarithms, interpolation, raking and latent classes against their obvious forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.generate.sampling import fit_latent_classes, interpolate, log2, rake


def test_log2_is_the_logarithm_to_base_2(rng: np.random.Generator) -> None:
    values = np.concatenate(
        [[1.0, 2.0, 3.0, 0.5, 1e-300, 1e300, 10_131_227.0], np.exp(rng.normal(0, 9, 5000))]
    )
    wanted = np.array([math.log2(value) for value in values])
    assert np.all(np.abs(log2(values) - wanted) <= 4e-16 * np.maximum(1, np.abs(wanted)))


def test_log2_of_powers_of_two_is_exact() -> None:
    powers = np.float64(2) ** np.arange(-40, 41, dtype=np.float64)
    np.testing.assert_array_equal(log2(powers), np.arange(-40, 41))


def test_log2_of_nothing_is_nothing() -> None:
    assert log2(np.empty(0)).shape == (0,)


@pytest.mark.parametrize("num_knots", [2, 3, 17])
def test_interpolation_agrees_with_numpys(num_knots: int, rng: np.random.Generator) -> None:
    knots = np.sort(rng.random(num_knots))
    values = rng.random(num_knots)
    at = np.concatenate([rng.uniform(-0.2, 1.2, 500), knots])
    np.testing.assert_allclose(interpolate(at, knots, values), np.interp(at, knots, values), atol=1e-14)


def naive_rake(
    matrix: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64], num_rounds: int
) -> NDArray[np.float64]:
    for _ in range(num_rounds):
        matrix = matrix * (rows / matrix.sum(axis=1))[:, None]
        matrix = matrix * (columns / matrix.sum(axis=0))
    return matrix


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (5, 1), (7, 3)])
def test_raking_agrees_with_the_naive_form(shape: tuple[int, int], rng: np.random.Generator) -> None:
    matrix = rng.random(shape) + 0.01
    rows = rng.dirichlet(np.ones(shape[0]))
    columns = rng.dirichlet(np.ones(shape[1]))
    wanted = naive_rake(matrix, rows, columns, 50)
    rake(matrix, rows, columns, 50)
    np.testing.assert_allclose(matrix, wanted, rtol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=0), columns, rtol=1e-12)
    np.testing.assert_allclose(matrix.sum(axis=1), rows, rtol=1e-6)


def test_raking_leaves_rows_and_columns_of_zeros_alone() -> None:
    matrix = np.array([[0.0, 0.0], [0.0, 2.0]])
    rake(matrix, np.array([0.0, 1.0]), np.array([0.0, 1.0]), 3)
    np.testing.assert_array_equal(matrix, [[0, 0], [0, 1]])


def test_two_clear_classes_are_found(rng: np.random.Generator) -> None:
    num_samples = 4000
    latent = rng.random(num_samples) < 0.3
    likely = np.where(latent[:, None], 0.9, 0.1) * np.ones((1, 8))
    levels = (rng.random((num_samples, 8)) < likely).astype(np.int32)
    levels[rng.random((num_samples, 8)) < 0.2] = -1  # absent levels say nothing
    weights, parts, members = fit_latent_classes(levels, np.full(8, 2), 2, rng, num_rounds=100)
    np.testing.assert_allclose(weights, [0.7, 0.3], atol=0.03)
    for shares in parts:
        np.testing.assert_allclose(shares[:, 1], [0.1, 0.9], atol=0.05)
    assert np.mean((members[:, 1] > 0.5) == latent) > 0.97
