"""Kernels that ask the cache ahead of a lookup find what they find without, at the ends of arrays too.

Values of sixteen numbers against NumPy, inside a compiled function.
"""

from __future__ import annotations

import os
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.counting import add_counts
from hotset.stats.id_tables import build_id_table, find_ids, new_table, shift_of
from hotset.stats.kernel import inlined_kernel, kernel, read_only
from hotset.stats.simd import (
    AHEAD,
    WIDTH,
    Float16x,
    add,
    add_halves,
    add_in_turns,
    add_pairs,
    add_quarters,
    aligned_zeros,
    load,
    multiply_add,
    prefetch,
    split_neighbors,
    store,
    store_quarters,
    subtract_product,
    zeros,
)
from hotset.tests.support.hashed_categories import ALL_VALID, entries_of


@pytest.mark.parametrize("num_lookups", [int(AHEAD) - 1, int(AHEAD), int(AHEAD) + 1, 1000])
def test_asking_ahead_ends_with_the_lookups(num_lookups: int, rng: np.random.Generator) -> None:
    categories = rng.integers(0, 2**32, num_lookups).astype(np.uint32)
    table = new_table(3 << 13)  # large enough for counting to ask
    stopped, num_used = add_counts(read_only(categories), 0, table, shift_of(table), 0, num_lookups)
    assert entries_of(table) == dict(Counter(categories.tolist()))
    assert (stopped, num_used) == (num_lookups, len(set(categories.tolist())))
    rows = np.unique(categories[::2])
    ids = {category: i for i, category in enumerate(rows.tolist())}
    wanted = [ids.get(category, -5) for category in categories.tolist()]
    for dtype in (np.uint32, np.uint64):
        found = np.empty(num_lookups, np.int32)
        find_ids(
            categories.astype(dtype), ALL_VALID, build_id_table(rows.astype(dtype), 0, -1, -1), -1, -5, found
        )
        assert found.tolist() == wanted


def test_asking_changes_nothing() -> None:
    table = np.arange(32, dtype=np.uint64).reshape(16, 2)
    prefetch(table, np.uint64(15))
    np.testing.assert_array_equal(table.reshape(-1), np.arange(32))


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
    store(flat, np.uint64(2 * WIDTH), add_pairs(first, second))
    store(flat, np.uint64(3 * WIDTH), multiply_add(first, first, multiply_add(factor, second, first)))
    store(flat, np.uint64(4 * WIDTH), add(first, second))
    store(flat, np.uint64(5 * WIDTH), subtract_product(first, factor, second))


@inlined_kernel
def two_of_column(values_N: NDArray[np.float32], row: np.uint64, column: np.uint64) -> Float16x:
    """Two values of four rows and columns, one below the other, added down to eight numbers each."""
    at = (np.uint64(4) * row + column) * np.uint64(WIDTH)
    below = at + np.uint64(4 * WIDTH)
    return add_halves(split_neighbors(load(values_N, at)), split_neighbors(load(values_N, below)))


@kernel
def add_numbers(
    values_N: NDArray[np.float32], starts_4: NDArray[np.uint64], found: NDArray[np.float32]
) -> None:
    """Add the numbers of each of sixteen values, and write each row of four sums to its place."""
    zero, one, two, three = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
    first = add_quarters(
        add_in_turns(two_of_column(values_N, zero, zero), two_of_column(values_N, zero, one)),
        add_in_turns(two_of_column(values_N, two, zero), two_of_column(values_N, two, one)),
    )
    second = add_quarters(
        add_in_turns(two_of_column(values_N, zero, two), two_of_column(values_N, zero, three)),
        add_in_turns(two_of_column(values_N, two, two), two_of_column(values_N, two, three)),
    )
    sums = add_pairs(first, second)
    store_quarters(found, starts_4[0], starts_4[1], starts_4[2], starts_4[3], sums)


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
    pairs = [value.reshape(4, 2, 2).sum(1) for value in (first, second)]
    np.testing.assert_array_equal(found[2], np.hstack(pairs).ravel())
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


def test_four_levels_add_neighbors_and_then_their_sums(rng: np.random.Generator) -> None:
    values = rng.standard_normal((16, WIDTH)).astype(np.float32)
    found = np.full(40, 7, np.float32)
    starts = np.array([21, 1, 9, 30], np.uint64)
    add_numbers(values.reshape(-1), starts, found)
    wanted = values
    while wanted.shape[1] > 1:
        wanted = wanted[:, ::2] + wanted[:, 1::2]
    for row, start in enumerate(starts.tolist()):
        np.testing.assert_array_equal(found[start : start + 4], wanted[4 * row : 4 * row + 4, 0])
        found[start : start + 4] = 7
    assert (found == 7).all()


@pytest.mark.parametrize("shape", [(1,), (27, 16), (27, 80), (5, 3)])
def test_workspace_begins_with_a_cache_line_wherever_its_memory_does(shape: tuple[int, ...]) -> None:
    # Arrays that stay move the next one to other places.
    found = [aligned_zeros(*shape) for _ in range(9)]
    assert all(each.ctypes.data % (4 * WIDTH) == 0 for each in found)
    assert all(each.shape == shape and each.flags.c_contiguous and not each.any() for each in found)
