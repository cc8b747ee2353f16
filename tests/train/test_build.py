"""Trainers are built of what fits, with a warning of what is larger than it was counted.

Optimizers of the dense layers: each parameter has one, and steps as with torch's own.

Tests `build`, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ShardError
from hotset.tests.support.shard_factory import write_shards
from hotset.train.build import build_dense_optimizers, build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.batch import Batch, MicroBatches
from hotset.train.data.shards import Shards
from hotset.train.model.dense_step import TiledStep
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.shapes import dlrm_shape
from hotset.train.threads import WorkThreads


def test_too_large_hot_rows_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    build_trainer(shards, TrainConfig(placement="fae", embedding_optimizer="adagrad"))
    assert "the hot rows take 1.1 KiB with adagrad" in caplog.text and "560 B with sgd" in caplog.text


def test_hot_rows_as_the_shards_counted_them_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", embedding_optimizer="adam"))
    trainer = build_trainer(shards, TrainConfig(placement="fae"))
    assert trainer.config.optimizers(shards.embedding_optimizer).embedding_optimizer == "adam"
    assert caplog.text == ""


def test_shards_without_training_batches_are_refused(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", num_hot_only=0, num_mixed=0))
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
