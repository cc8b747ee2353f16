"""Optimizer steps on rows against slow, obvious twins, bit for bit, and against torch.

Tests `row_steps`, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.stats.ranking.row_bytes import OPTIMIZERS
from hotset.train.rows.row_optimizers import RowOptimizer
from hotset.train.rows.row_steps import TorchStep, step_with_numba
from hotset.train.rows.row_updates import (
    apply_adagrad,
    apply_adam,
    apply_momentum,
    apply_rowwise_adagrad,
    apply_sgd,
)

F32 = np.float32


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
    sizes, scales = optimizer.adam_step_sizes(0.5), optimizer.adam_root_scales
    assert sizes[1] == F32(0.5 / (1 - 0.9)) and scales[1] == F32(np.sqrt(1 - 0.999))
    assert sizes[-1] == F32(0.5) and scales[-1] == 1
    assert sizes.size < 200 and scales.size < 20_000
    # No rate sees a correction behind the end: its last entry is the rate itself.
    for rate in np.array([0.001, 1 / 3, 0.9999999, 1.0000001, 3e-7], F32).tolist():
        found = optimizer.adam_step_sizes(rate)
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
    for step in (step_with_numba, step_with_torch):
        found, wanted = (
            (np.ones((20, 6), F32), np.ones((20, optimizer.state_width(6)), F32)) for _ in range(2)
        )
        step(optimizer, *found, np.arange(20), sums.copy(), other.lr)
        step(other, *wanted, np.arange(20), sums.copy())
        np.testing.assert_array_equal(found[0], wanted[0])
        assert (found[0] != 1).any()


def step_with_torch(
    optimizer: RowOptimizer,
    weights: NDArray[np.float32],
    state: NDArray[np.float32],
    slots: NDArray[np.int64],
    sums: NDArray[np.float32],
    rate: float | None = None,
) -> None:
    """The step of the torch back end, after one at the optimizer's own rate on other rows."""
    step = TorchStep(optimizer, torch.device("cpu"))
    step(torch.ones(1, 6), torch.ones(1, state.shape[1]), torch.zeros(1, dtype=torch.int64), torch.ones(1, 6))
    weights_SD, state_SW, slots_U, sums_UD = map(torch.from_numpy, (weights, state, slots, sums))
    step(weights_SD, state_SW, slots_U, sums_UD, rate)
