"""Predictions of the evaluation part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.stats.metrics import losses
from hotset.tests.support.shard_factory import write_shards
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.metrics.scores import Quality, Scores
from hotset.train.trainer import Trainer
from hotset.train.trainer_building.build_trainer import build_trainer


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return build_trainer(Shards.open(write_shards(tmp_path / "shards")), TrainConfig())


def test_every_evaluation_batch_is_predicted_in_log_order(trainer: Trainer) -> None:
    shards = trainer.shards
    found = list(trainer.predictor.logits())
    assert len(found) == shards.num_evaluation_batches and sum(logit_B.size for _, logit_B in found) == 90
    for number, (batch, logit_B) in enumerate(found):
        assert batch.label_B.equal(shards.evaluation_batch(number).label_B)
        assert logit_B.dtype == np.float32 and logit_B.shape == (batch.num_samples,)


def test_the_first_samples_are_cut_inside_a_batch(trainer: Trainer) -> None:
    logit_N = np.concatenate([logit_B for _, logit_B in trainer.predictor.logits()])
    label_N = np.concatenate([batch.label_B.numpy() for batch, _ in trainer.predictor.logits()])
    assert trainer.predictor.score(40).num_samples == 40
    assert trainer.predictor.mean_loss(40) == pytest.approx(losses(logit_N[:40], label_N[:40]).mean())


def test_hot_and_mixed_samples_are_scored_apart(trainer: Trainer) -> None:
    quality = trainer.predictor.score()
    hot, mixed = quality.hot, quality.mixed
    assert 0 < hot.num_samples < 90 and hot.num_samples + mixed.num_samples == quality.num_samples == 90
    assert hot.log_loss is not None and mixed.log_loss is not None
    mean = (hot.log_loss * hot.num_samples + mixed.log_loss * mixed.num_samples) / 90
    assert quality.log_loss == pytest.approx(mean)


@pytest.mark.parametrize("multi_hot", [(), (0,), (0, 2)])
def test_samples_with_an_out_of_vocabulary_lookup_are_scored_apart(
    multi_hot: tuple[int, ...], tmp_path: Path
) -> None:
    shards = Shards.open(
        write_shards(
            tmp_path / "shards", multi_hot=multi_hot, num_rows=(5, 9, 40), skew=1.1, num_hot=(5, 9, 20)
        )
    )
    oov = [4, 8, 39]
    wanted = 0
    for number in range(shards.num_evaluation_batches):
        batch = shards.evaluation_batch(number)
        one_hot = [table for table in range(3) if table not in multi_hot]
        for sample in range(batch.num_samples):
            lookups = [batch.ids_BF[sample, column] == oov[table] for column, table in enumerate(one_hot)]
            for bags, table in zip(batch.bags, multi_hot, strict=True):
                first, stop = bags.offsets_B1[sample : sample + 2]
                lookups += [found == oov[table] for found in bags.ids_N[first:stop]]
            wanted += any(lookups)
    found = build_trainer(shards, TrainConfig()).predictor.score().oov.num_samples
    assert 0 < wanted < 90 and found == wanted


def test_without_samples_no_score_is_defined(tmp_path: Path) -> None:
    empty = write_shards(tmp_path / "empty", num_evaluation=0)
    trainer = build_trainer(Shards.open(empty), TrainConfig())
    assert trainer.predictor.score() == Quality(hot=Scores(), mixed=Scores(), oov=Scores())
    assert trainer.predictor.mean_loss(100) is None


def test_predicting_is_counted_as_evaluation_and_changes_nothing(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    trainer = build_trainer(shards, TrainConfig(placement="hybrid"))
    before = trainer.embeddings.widths[0].executor.slow.weights_SD.clone()
    trainer.predictor.score()
    assert trainer.meter.bytes_to_fast["evaluation"] == 90 * 3 * 4 * 4
    assert trainer.meter.training_bytes() == (0, 0)
    assert trainer.embeddings.widths[0].executor.slow.weights_SD.equal(before)
