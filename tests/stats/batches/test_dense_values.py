"""Transforms of dense values against Python's own arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.batches.dense_values import log1p_table, transform_dense, transform_values


def naive_transform(values: NDArray[np.float64], is_valid: NDArray[np.bool_], is_log: bool) -> list[float]:
    kept = [float(value) if valid else 0.0 for value, valid in zip(values, is_valid, strict=True)]
    return [float(np.float32(math.log1p(max(value, 0)) if is_log else value)) for value in kept]


@pytest.mark.parametrize("is_log", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.int32])
@pytest.mark.parametrize("num_values", [0, 1, 9, 1000])
def test_values_are_those_of_the_naive_transform(
    num_values: int, dtype: type, is_log: bool, rng: np.random.Generator
) -> None:
    values: NDArray[Any] = (rng.standard_normal(num_values) * 1e6).astype(dtype)
    is_valid = rng.random(num_values) < 0.7
    out = np.empty((num_values, 2), np.float32)
    every = np.arange(num_values, dtype=np.int32)
    transform_values(values, np.packbits(is_valid, bitorder="little"), every, is_log, out[:, 1])
    assert out[:, 1].tolist() == naive_transform(values.astype(np.float64), is_valid, is_log)
    transform_values(values, np.zeros(0, np.uint8), every, is_log, out[:, 0])
    assert out[:, 0].tolist() == naive_transform(values.astype(np.float64), np.ones(num_values, bool), is_log)
    # Some of them, in order, leave the rest of the output alone.
    few = every[::3]
    transform_values(values, np.packbits(is_valid, bitorder="little"), few, is_log, out[:, 0])
    assert out[: few.size, 0].tolist() == out[::3, 1].tolist()
    assert out[few.size :, 0].tolist() == naive_transform(
        values[few.size :].astype(np.float64), np.ones(num_values - few.size, bool), is_log
    )


def test_dense_values_agree_with_log1p_rounded_once(rng: np.random.Generator) -> None:
    values = np.concatenate(
        [[-(2**31), -1, 0, 1, 15, 16, 17, 2**31 - 1], rng.integers(-50, 2**31, 500)]
    ).astype(np.int32)
    is_present = rng.random(values.shape[0]) < 0.8
    wanted = np.log1p(np.maximum(values, 0).astype(np.float64)).astype(np.float32)
    matrix = np.full((values.shape[0], 3), -1, np.float32)
    every = np.arange(values.shape[0], dtype=np.int32)
    transform_dense(values, np.zeros(0, np.uint8), every, log1p_table(16), matrix[:, 1])
    np.testing.assert_array_equal(matrix[:, 1], wanted)
    bitmap = np.packbits(is_present, bitorder="little")
    transform_dense(values, bitmap, every, log1p_table(16), matrix[:, 2])
    np.testing.assert_array_equal(matrix[:, 2], np.where(is_present, wanted, 0))
    assert (matrix[:, 0] == -1).all()
    few = np.flatnonzero(rng.random(values.shape[0]) < 0.3).astype(np.int32)
    transform_dense(values, bitmap, few, log1p_table(16), matrix[:, 0])
    np.testing.assert_array_equal(matrix[: few.size, 0], matrix[few, 2])
    assert (matrix[few.size :, 0] == -1).all()
