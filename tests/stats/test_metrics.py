"""Scores from counted ranks and summed losses, against slow, obvious twins."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.metrics import (
    GROUPS,
    RankCounts,
    close_tie,
    count_sorted,
    losses,
    normalized_entropy,
    probabilities,
    score_words,
)


def naive_auc(logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> float:
    clicks = logit_N[label_N == 1].tolist()
    others = logit_N[label_N == 0].tolist()
    if not clicks or not others:
        return math.nan
    won = sum((click > other) + 0.5 * (click == other) for click in clicks for other in others)
    return float(won / (len(clicks) * len(others)))


def naive_average_precision(logit_N: NDArray[np.float32], label_N: NDArray[np.float32]) -> float:
    precisions = [label_N[logit_N >= logit].mean(dtype=float) for logit in logit_N[label_N == 1]]
    return float(np.mean(precisions)) if precisions else math.nan


def counted(
    logit_N: NDArray[np.float32],
    label_N: NDArray[np.float32],
    is_hot_N: NDArray[np.bool_] | None = None,
    has_oov_N: NDArray[np.bool_] | None = None,
) -> RankCounts:
    """The counts of samples."""
    none = np.zeros(logit_N.size, np.bool_)
    flags = (none if is_hot_N is None else is_hot_N, none if has_oov_N is None else has_oov_N)
    words_N = np.sort(score_words(logit_N, label_N, *flags))
    counts = RankCounts.none()
    count_sorted(words_N, counts)
    return counts


LOGITS = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(LOGITS, st.booleans(), st.booleans(), st.booleans())))
def test_the_areas_of_all_groups_agree_with_their_twins(
    samples: list[tuple[float, bool, bool, bool]],
) -> None:
    columns = np.array(samples, np.float64).reshape(-1, 4)
    logit_N, label_N = columns[:, 0].astype(np.float32), columns[:, 1].astype(np.float32)
    is_hot_N, has_oov_N = columns[:, 2] > 0, columns[:, 3] > 0
    counts = counted(logit_N, label_N, is_hot_N, has_oov_N)
    chosen = (np.ones_like(is_hot_N), is_hot_N, ~is_hot_N, has_oov_N)
    for group, is_in_N in enumerate(chosen):
        logits, labels = logit_N[is_in_N], label_N[is_in_N]
        assert counts.counts_G3[group, :2].tolist() == [labels.sum(), labels.size], GROUPS[group]
        np.testing.assert_equal(counts.auc(group), naive_auc(logits, labels))
        found = counts.average_precision(group)
        assert found == pytest.approx(naive_average_precision(logits, labels), rel=1e-13, nan_ok=True)


def test_the_areas_of_a_perfect_and_a_reversed_score() -> None:
    logit_N = np.array([-3, -1, 2, 5], np.float32)
    label_N = np.array([0, 0, 1, 1], np.float32)
    assert (counted(logit_N, label_N).auc(0), counted(-logit_N, label_N).auc(0)) == (1.0, 0.0)
    assert counted(logit_N, label_N).average_precision(0) == 1.0


@pytest.mark.parametrize("label_N", [[], [1, 1], [0]])
def test_auc_is_undefined_without_both_classes(label_N: list[float]) -> None:
    label = np.array(label_N, np.float32)
    assert math.isnan(counted(np.zeros(label.size, np.float32), label).auc(0))


def test_pairs_of_as_many_samples_as_are_allowed_do_not_overflow() -> None:
    counts = RankCounts.none()
    for flags in (0, 1):  # first 2**31 samples without a click, then as many clicks, all below them
        tie_8 = np.zeros(8, np.int64)
        tie_8[flags] = 2**31 - flags
        close_tie(tie_8, counts)
    assert counts.auc(0) == 0.0 and counts.counts_G3[0, 2] > 0


def test_losses_agree_with_the_probability_form(rng: np.random.Generator) -> None:
    logit_N = rng.normal(0, 2, 100).astype(np.float32)
    label_N = (rng.random(100) < 0.5).astype(np.float32)
    chance = 1 / (1 + np.exp(-logit_N.astype(np.float64)))
    np.testing.assert_allclose(probabilities(logit_N), chance, rtol=1e-14)
    expected = -(label_N * np.log(chance) + (1 - label_N) * np.log(1 - chance))
    np.testing.assert_allclose(losses(logit_N, label_N), expected, rtol=1e-12)


def test_a_far_logit_has_a_finite_loss_and_a_probability() -> None:
    logit_N = np.array([5000, -5000], np.float32)
    label_N = np.array([0, 1], np.float32)
    assert losses(logit_N, label_N).tolist() == [5000.0, 5000.0]
    assert probabilities(logit_N).tolist() == [1.0, 0.0]


def test_always_predicting_the_click_rate_has_a_normalized_entropy_of_one() -> None:
    rate = 0.2
    logit_N = np.full(10, math.log(rate / (1 - rate)), np.float32)
    label_N = np.array([1, 1] + [0] * 8, np.float32)
    assert normalized_entropy(float(losses(logit_N, label_N).mean()), rate) == pytest.approx(1, abs=1e-7)
    assert math.isnan(normalized_entropy(0.1, 0)) and math.isnan(normalized_entropy(0.1, 1))
