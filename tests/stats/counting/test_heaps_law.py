"""Distinct categories of a long log, told from a short sample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.stats.counting.heaps_law import distinct_at


@given(
    st.floats(0, 1e10),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 10**6), min_size=3, max_size=3).map(sorted),
)
def test_it_is_never_more_than_lookups_nor_fewer_than_seen(
    num_lookups: float, num_sampled: int, distinct: list[int]
) -> None:
    found = distinct_at(num_lookups, distinct, num_sampled)
    assert 0 <= found <= max(num_lookups, distinct[2] + 1)
    if num_lookups >= max(num_sampled, distinct[2], 1) and num_sampled:
        assert found >= max(1, distinct[2]) or found == num_lookups
        assert distinct_at(2 * num_lookups, distinct, num_sampled) >= found


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("skew", [1.1, 1.3, 1.7, 2.5])
@pytest.mark.parametrize("times", [1, 3, 30])
def test_skewed_draws_are_told_within_a_factor_of_two(
    skew: float, times: int, rng: np.random.Generator
) -> None:
    draws = rng.zipf(skew, 20_000 * times) % 10**7
    sample = draws[:20_000]
    prefixes = [np.unique(sample[: 20_000 // part]).shape[0] for part in (4, 2, 1)]
    found = distinct_at(draws.shape[0], prefixes, 20_000)
    actual = np.unique(draws).shape[0]
    assert 0.5 < found / actual < 2


def test_a_small_table_is_seen_whole() -> None:
    assert distinct_at(10**9, [10, 10, 10], 1000) == 10
    assert distinct_at(100, [50, 70, 100], 1000) < 100
