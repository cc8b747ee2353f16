"""AUC, log loss and accuracy against slow, obvious twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.analysis.metrics import accuracy, auc, log_loss


def naive_auc(logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> float:
    clicks = logit_N[label_N == 1].tolist()
    others = logit_N[label_N == 0].tolist()
    won = sum((click > other) + 0.5 * (click == other) for click in clicks for other in others)
    return float(won / (len(clicks) * len(others)))


@pytest.mark.parametrize("num_levels", [1, 2, 7, 1000])
def test_auc_agrees_with_counting_every_pair(num_levels: int, rng: np.random.Generator) -> None:
    logit_N = rng.integers(0, num_levels, 300).astype(np.float32)
    label_N = (rng.random(300) < 0.3).astype(np.float32)
    assert auc(logit_N, label_N) == naive_auc(logit_N, label_N)


def test_auc_of_a_perfect_and_a_reversed_score() -> None:
    logit_N = np.array([-3, -1, 2, 5], np.float32)
    label_N = np.array([0, 0, 1, 1], np.float32)
    assert auc(logit_N, label_N) == 1.0
    assert auc(-logit_N, label_N) == 0.0


@pytest.mark.parametrize("label_N", [[], [1, 1], [0]])
def test_auc_is_undefined_without_both_classes(label_N: list[float]) -> None:
    label = np.array(label_N, np.float32)
    assert math.isnan(auc(np.zeros(label.size, np.float32), label))


def test_log_loss_agrees_with_the_probability_form(rng: np.random.Generator) -> None:
    logit_N = rng.normal(0, 2, 100).astype(np.float32)
    label_N = (rng.random(100) < 0.5).astype(np.float32)
    chance = 1 / (1 + np.exp(-logit_N.astype(np.float64)))
    expected = -np.mean(label_N * np.log(chance) + (1 - label_N) * np.log(1 - chance))
    assert log_loss(logit_N, label_N) == pytest.approx(expected, rel=1e-12)


def test_log_loss_of_a_far_logit_is_finite() -> None:
    logit_N = np.array([500, -500], np.float32)
    label_N = np.array([0, 1], np.float32)
    assert log_loss(logit_N, label_N) == 500.0


def test_accuracy_counts_the_right_side_of_one_half() -> None:
    logit_N = np.array([-1, 0, 1, 1], np.float32)
    label_N = np.array([0, 0, 1, 0], np.float32)
    assert accuracy(logit_N, label_N) == 0.75


def test_without_samples_there_is_no_loss_and_no_accuracy() -> None:
    empty = np.empty(0, np.float32)
    assert math.isnan(log_loss(empty, empty)) and math.isnan(accuracy(empty, empty))
