"""Scores of groups of samples, added up batch by batch."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.errors import HotsetError
from hotset.train.metrics.scores import Quality, ScoreCounter, Scores


def quality_of(
    logit_N: NDArray[np.float32],
    label_N: NDArray[np.float32],
    is_hot_N: NDArray[np.bool_],
    has_oov_N: NDArray[np.bool_],
    batch_size: int = 7,
) -> Quality:
    counter = ScoreCounter()
    for start in range(0, logit_N.size, batch_size):
        part = slice(start, start + batch_size)
        counter.add(logit_N[part], label_N[part], is_hot_N[part], has_oov_N[part])
    return counter.quality()


def test_scores_of_a_group_are_those_of_its_samples_alone(rng: np.random.Generator) -> None:
    logit_N = rng.normal(-1, 1, 200).astype(np.float32)
    label_N = (rng.random(200) < 0.3).astype(np.float32)
    is_hot_N, has_oov_N = rng.random(200) < 0.4, rng.random(200) < 0.2
    whole = quality_of(logit_N, label_N, is_hot_N, has_oov_N)
    for group, chosen in (("hot", is_hot_N), ("mixed", ~is_hot_N), ("oov", has_oov_N)):
        alone = quality_of(logit_N[chosen], label_N[chosen], is_hot_N[chosen], has_oov_N[chosen])
        found: Scores = getattr(whole, group)
        for name in ("auc", "pr_auc", "log_loss", "normalized_entropy", "calibration", "accuracy"):
            assert getattr(found, name) == pytest.approx(getattr(alone, name), rel=1e-12)
        assert found.num_samples == alone.num_samples == chosen.sum()


def test_calibration_is_the_mean_prediction_over_the_click_rate() -> None:
    logit_N = np.zeros(8, np.float32)
    label_N = np.array([1, 1, 0, 0, 0, 0, 0, 0], np.float32)
    none = np.zeros(8, np.bool_)
    quality = quality_of(logit_N, label_N, none, none)
    assert quality.calibration == 2.0 and quality.log_loss == pytest.approx(np.log(2))
    assert quality.accuracy == 0.75  # a logit of exactly 0 predicts no click
    assert quality.hot == quality.oov == Scores()


def test_without_clicks_only_some_scores_are_defined() -> None:
    none = np.zeros(3, np.bool_)
    quality = quality_of(np.ones(3, np.float32), np.zeros(3, np.float32), none, none)
    assert quality.auc is quality.pr_auc is quality.normalized_entropy is quality.calibration is None
    assert quality.log_loss is not None and quality.accuracy == 0.0


def test_a_prediction_that_is_no_number_is_refused() -> None:
    none = np.zeros(2, np.bool_)
    with pytest.raises(HotsetError, match="the weights have diverged"):
        ScoreCounter().add(np.array([0, np.nan], np.float32), np.zeros(2, np.float32), none, none)
