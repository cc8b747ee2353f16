"""Gradients of ranks are added by the tree over rank numbers, and a rank without one adds nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.train.exchange.partial_sums import sum_partials
from hotset.train.rows.row_kernels import num_levels


def naive(parts: dict[int, NDArray[np.float32]], first: int, count: int) -> NDArray[np.float32] | None:
    """The sum over ranks from ``first`` on; None where none has a gradient."""
    if count == 1:
        return parts.get(first)
    left, right = (naive(parts, start, count // 2) for start in (first, first + count // 2))
    return right if left is None else left if right is None else left + right


def summed(places: NDArray[np.int32], partials: NDArray[np.float32]) -> NDArray[np.float32]:
    levels = num_levels(places.shape[1])
    sums = np.full((places.shape[0], partials.shape[1]), np.nan, np.float32)
    stack = np.full((levels, partials.shape[1]), np.nan, np.float32)
    sum_partials(places, partials, sums, stack, np.empty(levels, np.int64))
    return sums


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6, 8, 13])
def test_gradients_are_added_by_the_tree(num_ranks: int, rng: np.random.Generator) -> None:
    has = rng.random((50, num_ranks)) < 0.6
    has[np.arange(50), rng.integers(0, num_ranks, 50)] = True
    places = np.where(has, np.cumsum(has).reshape(has.shape) - 1, -1).astype(np.int32)
    partials = rng.normal(size=(has.sum(), 5)).astype(np.float32)
    size = 1 << (num_ranks - 1).bit_length()
    for row, found in enumerate(summed(places, partials)):
        parts = {rank: partials[places[row, rank]] for rank in range(num_ranks) if has[row, rank]}
        np.testing.assert_array_equal(found, naive(parts, 0, size))


def test_a_rank_without_a_gradient_is_no_zero() -> None:
    """0 + -0 is 0: a zero in its place would turn the sign."""
    sums = summed(np.array([[-1, 0, -1]], np.int32), np.full((1, 4), -0.0, np.float32))
    assert np.signbit(sums).all()
