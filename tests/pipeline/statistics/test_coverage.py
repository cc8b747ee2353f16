"""The share of lookups that the first rows of a table serve, and the budgets of its curves."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from hotset.pipeline.statistics.coverage import SMALLEST_BUDGET, budgets_up_to, coverage
from hotset.pipeline.statistics.folder import Inspected


@pytest.mark.parametrize("is_shuffled", [False, True])
def test_shares_are_those_of_the_most_looked_up_rows_whatever_the_order_of_ids(
    is_shuffled: bool, rng: np.random.Generator
) -> None:
    counts = np.sort(rng.zipf(1.3, 500).clip(max=10**6).astype(np.int64))[::-1].copy()
    given = rng.permutation(counts) if is_shuffled else counts
    inspected = SimpleNamespace(tables=[SimpleNamespace(name="C1")], counts=[given])
    found = coverage(cast(Inspected, inspected))
    assert found[0]["num_rows"] == 1 and found[-1]["num_rows"] == 500
    for point in found:
        assert point["table"] == "C1"
        assert point["lookup_share"] == pytest.approx(counts[: point["num_rows"]].sum() / counts.sum())


@pytest.mark.parametrize("num_bytes", [100, SMALLEST_BUDGET, SMALLEST_BUDGET + 1, 10**6])
def test_budgets_rise_by_half_powers_of_two_up_to_all_rows(num_bytes: int) -> None:
    budgets = budgets_up_to(num_bytes)
    assert budgets == sorted(set(budgets)) and budgets[-1] == num_bytes
    curve = budgets[:-1]
    assert all(SMALLEST_BUDGET <= size < num_bytes for size in curve)
    assert all(b / a == pytest.approx(2**0.5, rel=1e-3) for a, b in pairwise(curve))
