"""Summaries of values against sorting them, and labels of rows against a dictionary."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.value_summary import NUM_BINS, ValueSummary, bin_edge

SHARES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


def summarize(values: NDArray[Any], is_valid: NDArray[np.bool_] | None = None) -> ValueSummary:
    bitmap = np.zeros(0, np.uint8) if is_valid is None else np.packbits(is_valid, bitorder="little")
    return ValueSummary.of(values, bitmap, np.empty(NUM_BINS, np.int64))


def naive_quantiles(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered[max(1, math.ceil(share * len(ordered))) - 1] for share in SHARES]


@pytest.mark.parametrize("dtype", [np.int32, np.float64])
@pytest.mark.parametrize("num_values", [0, 1, 7, 1000])
def test_a_summary_agrees_with_sorting(num_values: int, dtype: type, rng: np.random.Generator) -> None:
    values: NDArray[Any] = (rng.standard_normal(num_values) * np.exp(rng.uniform(0, 15, num_values))).astype(
        dtype
    )
    is_valid = rng.random(num_values) < 0.7
    kept = [float(value) for value in values[is_valid]]
    # In two parts, as a log is read.
    middle = num_values // 3
    found = summarize(values[:middle], is_valid[:middle]) + summarize(values[middle:], is_valid[middle:])
    assert found.counts.tolist() == [len(kept), kept.count(0.0), sum(value < 0 for value in kept)]
    assert found.numbers[0] == pytest.approx(math.fsum(kept))
    assert found.numbers[1:].tolist() == [min(kept, default=math.inf), max(kept, default=-math.inf)]
    quantiles = found.quantiles(SHARES)
    for ours, exact in zip(quantiles, naive_quantiles(kept) if kept else [], strict=True):
        assert abs(ours - exact) <= abs(exact) * 2**-7
    assert sum(count for _, _, count in found.by_power_of_two()) == len(kept)


def test_small_integers_are_exact(rng: np.random.Generator) -> None:
    values = rng.integers(-256, 257, 5000).astype(np.int32)
    assert summarize(values).quantiles(SHARES) == naive_quantiles(values.tolist())


def test_bins_are_powers_of_two_and_zero() -> None:
    found = summarize(np.array([-3, -1, 0, 0, 1, 2, 3, 4, 1000], np.int32)).by_power_of_two()
    assert found == [(-4, -2, 1), (-2, -1, 1), (0, 0, 2), (1, 2, 1), (2, 4, 2), (4, 8, 1), (512, 1024, 1)]


def test_the_ends_of_both_kinds_have_bins() -> None:
    for value in (-(2**31), 2**31 - 1):
        assert summarize(np.array([value], np.int32)).quantiles([0.5]) == [value]
    huge = summarize(np.array([1e300, -1e300, -0.0, 1e-300]))
    assert huge.counts.tolist() == [4, 1, 1] and huge.numbers[1:].tolist() == [-1e300, 1e300]
    assert huge.quantiles([0.25, 0.5])[1] == 0
    edges = [bin_edge(number) for number in range(0x100, 0xFF00)]
    assert edges == sorted(edges)
