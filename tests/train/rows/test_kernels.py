"""Row kernels against slow, obvious twins, bit for bit.

Optimizer steps on rows against slow, obvious twins, bit for bit, and against torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.stats.batch_rows import LookupsByRow, group_lookups, of_matrix
from hotset.stats.id_tables import mix64_pair
from hotset.stats.row_bytes import OPTIMIZERS
from hotset.tests.support.compiled import compiled_only
from hotset.train.rows.backends import RowOptimizer, step_with_numba, step_with_torch
from hotset.train.rows.kernels import (
    BLOCK_SAMPLES,
    apply_adagrad,
    apply_adam,
    apply_momentum,
    apply_rowwise_adagrad,
    apply_sgd,
    copy_rows,
    fill_initial_rows,
    look_up,
    num_levels,
    pool_bags,
    sum_gradients,
)

F32 = np.float32


def initial(stream: int, first_id: int, num_rows: int, dim: int = 4) -> NDArray[np.float32]:
    weights = np.empty((num_rows, dim), F32)
    streams, bounds = np.full(num_rows, stream, np.uint64), np.full(num_rows, 0.25, F32)
    fill_initial_rows(streams, first_id + np.arange(num_rows), bounds, weights, np.arange(num_rows))
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


@compiled_only
def test_initial_values_are_uniform_and_symmetric() -> None:
    values = initial(2, 0, 20_000).ravel() / 0.25
    assert np.all(np.abs(values) < 1) and np.all(values != 0)
    assert abs(values.mean()) < 4 * np.sqrt(1 / 3 / values.size)
    assert abs(values.var() - 1 / 3) < 0.01
    assert np.unique(values).size > 0.99 * values.size


def by_row(rows: NDArray[np.int64], positions: NDArray[np.int64]) -> LookupsByRow:
    """Lookups of one table's rows at these positions, ascending."""
    found = group_lookups(of_matrix(rows.astype(np.int32), np.array([1000], np.int64)))
    return found._replace(order_N=positions[found.order_N].astype(np.int32))


WIDTHS = [1, 3, 16, 37]
"""Narrower than what is moved at a time, as wide, and wider by a part."""


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_go_to_the_positions_of_their_lookups(width: int, rng: np.random.Generator) -> None:
    weights = rng.normal(size=(10, width)).astype(F32)
    vectors = np.full((6, width), -1, F32)
    lookups = by_row(np.array([2, 2, 7, 8]), np.array([0, 2, 3, 5]))
    # Rows 2, 7 and 8 are in slot 4, left out, and in slot 9.
    look_up(weights, lookups, np.array([4, -1, 9]), 0, 3, vectors)
    np.testing.assert_array_equal(vectors[[0, 2, 5]], weights[[4, 4, 9]])
    assert np.all(vectors[[1, 3, 4]] == -1)
    part = np.full((6, width), -1, F32)
    look_up(weights, lookups, np.array([4, -1, 9]), 1, 3, part)
    np.testing.assert_array_equal(part[5], weights[9])
    assert np.all(part[:5] == -1)


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
    copy_rows(source, np.array([8, 0, -1, 3]), target, np.array([1, 5, 4, 2]))
    np.testing.assert_array_equal(target[[1, 5, 2]], source[[8, 0, 3]])
    assert not target[[0, 3, 4]].any()


def summed(
    grad: NDArray[np.float32],
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
    features: int,
    share_samples: tuple[int, ...] = (),
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Distinct rows and their sums; each row's slot is its id, and those of odd rows are summed apart."""
    lookups = by_row(rows, positions)
    distinct = lookups.rows_U.astype(np.int64)
    ends = np.array(share_samples, np.int64) * features if share_samples else np.array([grad.shape[0]])
    levels = num_levels(ends.size)
    sums = np.full((distinct.size, grad.shape[1]), np.nan, F32)
    for kept in (0, 1):
        slots = np.where(distinct % 2 == kept, distinct, -1)
        found, of_part, shares = (
            np.empty(distinct.size, np.int64),
            np.full((distinct.size + levels, grad.shape[1]), np.nan, F32),
            np.empty(levels, np.int64),
        )
        block = BLOCK_SAMPLES * features
        # In two ranges, of which the second begins again at the front.
        half = distinct.size // 2
        for first, last in ((0, half), (half, distinct.size)):
            count = sum_gradients(grad, lookups, slots, block, ends, first, last, of_part, found, shares)
            assert found[:count].tolist() == slots[first:last][slots[first:last] >= 0].tolist()
            sums[np.searchsorted(distinct, found[:count])] = of_part[:count]
    return distinct, sums


def naive_sum(
    grad: NDArray[np.float32],
    rows: NDArray[np.int64],
    positions: NDArray[np.int64],
    features: int,
    share_samples: tuple[int, ...] = (),
) -> dict[int, NDArray[np.float32]]:
    """Blocks of a share, then its blocks, then the shares that have the row by a recursive tree."""
    ends = share_samples or (grad.shape[0],)
    starts = (0, *ends)
    blocks: dict[int, dict[tuple[int, int], NDArray[np.float32]]] = {}
    for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
        of_row = blocks.setdefault(row, {})
        share = next(number for number, end in enumerate(ends) if position // features < end)
        block = share, (position // features - starts[share]) // 128
        of_row[block] = of_row[block] + grad[position] if block in of_row else grad[position]
    totals = {}
    for row, of_row in blocks.items():
        of_shares: dict[int, NDArray[np.float32]] = {}
        for (share, _), block_sum in of_row.items():
            of_shares[share] = of_shares.get(share, np.zeros(grad.shape[1], F32)) + block_sum
        total = naive_tree(of_shares, 0, 1 << (len(ends) - 1).bit_length())
        assert total is not None
        totals[row] = total
    return totals


def naive_tree(parts: dict[int, NDArray[np.float32]], first: int, count: int) -> NDArray[np.float32] | None:
    """The sum of the parts from ``first`` on; None where there is none."""
    if count == 1:
        return parts.get(first)
    left = naive_tree(parts, first, count // 2)
    right = naive_tree(parts, first + count // 2, count // 2)
    return right if left is None else left if right is None else left + right


@pytest.mark.parametrize(
    "share_samples", [(350, 700), (100, 200, 300, 400, 500, 600, 700), (1, 130, 690, 700)]
)
@pytest.mark.parametrize("num_rows", [2, 300])
def test_gradients_of_shares_are_added_by_the_tree(
    share_samples: tuple[int, ...], num_rows: int, rng: np.random.Generator
) -> None:
    positions = np.flatnonzero(rng.random(700 * 3) < 0.4)
    rows = rng.zipf(1.3, positions.size) % num_rows
    grad = rng.normal(size=(2100, 19)).astype(F32)
    distinct, sums = summed(grad, rows, positions, 3, share_samples)
    expected = naive_sum(grad, rows, positions, 3, share_samples)
    for row, total in zip(distinct.tolist(), sums, strict=True):
        np.testing.assert_array_equal(total, expected[row])
    # The order matters: a batch of one share has other bits.
    _, whole = summed(grad, rows, positions, 3)
    assert not np.array_equal(sums, whole)


@pytest.mark.parametrize(("num_samples", "features"), [(0, 2), (1, 1), (127, 1), (129, 3), (700, 5)])
@pytest.mark.parametrize("num_rows", [1, 3, 1000])
@pytest.mark.parametrize("width", [3, 37])
def test_gradients_are_summed_in_blocks_of_samples(
    num_samples: int, features: int, num_rows: int, width: int, rng: np.random.Generator
) -> None:
    positions = np.arange(num_samples * features)
    rows = rng.integers(0, num_rows, positions.size)
    grad = rng.normal(size=(positions.size, width)).astype(F32)
    distinct, sums = summed(grad, rows, positions, features)
    expected = naive_sum(grad, rows, positions, features)
    assert distinct.tolist() == sorted(expected)
    for row, total in zip(distinct.tolist(), sums, strict=True):
        np.testing.assert_array_equal(total, expected[row])


def test_a_gradient_of_minus_zero_becomes_zero_as_in_every_sum() -> None:
    grad = np.full((3, 18), -0.0, F32)
    _, sums = summed(grad, np.array([4, 5, 5]), np.arange(3), features=1)
    assert not np.signbit(sums).any()


def test_the_error_of_a_long_sum_is_within_its_bound(rng: np.random.Generator) -> None:
    grad = rng.random((20_000, 2)).astype(F32)
    rows, positions = np.zeros(20_000, np.int64), np.arange(20_000)
    _, sums = summed(grad, rows, positions, features=1)
    exact = grad.astype(np.float64).sum(axis=0)
    bound = (128 + 20_000 / 128) * 2.0**-24
    assert np.all(np.abs(sums[0] - exact) <= bound * exact)


@pytest.fixture
def rows_and_sums(rng: np.random.Generator) -> tuple[NDArray[np.float32], ...]:
    """Weights and positive state of 20 rows, and gradients of three of them."""
    weights, state, sums = (rng.normal(size=shape).astype(F32) for shape in ((20, 6), (20, 6), (3, 6)))
    return weights, np.abs(state), sums


SLOTS = np.array([7, 0, 19])


@pytest.mark.parametrize("width", [6, 16, 37])
def test_sgd_steps_down_the_gradient(width: int, rng: np.random.Generator) -> None:
    weights, sums = rng.normal(size=(20, width)).astype(F32), rng.normal(size=(3, width)).astype(F32)
    expected = weights.copy()
    expected[SLOTS] = weights[SLOTS] - F32(0.1) * sums
    apply_sgd(weights, SLOTS, sums, F32(0.1))
    np.testing.assert_array_equal(weights, expected)


def test_adagrad_divides_by_the_root_of_the_squares(rows_and_sums: tuple[NDArray[np.float32], ...]) -> None:
    weights, state, sums = rows_and_sums
    squares, expected = state.copy(), weights.copy()
    squares[SLOTS] = state[SLOTS] + sums * sums
    expected[SLOTS] = weights[SLOTS] - F32(0.1) * sums / (np.sqrt(squares[SLOTS]) + F32(1e-10))
    apply_adagrad(weights, state, SLOTS, sums, F32(0.1), F32(1e-10))
    np.testing.assert_array_equal(state, squares)
    np.testing.assert_array_equal(weights, expected)


def test_rowwise_adagrad_keeps_the_mean_square(rows_and_sums: tuple[NDArray[np.float32], ...]) -> None:
    weights, full_state, sums = rows_and_sums
    state, expected = full_state[:, :1].copy(), weights.copy()
    before = state.copy()
    square = sums * sums
    low = square[:, [0, 1, 2, 3]] + np.pad(square[:, [4, 5]], ((0, 0), (0, 2)))
    mean = ((low[:, 0] + low[:, 2]) + (low[:, 1] + low[:, 3])) / F32(6)
    apply_rowwise_adagrad(weights, state, SLOTS, sums, F32(0.1), F32(1e-10), np.empty(8, F32))
    np.testing.assert_array_equal(state[SLOTS, 0], before[SLOTS, 0] + mean)
    root = np.sqrt(state[SLOTS]) + F32(1e-10)
    expected[SLOTS] = expected[SLOTS] - F32(0.1) * sums / root
    np.testing.assert_array_equal(weights, expected)


def test_momentum_keeps_a_share_of_the_last_step(rows_and_sums: tuple[NDArray[np.float32], ...]) -> None:
    weights, state, sums = rows_and_sums
    velocity, expected = state.copy(), weights.copy()
    velocity[SLOTS] = F32(0.9) * state[SLOTS] + sums
    expected[SLOTS] = weights[SLOTS] - F32(0.1) * velocity[SLOTS]
    apply_momentum(weights, state, SLOTS, sums, F32(0.1), F32(0.9))
    np.testing.assert_array_equal(state, velocity)
    np.testing.assert_array_equal(weights, expected)


def test_adam_corrects_by_the_steps_of_each_row(rows_and_sums: tuple[NDArray[np.float32], ...]) -> None:
    weights, moments, sums = rows_and_sums
    state = np.concatenate([moments, moments + 1, np.zeros((20, 1), F32)], axis=1)
    state[SLOTS, 12] = [0, 4, 10**6]
    expected, before = weights.copy(), state.copy()
    sizes, scales = np.array([9, 3, 2, 1.5], F32), np.array([9, 0.1, 0.2, 0.3], F32)
    for slot, gradient, entry in zip(SLOTS, sums, [1, 3, 3], strict=True):
        mean = F32(0.9) * before[slot, :6] + F32(0.1) * gradient
        square = F32(0.99) * before[slot, 6:12] + F32(0.01) * (gradient * gradient)
        root = np.sqrt(square) / scales[entry] + F32(1e-8)
        expected[slot] = weights[slot] - sizes[entry] * mean / root
        before[slot] = np.concatenate([mean, square, [before[slot, 12] + 1]])
    keep, take = np.array([0.9, 0.99], F32), np.array([0.1, 0.01], F32)
    apply_adam(weights, state, SLOTS, sums, keep, take, sizes, scales, F32(1e-8))
    np.testing.assert_array_equal(state, before)
    np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("sgd", lambda rows: torch.optim.SGD(rows, lr=0.1)),
        ("momentum", lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9)),
        ("adagrad", lambda rows: torch.optim.Adagrad(rows, lr=0.1)),
        ("adam", lambda rows: torch.optim.Adam(rows, lr=0.1)),
    ],
)
def test_a_row_seen_at_each_step_moves_as_torch_moves_it(
    name: str, make: Any, rng: np.random.Generator
) -> None:
    optimizer = RowOptimizer(name, 0.1)
    weights = rng.normal(size=(3, 4)).astype(F32)
    state = np.zeros((3, optimizer.state_width(4)), F32)
    parameter = torch.nn.Parameter(torch.from_numpy(weights.copy()))
    other = make([parameter])
    for _ in range(50):
        gradient = rng.normal(size=(3, 4)).astype(F32)
        step_with_numba(optimizer, weights, state, np.arange(3), gradient)
        parameter.grad = torch.from_numpy(gradient)
        other.step()
    np.testing.assert_allclose(weights, parameter.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_the_corrections_of_adam_end_where_float32_sees_none() -> None:
    optimizer = RowOptimizer("adam", 0.5)
    sizes, scales = optimizer.step_rates(0.5), optimizer.root_scales
    assert sizes[1] == F32(0.5 / (1 - 0.9)) and scales[1] == F32(np.sqrt(1 - 0.999))
    assert sizes[-1] == F32(0.5) and scales[-1] == 1
    assert sizes.size < 200 and scales.size < 20_000
    # No rate sees a correction behind the end: its last entry is the rate itself.
    for rate in np.array([0.001, 1 / 3, 0.9999999, 1.0000001, 3e-7], F32).tolist():
        found = optimizer.step_rates(rate)
        assert found[-1] == F32(rate) == F32(rate / (1 - 0.9 ** float(sizes.size)))


def test_decay_adds_a_share_of_the_weights_to_their_gradients(
    rows_and_sums: tuple[NDArray[np.float32], ...],
) -> None:
    weights, _, sums = rows_and_sums
    before, gradients = weights.copy(), sums.copy()
    step_with_numba(RowOptimizer("sgd", 0.1, decay=0.3), weights, np.empty((20, 0), F32), SLOTS, sums)
    before[SLOTS] -= F32(0.1) * (gradients + F32(0.3) * before[SLOTS])
    np.testing.assert_array_equal(weights, before)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_at_another_rate_is_that_of_an_optimizer_of_this_rate(
    name: str, rng: np.random.Generator
) -> None:
    optimizer, other = RowOptimizer(name, 0.5), RowOptimizer(name, 0.07)
    sums = rng.normal(size=(20, 6)).astype(F32)
    for step in (step_with_numba, torch_step):
        found, wanted = (
            (np.ones((20, 6), F32), np.ones((20, optimizer.state_width(6)), F32)) for _ in range(2)
        )
        step(optimizer, *found, np.arange(20), sums.copy(), other.lr)
        step(other, *wanted, np.arange(20), sums.copy())
        np.testing.assert_array_equal(found[0], wanted[0])
        assert (found[0] != 1).any()


def torch_step(
    optimizer: RowOptimizer,
    weights: NDArray[np.float32],
    state: NDArray[np.float32],
    slots: NDArray[np.int64],
    sums: NDArray[np.float32],
    rate: float | None = None,
) -> None:
    rates = optimizer.step_rates(optimizer.lr if rate is None else rate)
    step_with_torch(
        optimizer, *map(torch.from_numpy, (weights, state, slots, sums, rates, optimizer.root_scales))
    )
