"""Values of sixteen numbers against NumPy, inside a compiled function."""

from __future__ import annotations

import os
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.kernel import kernel
from hotset.stats.simd import (
    WIDTH,
    add,
    add_neighbors,
    aligned_zeros,
    load,
    multiply_add,
    store,
    subtract_product,
    zeros,
)


@kernel
def compute(
    left: NDArray[np.float32], right: NDArray[np.float32], factor: np.float32, found: NDArray[np.float32]
) -> None:
    """Six results, one row of ``found`` each."""
    flat = found.reshape(-1)
    # From the second number on: nothing is aligned.
    first = load(left, np.uint64(1))
    second = load(right, np.uint64(1))
    store(flat, np.uint64(0), multiply_add(first, second, zeros()))
    store(flat, np.uint64(WIDTH), multiply_add(factor, first, second))
    store(flat, np.uint64(2 * WIDTH), add_neighbors(first, second))
    store(flat, np.uint64(3 * WIDTH), multiply_add(first, first, multiply_add(factor, second, first)))
    store(flat, np.uint64(4 * WIDTH), add(first, second))
    store(flat, np.uint64(5 * WIDTH), subtract_product(first, factor, second))


def rounded_once(left: float, right: float, start: float) -> np.float32:
    """``left * right + start`` from exact fractions."""
    exact = Fraction(left) * Fraction(right) + Fraction(start)
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda each: abs(Fraction(float(each)) - exact))


def test_values_are_those_of_numpy(rng: np.random.Generator) -> None:
    left, right = rng.standard_normal((2, WIDTH + 3)).astype(np.float32)
    factor = np.float32(0.3)
    found = np.full((7, WIDTH), 7, np.float32)
    compute(left, right, factor, found)
    first, second = left[1 : WIDTH + 1], right[1 : WIDTH + 1]
    np.testing.assert_array_equal(found[0], first * second)
    joined = np.concatenate([first, second])
    np.testing.assert_array_equal(found[2], joined[::2] + joined[1::2])
    np.testing.assert_allclose(found[1], factor * first + second, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[3], first * first + factor * second + first, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[4], first + second)
    np.testing.assert_array_equal(found[5], first - factor * second)
    assert (found[6] == 7).all()


@pytest.mark.skipif("NUMBA_DISABLE_JIT" in os.environ, reason="rounded twice where not compiled")
def test_a_product_is_not_rounded_before_it_is_added(rng: np.random.Generator) -> None:
    left = rng.standard_normal(WIDTH + 1).astype(np.float32)
    factor = np.float32(1 / 3)
    # The sums nearly vanish, so that a rounding of the products is most of what is left.
    right = -(left * factor)
    found = np.empty((6, WIDTH), np.float32)
    compute(left, right, factor, found)
    wanted = [
        rounded_once(float(factor), float(x), float(y)) for x, y in zip(left[1:], right[1:], strict=True)
    ]
    np.testing.assert_array_equal(found[1], wanted)
    assert np.count_nonzero(wanted) > WIDTH // 2


@pytest.mark.parametrize("shape", [(1,), (27, 16), (27, 80), (5, 3)])
def test_workspace_begins_with_a_cache_line_wherever_its_memory_does(shape: tuple[int, ...]) -> None:
    # Arrays that stay move the next one to other places.
    found = [aligned_zeros(*shape) for _ in range(9)]
    assert all(each.ctypes.data % (4 * WIDTH) == 0 for each in found)
    assert all(each.shape == shape and each.flags.c_contiguous and not each.any() for each in found)
