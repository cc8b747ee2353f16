"""Predictions of the evaluation part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.stats.analysis.metrics import log_loss
from hotset.tests.support.shard_factory import write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.predict import Scores
from hotset.train.trainer import Trainer, build_trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return build_trainer(Shards.open(write_shards(tmp_path / "shards")), TrainConfig())


def test_every_evaluation_sample_is_predicted_in_log_order(trainer: Trainer) -> None:
    predictions = trainer.predictor.predict()
    shards = trainer.shards
    batches = [shards.evaluation_batch(number) for number in range(shards.num_evaluation_batches)]
    np.testing.assert_array_equal(predictions.label_N, np.concatenate([batch.label_B for batch in batches]))
    assert predictions.logit_N.size == 90 and predictions.is_hot_N.dtype == np.bool_


def test_the_first_samples_are_cut_inside_a_batch(trainer: Trainer) -> None:
    whole, part = trainer.predictor.predict(), trainer.predictor.predict(40)
    np.testing.assert_array_equal(part.logit_N, whole.logit_N[:40])
    assert part.is_hot_N.size == part.label_N.size == 40
    assert trainer.predictor.mean_loss(40) == log_loss(part.logit_N, part.label_N)


def test_hot_and_mixed_samples_are_scored_apart(trainer: Trainer) -> None:
    predictions = trainer.predictor.predict()
    hot, mixed = predictions.scores_of(hot=True), predictions.scores_of(hot=False)
    assert (
        0 < hot.num_samples < 90
        and hot.num_samples + mixed.num_samples == predictions.scores.num_samples == 90
    )
    assert hot.log_loss is not None and mixed.log_loss is not None and predictions.scores.log_loss is not None
    mean = (hot.log_loss * hot.num_samples + mixed.log_loss * mixed.num_samples) / 90
    assert predictions.scores.log_loss == pytest.approx(mean)


def test_without_samples_no_score_is_defined(tmp_path: Path) -> None:
    empty = write_shards(tmp_path / "empty", num_evaluation=0)
    trainer = build_trainer(Shards.open(empty), TrainConfig())
    assert trainer.predictor.predict().scores == Scores(None, None, None, 0)
    assert trainer.predictor.mean_loss(100) is None


def test_predicting_is_counted_as_evaluation_and_changes_nothing(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    trainer = build_trainer(shards, TrainConfig(placement="hybrid"))
    before = trainer.embeddings.widths[0].executor.slow.weights_SD.clone()
    trainer.predictor.predict()
    assert trainer.meter.bytes_to_fast["evaluation"] == 90 * 3 * 4 * 4
    assert trainer.meter.training_bytes() == (0, 0)
    assert trainer.embeddings.widths[0].executor.slow.weights_SD.equal(before)
