"""Distinct rows against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.batches.distinct_rows import find_distinct


def naive_distinct(rows: list[int]) -> tuple[list[int], list[int]]:
    places: dict[int, int] = {}
    inverse = [places.setdefault(row, len(places)) for row in rows]
    return list(places), inverse


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**62)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_distinct_rows_come_in_order_of_first_appearance(rows: list[int]) -> None:
    distinct, inverse = find_distinct(np.array(rows, np.int64))
    assert (distinct.tolist(), inverse.tolist()) == naive_distinct(rows)


@pytest.mark.parametrize("num_lookups", [0, 1, 7, 53_248])
def test_distinct_rows_of_skewed_lookups(num_lookups: int, rng: np.random.Generator) -> None:
    rows = rng.zipf(1.2, num_lookups) % 100_000
    distinct, inverse = find_distinct(rows)
    assert (distinct.tolist(), inverse.tolist()) == naive_distinct(rows.tolist())
