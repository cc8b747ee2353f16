"""Areas of weighted samples and of groups, against twins that add fractions; pairs sorted, against Python.

Summed losses, against slow, obvious twins.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.metrics import (
    GroupCounts,
    WeightedCounts,
    count_groups,
    count_weighted,
    losses,
    normalized_entropy,
    probabilities,
    sort_pairs,
    weighted_words,
    words_of_groups,
)

Floats = NDArray[np.float32]


def naive_auc(logit_N: Floats, label_N: Floats, weight_N: Floats) -> Fraction | None:
    samples = list(zip(logit_N.tolist(), label_N.tolist(), map(Fraction, weight_N.tolist()), strict=True))
    clicks = [(logit, weight) for logit, label, weight in samples if label]
    others = [(logit, weight) for logit, label, weight in samples if not label]
    pairs = sum((weight for _, weight in clicks), Fraction(0)) * sum(
        (weight for _, weight in others), Fraction(0)
    )
    won = sum(
        (
            weight * other_weight * (Fraction(logit > other) + Fraction(logit == other) / 2)
            for logit, weight in clicks
            for other, other_weight in others
        ),
        Fraction(0),
    )
    return won / pairs if pairs else None


def naive_average_precision(logit_N: Floats, label_N: Floats, weight_N: Floats) -> float:
    weight_N = weight_N.astype(np.float64)
    precisions = [
        (weight_N * label_N)[logit_N >= logit].sum() / weight_N[logit_N >= logit].sum()
        for logit in logit_N[label_N == 1]
    ]
    return float(np.average(precisions, weights=weight_N[label_N == 1])) if precisions else math.nan


def naive_gauc(logit_N: Floats, label_N: Floats, weight_N: Floats, group_N: NDArray[np.uint64]) -> float:
    areas: list[tuple[Fraction, Fraction]] = []
    for group in sorted(set(group_N.tolist())):
        own = group_N == group
        auc = naive_auc(logit_N[own], label_N[own], weight_N[own])
        if auc is not None:
            areas.append((auc, sum(map(Fraction, weight_N[own].tolist()), Fraction(0))))
    total = sum((weight for _, weight in areas), Fraction(0))
    return float(sum(auc * weight for auc, weight in areas) / total) if total else math.nan


def counted(
    logit_N: Floats,
    label_N: Floats,
    weight_N: Floats,
    is_hot_N: NDArray[np.bool_] | None = None,
    has_oov_N: NDArray[np.bool_] | None = None,
) -> WeightedCounts:
    none = np.zeros(logit_N.size, np.bool_)
    flags = (none if is_hot_N is None else is_hot_N, none if has_oov_N is None else has_oov_N)
    words_N2 = weighted_words(logit_N, label_N, weight_N, *flags)
    sort_pairs(words_N2)
    counts = WeightedCounts.none()
    count_weighted(words_N2, counts)
    return counts


def counted_groups(
    logit_N: Floats, label_N: Floats, weight_N: Floats, group_N: NDArray[np.uint64]
) -> GroupCounts:
    words_N2 = words_of_groups(logit_N, label_N, weight_N, group_N)
    sort_pairs(words_N2)
    counts = GroupCounts.none()
    count_groups(words_N2, counts)
    return counts


def gauc_of(logit_N: Floats, label_N: Floats, weight_N: Floats, group_N: NDArray[np.uint64]) -> float:
    return counted_groups(logit_N, label_N, weight_N, group_N).gauc()


LOGITS = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0])
WEIGHTS = st.floats(2**-20, 2**20, width=32) | st.sampled_from([1.0, 2.0, 1e-45, 3e38])
GROUP_NUMBERS = st.sampled_from([0, 1, 2, 2**64 - 1])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(LOGITS, st.booleans(), WEIGHTS, st.booleans(), st.booleans()), max_size=30))
def test_the_areas_of_all_groups_agree_with_their_twins(
    samples: list[tuple[float, bool, float, bool, bool]],
) -> None:
    columns = np.array(samples, np.float64).reshape(-1, 5)
    logit_N, label_N, weight_N = columns[:, :3].astype(np.float32).T
    weight_N = np.ascontiguousarray(weight_N)
    is_hot_N, has_oov_N = columns[:, 3] > 0, columns[:, 4] > 0
    counts = counted(logit_N, label_N, weight_N, is_hot_N, has_oov_N)
    for group, chosen in enumerate((np.ones_like(is_hot_N), is_hot_N, ~is_hot_N, has_oov_N)):
        own = (logit_N[chosen], label_N[chosen], weight_N[chosen])
        wanted = naive_auc(*own)
        if wanted is None:
            assert math.isnan(counts.auc(group))
        else:
            assert abs(Fraction(counts.auc(group)) - wanted) <= wanted / 2**53 + Fraction(
                len(samples), 2**102
            )
        found = counts.average_precision(group)
        assert found == pytest.approx(naive_average_precision(*own), rel=1e-12, nan_ok=True)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(LOGITS, st.booleans(), WEIGHTS, GROUP_NUMBERS), max_size=30))
def test_the_mean_auc_of_groups_agrees_with_its_twin(samples: list[tuple[float, bool, float, int]]) -> None:
    logit_N, label_N, weight_N = (
        np.array([sample[place] for sample in samples], np.float32) for place in range(3)
    )
    group_N = np.array([sample[3] for sample in samples], np.uint64)
    wanted = naive_gauc(logit_N, label_N, weight_N, group_N)
    found = counted_groups(logit_N, label_N, weight_N, group_N)
    assert found.gauc() == pytest.approx(wanted, abs=2**-52, nan_ok=True)
    labels = [label_N[group_N == number] for number in np.unique(group_N)]
    assert found.num_groups_1[0] == sum(0 < each.sum() < each.size for each in labels)


def test_the_areas_of_a_perfect_and_a_reversed_score() -> None:
    logit_N = np.array([-3, -1, 2, 5], np.float32)
    label_N = np.array([0, 0, 1, 1], np.float32)
    found, reversed_ = (counted(sign * logit_N, label_N, np.ones(4, np.float32)) for sign in (1, -1))
    assert (found.auc(0), reversed_.auc(0), found.average_precision(0)) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("label_N", [[], [1, 1], [0]])
def test_auc_is_undefined_without_both_classes(label_N: list[float]) -> None:
    label = np.array(label_N, np.float32)
    assert math.isnan(counted(np.zeros(label.size, np.float32), label, np.ones_like(label)).auc(0))


def test_equal_weights_give_the_nearest_float(rng: np.random.Generator) -> None:
    logit_N = rng.integers(-30, 30, 300).astype(np.float32)
    label_N = (rng.random(300) < 0.3).astype(np.float32)
    found = [counted(logit_N, label_N, np.full(300, weight, np.float32)) for weight in (1, 2, 2**-30)]
    wanted = naive_auc(logit_N, label_N, np.ones(300, np.float32))
    assert wanted is not None and {each.auc(0) for each in found} == {float(wanted)}
    # A factor that changes no mantissa changes no score.
    assert len({each.average_precision(0) for each in found}) == 1
    assert found[0].weights(0) == (label_N.sum(), 300)


def test_a_weight_of_two_is_the_sample_twice(rng: np.random.Generator) -> None:
    logit_N = rng.integers(-9, 9, 500).astype(np.float32)
    label_N = (rng.random(500) < 0.4).astype(np.float32)
    group_N = rng.integers(0, 50, 500, np.uint64)
    times_N = rng.integers(1, 5, 500)
    one_N = np.ones(times_N.sum(), np.float32)
    weighted = (logit_N, label_N, times_N.astype(np.float32))
    often = (np.repeat(logit_N, times_N), np.repeat(label_N, times_N), one_N)
    assert counted(*weighted).auc(0) == counted(*often).auc(0)
    assert gauc_of(*weighted, group_N) == gauc_of(*often, np.repeat(group_N, times_N))


def test_the_order_of_the_samples_changes_no_bit(rng: np.random.Generator) -> None:
    logit_N = rng.integers(-3, 3, 2000).astype(np.float32)
    label_N = (rng.random(2000) < 0.4).astype(np.float32)
    weight_N = rng.lognormal(0, 5, 2000).astype(np.float32)
    group_N = rng.integers(0, 2**64, 40, np.uint64)[rng.integers(0, 40, 2000)]
    found = set()
    for _ in range(3):
        order = rng.permutation(2000)
        own = (logit_N[order], label_N[order], weight_N[order])
        counts = counted(*own)
        found.add((counts.auc(0), counts.average_precision(0), gauc_of(*own, group_N[order])))
    assert len(found) == 1


def test_groups_of_one_class_are_left_out() -> None:
    logit_N = np.array([1, 2, 3, 4, 5], np.float32)
    label_N = np.array([1, 1, 0, 0, 1], np.float32)
    group_N = np.array([7, 7, 8, 9, 9], np.uint64)
    one_N = np.ones(5, np.float32)
    assert gauc_of(logit_N, label_N, one_N, group_N) == 1.0
    assert math.isnan(gauc_of(logit_N[:3], label_N[:3], one_N[:3], group_N[:3]))
    assert math.isnan(gauc_of(logit_N[:0], label_N[:0], one_N[:0], group_N[:0]))
    # Groups of four and of two samples with AUC 0.75 and 0: each counts by its samples.
    found = gauc_of(
        np.array([4, 2, 3, 1, 1, 2], np.float32),
        np.array([1, 1, 0, 0, 1, 0], np.float32),
        np.ones(6, np.float32),
        np.array([0, 0, 0, 0, 1, 1], np.uint64),
    )
    assert found == 0.5


def sorted_pairs(pairs_N2: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.array(sorted(map(tuple, pairs_N2.tolist())), np.uint64).reshape(-1, 2)


WORDS = st.integers(0, 3) | st.integers(0, 2**64 - 1) | st.sampled_from([2**63, 2**63 - 1])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS), max_size=80))
def test_pairs_are_sorted_as_tuples_are(pairs: list[tuple[int, int]]) -> None:
    pairs_N2 = np.array(pairs, np.uint64).reshape(-1, 2)
    wanted = sorted_pairs(pairs_N2)
    sort_pairs(pairs_N2)
    np.testing.assert_array_equal(pairs_N2, wanted)


def test_a_mapped_file_is_sorted_in_place(rng: np.random.Generator, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "words", np.uint64, "w+", shape=(400,))
    mapped[:] = rng.integers(0, 9, 400, np.uint64)
    pairs_N2 = np.asarray(mapped).reshape(-1, 2)
    wanted = sorted_pairs(pairs_N2)
    sort_pairs(pairs_N2)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "words", np.uint64).reshape(-1, 2), wanted)


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
