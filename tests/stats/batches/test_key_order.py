"""Orders by buckets against NumPy's sort: hashed keys, consecutive ones, and keys crowded in one bucket."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batches.key_order import num_buckets, order_keys, sort_spread_keys


def ordered(keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Order keys with workspaces that hold what an earlier order left."""
    order = np.full(keys.shape[0], -1, np.int64)
    order_keys(keys, np.full(num_buckets(keys.shape[0]), 9, np.uint32), np.empty_like(keys), order)
    return order


def is_spread(keys: NDArray[np.uint64]) -> bool:
    """Return whether keys are sorted without comparing all; and see that they are."""
    order = np.empty(keys.shape[0], np.int64)
    found = np.empty_like(keys)
    if not sort_spread_keys(keys, np.zeros(num_buckets(keys.shape[0]), np.uint32), found, order):
        return False
    np.testing.assert_array_equal(found, np.sort(keys))
    np.testing.assert_array_equal(order, np.argsort(keys))
    return True


@settings(max_examples=100, deadline=None)
@given(
    st.sets(st.integers(0, 2**64 - 1) | st.integers(0, 40) | st.integers(2**64 - 5, 2**64 - 1), max_size=60)
)
def test_orders_agree_with_a_sort(keys: set[int]) -> None:
    drawn = np.array(list(keys), np.uint64)
    assert drawn[ordered(drawn)].tolist() == sorted(keys)


@pytest.mark.parametrize("num_keys", [1, 2, 63, 64, 65, 5000])
def test_hashed_and_consecutive_keys_are_spread(num_keys: int, rng: np.random.Generator) -> None:
    hashed = rng.integers(2**62, 2**63, num_keys, dtype=np.uint64)
    assert is_spread(hashed)
    assert is_spread(rng.permutation(np.arange(7, 7 + num_keys, dtype=np.uint64)))
    np.testing.assert_array_equal(ordered(hashed), np.argsort(hashed))


@pytest.mark.parametrize(("num_neighbors", "wanted"), [(63, True), (64, True), (65, False), (3000, False)])
def test_keys_crowded_in_one_bucket_are_sorted_by_comparing(
    num_neighbors: int, wanted: bool, rng: np.random.Generator
) -> None:
    keys = rng.permutation(np.array([*range(num_neighbors), 2**64 - 1], np.uint64))
    assert is_spread(keys) == wanted
    np.testing.assert_array_equal(ordered(keys), np.argsort(keys))
