"""DLRM's dense layers as kernels: the steps of the host's layers, and equal bits of placements.

Tests `build`, too.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.pipeline.errors import ByteSize
from hotset.tests.support.late_runs import draw_run, is_wrong, wanted_of
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train.build import build_trainer
from hotset.train.config import PlacementName, TrainConfig
from hotset.train.config_parts import CheckpointSettings
from hotset.train.data.shards import ShardSet
from hotset.train.gpu.fused_dlrm import FusedHostDense, keeps_float32_sums
from hotset.train.gpu.queued_steps import QueuedSteps
from hotset.train.loop import Trainer
from hotset.train.run import RunOptions, train
from hotset.train.run_log import summarize_transfers

LAYERS: dict[str, Any] = {"bottom_mlp": (7,), "top_mlp": (9, 5)}


def assert_near(found: Trainer, wanted: Trainer, *, rtol: float, atol: float) -> None:
    """Compare the dense weights, and the rows to ten times as much."""
    for name, tensor in wanted.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], tensor, rtol=rtol, atol=atol)
    for table in range(len(wanted.shards.tables)):
        rows = found.embeddings.table(table)
        torch.testing.assert_close(rows, wanted.embeddings.table(table), rtol=10 * rtol, atol=10 * atol)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("fields", [{}, {"num_dense": 0}, {"skew": 0.0}], ids=str)
def test_the_layers_train_as_those_of_the_host(
    optimizer: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec(**fields)))
    settings: dict[str, Any] = {"placement": "all-fast", "dense_optimizer": optimizer, **LAYERS}
    wanted = trained(shards, **settings)
    found = trained(shards, device="late:3", kernels="torch", **settings)
    assert_near(found, wanted, rtol=2e-4, atol=2e-5)


def test_layers_in_bf16_round_as_those_of_the_host(tmp_path: Path) -> None:
    """Weights are rounded once a step, products between layers stay in bfloat16, and masters are float32."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec()))
    settings: dict[str, Any] = {"placement": "all-fast", "dense_optimizer": "sgd", **LAYERS}

    def weights(**more: Any) -> torch.Tensor:
        state = trained(shards, **settings, **more).model.state_dict()
        return torch.cat([tensor.flatten() for tensor in state.values()])

    wide = weights()
    learned = (wide - weights(dense_lr=1e-9)).norm()
    of_host = weights(dense_dtype="bf16")
    found = weights(dense_dtype="bf16", device="late:3", kernels="torch")
    assert found.dtype == torch.float32
    # Products are rounded to 8 bits; where that is, in the pass backward, differs from the host.
    for other in (of_host, wide):
        assert 0 < (found - other).norm() < 0.03 * learned


def test_gradients_of_weights_are_not_rounded_where_the_device_can_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a product of bfloat16 numbers writes its sums in float32; the host's torch cannot."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec()))
    settings: dict[str, Any] = {"placement": "all-fast", "dense_dtype": "bf16", "device": "late:3"}
    assert not keeps_float32_sums(torch.device("cpu"), torch.bfloat16)
    rounded = trained(shards, kernels="torch", **settings, **LAYERS)
    multiply = torch.mm
    num_kept = 0

    def keeping(left: torch.Tensor, right: torch.Tensor, **options: Any) -> torch.Tensor:
        nonlocal num_kept
        if options.pop("out_dtype", None) is None:
            return multiply(left, right, **options)
        num_kept += 1
        assert options["out"].dtype == torch.float32 and left.dtype == right.dtype == torch.bfloat16
        return multiply(left.float(), right.float(), **options)

    monkeypatch.setattr(torch, "mm", keeping)
    kept = trained(shards, kernels="torch", **settings, **LAYERS)
    # Once for the question, and for each hidden layer in each step.
    assert num_kept == 1 + 4 * kept.step
    for name, tensor in rounded.model.state_dict().items():
        found = kept.model.state_dict()[name]
        torch.testing.assert_close(found, tensor, rtol=0.02, atol=0.02)
        assert name.endswith("bias") or not torch.equal(found, tensor)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("drawn", [2, 9, *(pytest.param(drawn, marks=pytest.mark.slow) for drawn in (5, 10))])
def test_placements_give_equal_bits(drawn: int, dtype: str, tmp_path: Path) -> None:
    run = draw_run(drawn, tmp_path, has_one_width=True)
    fused: dict[str, Any] = {"kernels": "torch", "dense_dtype": dtype, **LAYERS}
    wanted = wanted_of(run, device="late:1", **fused)
    names = ("lookahead", "cache", "hybrid", "hybrid-dedup", "hybrid-uva", "all-fast")
    for seed, name in enumerate(names):
        assert not is_wrong(run, wanted, seed, placement=name, **fused)
    # fae orders its batches by itself.
    of_fae = wanted_of(run, "fae", device="late:1", **fused)
    assert not is_wrong(run, of_fae, 2, placement="fae", **fused)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_a_resumed_state_goes_on(optimizer: str, tmp_path: Path) -> None:
    """States live in the vector of all parameters, and torch's optimizers show them."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec()))
    trainer = trained(
        shards, placement="all-fast", device="late:3", kernels="torch", dense_optimizer=optimizer, **LAYERS
    )
    names = {"sgd": set(), "adagrad": {"step", "sum"}, "adam": {"step", "exp_avg", "exp_avg_sq"}}[optimizer]
    for each in trainer.dense_optimizers:
        for parameter, state in each.state.items():
            assert {name for name in state if state[name] is not None} == names
            for name in names - {"step"}:
                assert state[name].shape == parameter.shape and state[name].abs().sum() > 0
            assert not names or state["step"] == trainer.step


def test_a_step_at_once_copies_nothing_from_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a copy waits for a GPU, and with it the loop, which has more to queue."""
    shards = ShardSet.open(write_shards(tmp_path / "shards", ShardSpec()))
    fields: dict[str, Any] = {"placement": "hybrid", "device": "late:3", "dense_optimizer": "sgd"}
    trainer = build_trainer(shards, TrainConfig(kernels="torch", **fields, **LAYERS))
    assert isinstance(trainer.runner, QueuedSteps)
    at_once = trainer.runner._parts.dense
    assert isinstance(at_once, FusedHostDense)
    batch = shards.training_batch(0)
    copied: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        call = getattr(torch, name)

        def note(*args: Any, **kwargs: Any) -> Any:
            copied.append(name)
            return call(*args, **kwargs)

        return note

    for name in ("tensor", "as_tensor", "from_numpy"):
        monkeypatch.setattr(torch, name, noting(name))
    # The kernels themselves are a GPU's.
    monkeypatch.setattr(at_once, "_kernels", defaultdict(lambda: lambda *_: None))
    num_tables, dim = len(shards.tables), shards.embedding_dim
    at_once.train(batch, [torch.zeros(batch.num_samples, num_tables, dim)])
    at_once.prepare(0.25)
    assert copied == [] and at_once._rates_2.tolist() == [0.25, 1.0]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("name", ["lookahead", "all-fast"])
def test_a_stopped_run_on_the_device_ends_with_the_bits_of_an_unbroken_one(
    name: PlacementName, optimizer: str, tmp_path: Path
) -> None:
    folder = write_shards(tmp_path / "shards", ShardSpec(num_mixed=500))
    config = TrainConfig(
        placement=name,
        device="late:6",
        kernels="torch",
        dense_optimizer=optimizer,  # type: ignore[arg-type]
        staging_bytes=ByteSize(3_000),
        log_every=3,
    )
    every = CheckpointSettings(checkpoint_every=4)
    train(folder, config, tmp_path / "unbroken", RunOptions(checkpoints=every))

    def stop(stage: str, done: int, *_: object) -> None:
        if stage == "train" and done > 11 * 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder, config, tmp_path / "stopped", RunOptions(checkpoints=every, progress=stop))
    train(folder, config, tmp_path / "stopped", RunOptions(checkpoints=every))
    for file in ("weights.safetensors", "metrics.jsonl"):
        assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "unbroken" / file).read_bytes()


SMALL = ShardSpec(num_hot_only=20, num_mixed=50, batch_size=16, embedding_optimizer="adagrad")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's interpreter is off where there is a GPU")
def test_kernels_of_triton_train_as_those_of_torch_under_every_placement(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SMALL))
    fields = {"staging_bytes": 1_600, "dense_optimizer": "adagrad", **LAYERS}
    of_torch, wanted = (
        trained(shards, device="late:3", placement="all-fast", kernels=each, **fields)
        for each in ("torch", "triton")
    )
    assert_near(wanted, of_torch, rtol=1e-4, atol=1e-5)
    for placement, mover in {
        "lookahead": "kernel",
        "cache": "kernel",
        "hybrid": None,
        "hybrid-dedup": None,
    }.items():
        found = trained(shards, device="late:5", kernels="triton", placement=placement, **fields)
        assert summarize_transfers(found).mover == mover
        assert_equal_bits(found, wanted)
