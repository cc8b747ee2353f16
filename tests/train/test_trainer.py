"""Training: a model learns, whatever the placement (their equal bits: `test_equal_bits`).

Tests `step_source`, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ConfigError, ShardError
from hotset.stats.ranking.row_bytes import OPTIMIZERS
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.config import TrainConfig
from hotset.train.data.batch import Batch
from hotset.train.data.shards import Shards
from hotset.train.model.dense_step import TiledStep
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.dlrm_shape import dlrm_shape
from hotset.train.trainer import build_dense_optimizers, build_trainer, open_device
from hotset.train.work_threads import WorkThreads


def test_two_equal_runs_end_with_equal_bits_and_seeds_differ(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    first, again, other = (trained(shards, seed=seed) for seed in (1, 1, 2))
    assert_equal_bits(first, again)
    assert first.numbers != other.numbers
    assert not torch.equal(first.weights()["C3"], other.weights()["C3"])


@pytest.mark.parametrize("num_threads", [1, 2, 64])
def test_each_parameter_has_one_optimizer(num_threads: int) -> None:
    model = Dlrm(dlrm_shape("kaggle", 13, 26, 16), 0)
    optimizers = build_dense_optimizers(model, TrainConfig().optimizers("sgd"), num_threads)
    parts = [[p for group in each.param_groups for p in group["params"]] for each in optimizers]
    assert sorted(id(p) for part in parts for p in part) == sorted(id(p) for p in model.parameters())
    sizes = [sum(p.numel() for p in part) for part in parts]
    largest = max(p.numel() for p in model.parameters())
    assert len(parts) == min(num_threads, 4) and max(sizes) <= max(largest, 1.2 * sum(sizes) / len(sizes))


def test_adam_takes_the_steps_of_torchs_own_however_a_layer_is_stored() -> None:
    shape = dlrm_shape("small", 3, 4, 5)
    models = [Dlrm(shape, 0), Dlrm(shape, 0)]
    step = TiledStep(models[0], 8, WorkThreads(1))
    (optimizer,) = build_dense_optimizers(models[0], TrainConfig().optimizers("sgd"), 1)
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


def test_rows_never_looked_up_keep_their_initial_values(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", skew=3.0))
    untrained = build_trainer(shards, TrainConfig()).weights()["C3"].clone()
    weights = trained(shards).weights()["C3"]
    batches = [shards.training_batch(number).ids_BF[:, 2] for number in range(shards.num_training_batches)]
    seen = np.isin(np.arange(300), np.concatenate(batches))
    changed = (weights != untrained).any(dim=1).numpy()
    assert not changed[~seen].any() and changed[seen].all()


def test_a_short_batch_takes_a_small_step(tmp_path: Path) -> None:
    """One sample in a batch of nominally 64 moves SGD's weights by a 64th of its gradient."""
    spec = ShardSpec(batch_size=64, num_hot_only=0, num_mixed=1, num_evaluation=0)
    alone = ShardSpec(batch_size=1, num_hot_only=0, num_mixed=1, num_evaluation=0)
    shards, ones = (Shards.open(write_shards(tmp_path / name, s)) for name, s in (("a", spec), ("b", alone)))
    before = build_trainer(shards, TrainConfig()).weights()["C2"]
    rate: dict[str, Any] = {"embedding_lr": 0.5, "dense_lr": 0.5}
    short, full = (trained(s, **rate).weights()["C2"] - before for s in (shards, ones))
    assert short.abs().max() > 0
    torch.testing.assert_close(short * 64, full, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_model_learns_what_was_planted(optimizer: Any, tmp_path: Path) -> None:
    spec = ShardSpec(num_hot_only=3000, num_mixed=3000, num_evaluation=2000, batch_size=64)
    shards = Shards.open(write_shards(tmp_path / "shards", spec))
    before = build_trainer(shards, TrainConfig()).predictor.score()
    after = trained(shards, embedding_optimizer=optimizer, epochs=2).predictor.score()
    assert before.auc is not None and after.auc is not None
    assert before.auc < 0.7 < 0.8 < after.auc


def test_fae_counts_its_copies(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    trainer = trained(shards, placement="fae", fae_variant="code", epochs=2)
    hot_bytes = 35 * 4 * 4
    assert trainer.meter.bytes_to_fast["switch"] == trainer.meter.bytes_to_slow["switch"] == 2 * hot_bytes
    assert trainer.meter.bytes_to_fast["mixed"] == 2 * 150 * 3 * 4 * 4
    assert trainer.meter.bytes_to_fast["hot_only"] == trainer.meter.bytes_to_fast["evaluation"] == 0
    assert trainer.scheduler is not None and trainer.scheduler.losses == []


def test_hybrid_moves_a_vector_a_lookup_each_way(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    num_bytes = 220 * 3 * 4 * 4
    assert trained(shards, placement="hybrid").meter.training_bytes() == (num_bytes, num_bytes)
    to_fast, to_slow = trained(shards, placement="hybrid-dedup").meter.training_bytes()
    batches = [shards.training_batch(number).ids_BF for number in range(shards.num_training_batches)]
    distinct = sum(np.unique(ids[:, f]).size for ids in batches for f in range(3))
    assert to_fast == to_slow == distinct * 4 * 4


def test_too_large_hot_rows_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards"))
    build_trainer(shards, TrainConfig(placement="fae", embedding_optimizer="adagrad"))
    assert "the hot rows take 1.1 KiB with adagrad" in caplog.text and "560 B with sgd" in caplog.text


def test_hot_rows_as_the_shards_counted_them_are_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", embedding_optimizer="adam"))
    trainer = build_trainer(shards, TrainConfig(placement="fae"))
    assert trainer.optimizers.embedding_optimizer == "adam"
    assert caplog.text == ""


def test_shards_without_training_batches_are_refused(tmp_path: Path) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", num_hot_only=0, num_mixed=0))
    with pytest.raises(ShardError, match="no training batch"):
        build_trainer(shards, TrainConfig())


@pytest.mark.parametrize("name", ["tpu9", "meta"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        open_device(name)


def test_a_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device"):
        open_device("cuda")


def test_the_gpu_that_is_named_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    assert open_device("cuda:1") == torch.device("cuda:1") and used == [torch.device("cuda:1")]
    with pytest.raises(ConfigError, match="has 2 CUDA devices, and 'cuda:2' is none of them"):
        open_device("cuda:2")


@pytest.mark.gpu
@pytest.mark.parametrize("placement", ["all-fast", "hybrid", "hybrid-dedup", "fae", "cache", "lookahead"])
def test_every_placement_trains_on_the_gpu(placement: Any, tmp_path: Path) -> None:
    spec = ShardSpec(num_hot_only=3000, num_mixed=3000, num_evaluation=2000, batch_size=64)
    shards = Shards.open(write_shards(tmp_path / "shards", spec))
    trainer = trained(shards, placement=placement, device="cuda", embedding_optimizer="adagrad", epochs=2)
    scores = trainer.predictor.score()
    assert scores.auc is not None and scores.auc > 0.8
    assert trainer.meter.training_seconds > 0
