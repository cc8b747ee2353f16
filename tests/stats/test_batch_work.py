"""Bags of lookups against slow, obvious twins.

Transforms of dense values against Python's own arithmetic.

Numbers of tiles and ranges of rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.batch_work import (
    MOST_TILE_SAMPLES,
    interleave_bags,
    locate_bags,
    log1p_table,
    num_tiles_of,
    transform_dense,
    transform_values,
)


@pytest.mark.parametrize("num_samples", [0, 1, 5, 60])
def test_bags_go_to_their_places_in_sample_order(num_samples: int, rng: np.random.Generator) -> None:
    bags = [[rng.integers(0, 99, rng.integers(0, 4)).tolist() for _ in range(3)] for _ in range(num_samples)]
    expected = [row for sample in bags for bag in sample for row in bag]
    lengths_P = np.array([len(bag) for sample in bags for bag in sample], np.int64)
    starts_P = np.cumsum(lengths_P) - lengths_P
    ids_N = np.full(len(expected), -1, np.int32)
    for feature in range(3):
        of_feature = [sample[feature] for sample in bags]
        offsets = np.cumsum([0, *(len(bag) for bag in of_feature)]).astype(np.int32)
        values = np.array([row for bag in of_feature for row in bag], np.int32)
        interleave_bags(offsets, values, starts_P, feature, 3, ids_N)
    assert ids_N.tolist() == expected


def test_rows_are_located_by_the_feature_of_their_bag(rng: np.random.Generator) -> None:
    first = np.array([0, 2])
    last = np.array([3, 6])
    base = np.array([0, 3])
    ids_N = rng.integers(-1, 8, 50).astype(np.int32)
    bags_N = np.sort(rng.integers(0, 12, 50))
    slots_N = np.empty(50, np.int64)
    num_absent = locate_bags(ids_N, bags_N, first, last, base, slots_N)
    for row, bag, slot in zip(ids_N.tolist(), bags_N.tolist(), slots_N.tolist(), strict=True):
        feature = bag % 2
        is_here = first[feature] <= row < last[feature]
        assert slot == (base[feature] + row - first[feature] if is_here else -1)
    assert num_absent == np.count_nonzero(slots_N < 0)


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


@pytest.mark.parametrize("num_samples", [0, 1, 255, 511, 512, 1023, 1024, 2047, 2049, 16_384, 16_385])
def test_tiles_are_the_fewest_powers_of_two_that_are_small_enough_and_serve_a_few_threads(
    num_samples: int,
) -> None:
    # The naive way: of all powers of two the first with tiles of at most 512 samples, or more of them, up to
    # four, as long as each has 256.
    powers = [1 << power for power in range(12)]
    fewest = next(count for count in powers if num_samples <= count * MOST_TILE_SAMPLES)
    for_threads = max(count for count in powers[:3] if count == 1 or num_samples >= 256 * count)
    assert num_tiles_of(num_samples) == max(fewest, for_threads)
