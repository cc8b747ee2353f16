"""Row kernels against slow, obvious twins, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.batches.distinct_rows import find_distinct
from hotset.stats.hashing import mix64_pair
from hotset.train.rows.row_kernels import (
    BLOCK_SAMPLES,
    copy_rows,
    fill_initial,
    fill_initial_rows,
    look_up,
    pool_bags,
    sum_gradients,
)

F32 = np.float32


def initial(stream: int, first_id: int, num_rows: int, dim: int = 4) -> NDArray[np.float32]:
    weights = np.empty((num_rows, dim), F32)
    fill_initial(np.uint64(stream), first_id, F32(0.25), weights)
    return weights


def test_initial_values_are_what_the_hash_says() -> None:
    found = initial(9, 3, 2)
    for row in range(2):
        row_stream = np.uint64(mix64_pair(np.uint64(9), np.uint64(3 + row)))
        for column in range(4):
            bits = int(mix64_pair(row_stream, np.uint64(column))) >> 40
            assert found[row, column] == F32((2 * bits + 1 - 2**24) / 2**24 * 0.25)


def test_initial_values_of_a_part_are_those_of_the_whole() -> None:
    whole = initial(1, 0, 50)
    np.testing.assert_array_equal(initial(1, 20, 10), whole[20:30])
    np.testing.assert_array_equal(initial(1, 0, 50, dim=2), whole[:, :2])


def test_initial_values_are_uniform_and_symmetric() -> None:
    values = initial(2, 0, 20_000).ravel() / 0.25
    assert np.all(np.abs(values) < 1) and np.all(values != 0)
    assert abs(values.mean()) < 4 * np.sqrt(1 / 3 / values.size)
    assert abs(values.var() - 1 / 3) < 0.01
    assert np.unique(values).size > 0.99 * values.size


def test_rows_go_to_their_positions(rng: np.random.Generator) -> None:
    weights = rng.normal(size=(10, 3)).astype(F32)
    vectors = np.full((6, 3), -1, F32)
    look_up(weights, np.array([4, 4, 9]), np.array([0, 2, 5]), vectors)
    np.testing.assert_array_equal(vectors[[0, 2, 5]], weights[[4, 4, 9]])
    assert np.all(vectors[[1, 3, 4]] == -1)


def test_a_bag_is_summed_in_the_order_of_its_lookups(rng: np.random.Generator) -> None:
    vectors = rng.normal(size=(40, 3)).astype(F32)
    bags = np.sort(rng.integers(0, 12, 40))
    pooled = np.full((13, 3), np.nan, F32)
    pool_bags(vectors, bags, pooled)
    expected = np.zeros((13, 3), F32)
    for vector, bag in zip(vectors, bags, strict=True):
        expected[bag] = expected[bag] + vector
    np.testing.assert_array_equal(pooled, expected)


def test_rows_are_copied_and_no_others(rng: np.random.Generator) -> None:
    source, target = rng.normal(size=(9, 2)).astype(F32), np.zeros((6, 2), F32)
    copy_rows(source, np.array([8, 0, 3]), target, np.array([1, 5, 2]))
    np.testing.assert_array_equal(target[[1, 5, 2]], source[[8, 0, 3]])
    assert not target[[0, 3, 4]].any()


def test_single_rows_start_as_their_table_does() -> None:
    rows = np.empty((4, 4), F32)
    streams, ids = np.array([1, 2, 1], np.uint64), np.array([7, 0, 30])
    fill_initial_rows(streams, ids, np.full(3, 0.25, F32), rows, np.array([3, 0, 1]))
    np.testing.assert_array_equal(
        rows[[3, 0, 1]], np.concatenate([initial(1, 7, 1), initial(2, 0, 1), initial(1, 30, 1)])
    )


def summed(
    grad: NDArray[np.float32], rows: NDArray[np.int64], positions: NDArray[np.int64], features: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    distinct, inverse = find_distinct(rows)
    sums, partial = np.full((2, distinct.size, grad.shape[1]), np.nan, F32)
    blocks = np.empty(distinct.size, np.int64)
    sum_gradients(grad, positions, inverse, BLOCK_SAMPLES * features, partial, blocks, sums)
    return distinct, sums


def naive_sum(
    grad: NDArray[np.float32], rows: NDArray[np.int64], positions: NDArray[np.int64], features: int
) -> dict[int, NDArray[np.float32]]:
    blocks: dict[int, dict[int, NDArray[np.float32]]] = {}
    for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
        of_row = blocks.setdefault(row, {})
        block = position // features // 128
        of_row[block] = of_row[block] + grad[position] if block in of_row else grad[position]
    totals = {}
    for row, of_row in blocks.items():
        total = np.zeros(grad.shape[1], F32)
        for block_sum in of_row.values():
            total = total + block_sum
        totals[row] = total
    return totals


@pytest.mark.parametrize(("num_samples", "features"), [(0, 2), (1, 1), (127, 1), (129, 3), (700, 5)])
@pytest.mark.parametrize("num_rows", [1, 3, 1000])
def test_gradients_are_summed_in_blocks_of_samples(
    num_samples: int, features: int, num_rows: int, rng: np.random.Generator
) -> None:
    positions = np.arange(num_samples * features)
    rows = rng.integers(0, num_rows, positions.size)
    grad = rng.normal(size=(positions.size, 3)).astype(F32)
    distinct, sums = summed(grad, rows, positions, features)
    expected = naive_sum(grad, rows, positions, features)
    assert distinct.tolist() == list(expected)
    for row, total in zip(distinct.tolist(), sums, strict=True):
        np.testing.assert_array_equal(total, expected[row])


def test_a_part_of_the_positions_keeps_its_blocks(rng: np.random.Generator) -> None:
    positions = np.flatnonzero(rng.random(900) < 0.3)
    rows = rng.integers(0, 4, positions.size)
    grad = rng.normal(size=(900, 2)).astype(F32)
    distinct, sums = summed(grad, rows, positions, features=3)
    expected = naive_sum(grad, rows, positions, features=3)
    for row, total in zip(distinct.tolist(), sums, strict=True):
        np.testing.assert_array_equal(total, expected[row])


def test_the_error_of_a_long_sum_is_within_its_bound(rng: np.random.Generator) -> None:
    grad = rng.random((20_000, 2)).astype(F32)
    rows, positions = np.zeros(20_000, np.int64), np.arange(20_000)
    _, sums = summed(grad, rows, positions, features=1)
    exact = grad.astype(np.float64).sum(axis=0)
    bound = (128 + 20_000 / 128) * 2.0**-24
    assert np.all(np.abs(sums[0] - exact) <= bound * exact)
