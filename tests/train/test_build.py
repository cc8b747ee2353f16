"""Trainers are built of what fits, with a warning of what is larger than it was counted.

Optimizers of the dense layers: each parameter has one, and steps as with torch's own. On logs with weights
and several labels, bits depend neither on the placement nor on threads and ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError, ShardError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.tests.support.trained_models import TIGHT, assert_equal_bits, assert_placements_agree, trained
from hotset.train.build import build_dense_optimizers, build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.batch import Batch, MicroBatches
from hotset.train.data.shards import ShardSet
from hotset.train.evaluate import Predictor
from hotset.train.loop import run_steps
from hotset.train.metrics import Quality
from hotset.train.model.dense_step import TiledStep
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.shapes import dlrm_shape
from hotset.train.ranks.ranks import Ranks
from hotset.train.threads import WorkThreads


def test_too_large_hot_rows_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    build_trainer(shards, TrainConfig(placement="fae", embedding_optimizer="adagrad"))
    assert "the hot rows take 1.1 KiB with adagrad" in caplog.text and "560 B with sgd" in caplog.text


def test_hot_rows_as_the_shards_counted_them_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", embedding_optimizer="adam"))
    trainer = build_trainer(shards, TrainConfig(placement="fae"))
    assert trainer.config.optimizers(shards.embedding_optimizer).embedding_optimizer == "adam"
    assert caplog.text == ""


def test_shards_without_training_batches_are_refused(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", num_hot_only=0, num_mixed=0))
    with pytest.raises(ShardError, match="no training batch"):
        build_trainer(shards, TrainConfig())


@pytest.mark.parametrize("num_threads", [1, 2, 64])
def test_each_parameter_has_one_optimizer(num_threads: int) -> None:
    model = Dlrm(dlrm_shape("kaggle", 13, 26, 16), 0)
    optimizers = build_dense_optimizers(model, TrainConfig().optimizers("sgd"), num_threads, is_tiled=True)
    parts = [[p for group in each.param_groups for p in group["params"]] for each in optimizers]
    assert sorted(id(p) for part in parts for p in part) == sorted(id(p) for p in model.parameters())
    sizes = [sum(p.numel() for p in part) for part in parts]
    largest = max(p.numel() for p in model.parameters())
    assert len(parts) == min(num_threads, 4) and max(sizes) <= max(largest, 1.2 * sum(sizes) / len(sizes))


def test_adam_takes_the_steps_of_torchs_own_however_a_layer_is_stored() -> None:
    shape = dlrm_shape("small", 3, 4, 5)
    models = [Dlrm(shape, 0), Dlrm(shape, 0)]
    step = TiledStep(models[0], MicroBatches(8), WorkThreads(1))
    (optimizer,) = build_dense_optimizers(models[0], TrainConfig().optimizers("sgd"), 1, is_tiled=True)
    assert optimizer.defaults["fused"]
    plain = torch.optim.Adam(models[1].parameters(), lr=optimizer.defaults["lr"])
    embeddings = [torch.randn(8, 4, 5, generator=torch.Generator().manual_seed(1))]
    batch = Batch(torch.ones(8), torch.ones(8, 3), np.zeros((8, 4), np.int32), None, is_hot_only=False)
    for _ in range(3):
        step.train(batch, embeddings)
        for own, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert own.grad is not None
            other.grad = own.grad.contiguous()
        optimizer.step()
        plain.step()
    for own, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-7)


FIELDS: dict[str, Any] = {"embedding_optimizer": "adagrad", "staging_bytes": 2_000, "prefetch": 3}
LABELED = replace(TIGHT, labels=("click", "buy"), has_weight=True, num_evaluation=40)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> ShardSet:
    return ShardSet.open(write_shards(tmp_path_factory.mktemp("labeled") / "shards", LABELED))


@pytest.mark.parametrize("model", ["small", "dcnv2"])
def test_placements_end_with_equal_bits(model: str, shards: ShardSet) -> None:
    all_fast = assert_placements_agree(shards, model=model, **FIELDS)
    # Labels and loss weights matter.
    for loss_weights in ("buy=0.5", "buy=0"):
        other = trained(shards, placement="all-fast", model=model, loss_weights=loss_weights, **FIELDS)
        with pytest.raises(AssertionError):
            assert_equal_bits(other, all_fast)


def test_histories_and_means_have_weights_and_labels(tmp_path: Path) -> None:
    spec = replace(LABELED, num_rows=(300, 400), multi_hot=(0, 1), equal_lengths=True)
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    tbsm = {"model": "tbsm", "model_args": '{"history_length": 5}'}
    fields: dict[str, Any]
    for fields in (tbsm, {"pooling": "mean"}, {"batch_norm": True, "dropout": 0.2}):
        all_fast = trained(shards, placement="all-fast", **fields, **FIELDS)
        assert all_fast.model.num_logits == 2
        assert_equal_bits(trained(shards, placement="lookahead", **fields, **FIELDS), all_fast)
        with pytest.raises(AssertionError):
            other = trained(shards, placement="all-fast", loss_weights="buy=0.5", **fields, **FIELDS)
            assert_equal_bits(other, all_fast)


def test_several_logits_in_bf16_are_near_those_in_fp32(
    shards: ShardSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotset.train.build_embeddings.cpu_features", lambda: frozenset({"amx_bf16"}))
    logits = [
        np.concatenate([found.copy() for _, found in each.predictor.logits()])
        for each in (trained(shards, placement="all-fast", dense_dtype=dtype) for dtype in ("fp32", "bf16"))
    ]
    assert logits[0].shape == logits[1].shape == (LABELED.num_evaluation, 2)
    assert 0 < np.abs(logits[0] - logits[1]).max() < 0.1


def test_threads_end_with_equal_bits(tmp_path: Path) -> None:
    spec = replace(LABELED, batch_size=1300, num_hot_only=1300, num_mixed=3000, order="original")
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    alone = trained(shards, placement="all-fast", threads=1)
    assert_equal_bits(trained(shards, placement="lookahead", threads=3), alone)


@pytest.mark.slow
def test_ranks_end_with_equal_bits_and_scores(shards: ShardSet) -> None:
    config = TrainConfig(placement="all-fast", micro_batches=2, threads=1)
    alone = build_trainer(shards, config)
    run_steps(alone, lambda *_: None)
    wanted = {name: alone.weights()[name] for name in alone.weights()}
    score = alone.predictor.score()
    assert score.labels is not None and score.total_weight

    def train(ranks: Ranks) -> tuple[dict[str, torch.Tensor], Quality]:
        trainer = build_trainer(shards, config, ranks=ranks)
        run_steps(trainer, lambda *_: None)
        weights = trainer.weights()
        dense = {name: weights[name] for name in weights if name.startswith("dense.")}
        return dense, trainer.predictor.score()

    for dense, found in run_thread_ranks(2, train):
        assert dense and all(torch.equal(tensor, wanted[name]) for name, tensor in dense.items())
        assert found == score


@pytest.mark.parametrize("placement", ["all-fast", "lookahead", "hybrid", "fae"])
def test_a_device_that_runs_late_ends_with_equal_bits(placement: str, shards: ShardSet) -> None:
    base = "fae" if placement == "fae" else "all-fast"
    wanted = trained(shards, placement=base, **FIELDS)
    assert_equal_bits(trained(shards, placement=placement, device="late:1", **FIELDS), wanted)


def test_a_label_left_out_is_as_if_the_log_had_none(shards: ShardSet, tmp_path: Path) -> None:
    """A single label that all samples have, without weights, is trained by the plain step."""
    one = trained(shards, placement="all-fast", loss_weights="buy=0")
    assert one.model.num_logits == 1 and isinstance(one.predictor, Predictor)
    no_others = ShardSet.open(write_shards(tmp_path / "shards", LABELED))
    no_others.labels = ("click",)
    assert_equal_bits(trained(no_others, placement="all-fast"), one)
    second = trained(shards, placement="all-fast", loss_weights="click=0")
    with pytest.raises(AssertionError):
        assert_equal_bits(second, one)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("like=1", "--loss-weights names 'like', and the log has labels click, buy"),
        ("click=0,buy=0", "--loss-weights leaves out every label of the log"),
    ],
)
def test_loss_weights_that_do_not_fit_are_refused(setting: str, message: str, shards: ShardSet) -> None:
    with pytest.raises(ConfigError, match=message):
        build_trainer(shards, TrainConfig(loss_weights=setting))


def test_loss_weights_of_a_log_with_one_label_are_refused(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec()))
    with pytest.raises(ConfigError, match="names 'click', and the log has a single label without a name"):
        build_trainer(shards, TrainConfig(loss_weights="click=1"))


@pytest.mark.parametrize(
    "setting", ["", "click", "click=", "click=-1", "click=nan", "click=1e99", "=1", "a=1,a=2"]
)
def test_loss_weights_are_numbers_by_name(setting: str) -> None:
    with pytest.raises(ConfigError, match="loss_weights: want LABEL=WEIGHT with commas between"):
        TrainConfig(loss_weights=setting)


def test_a_label_that_is_any_number_needs_a_loss_of_values(tmp_path: Path) -> None:
    spec = replace(LABELED, number_labels=("click",))
    shards = ShardSet.open(write_shards(tmp_path / "shards", spec))
    for loss_weights in (None, "buy=0"):
        with pytest.raises(ConfigError, match="the label 'click' is any number, and a probability is of 0"):
            build_trainer(shards, TrainConfig(loss_weights=loss_weights))
    assert build_trainer(shards, TrainConfig(loss_weights="click=0")).model.num_logits == 1


def test_recalibration_is_of_one_label(shards: ShardSet) -> None:
    with pytest.raises(ConfigError, match="--negative-rate recalibrates the probability of a single label"):
        build_trainer(shards, TrainConfig(negative_rate=0.1))
    assert build_trainer(shards, TrainConfig(negative_rate=0.1, loss_weights="buy=0"))
