"""DLRM's dense layers as kernels: the steps of the host's layers, and equal bits of placements.

Tests `fused_at_once` and `build_steps`, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hotset.pipeline.sizes import ByteSize
from hotset.tests.support.late_runs import draw_run, is_wrong
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import trained
from hotset.train.checkpoints.checkpoint_settings import CheckpointSettings
from hotset.train.config import PlacementName, TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.options.interval import parse_interval
from hotset.train.run import train
from hotset.train.steps.queued_steps import QueuedSteps

LAYERS: dict[str, Any] = {"bottom_mlp": (7,), "top_mlp": (9, 5)}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
@pytest.mark.parametrize("fields", [{}, {"num_dense": 0}, {"skew": 0.0}], ids=str)
def test_the_layers_train_as_those_of_the_host(
    optimizer: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec(**fields)))
    settings: dict[str, Any] = {"placement": "all-fast", "dense_optimizer": optimizer, **LAYERS}
    wanted = trained(shards, **settings)
    found = trained(shards, device="late:3", kernels="torch", **settings)
    for name, tensor in wanted.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[name], tensor, rtol=2e-4, atol=2e-5)
    for table in range(len(shards.tables)):
        torch.testing.assert_close(
            found.embeddings.table(table), wanted.embeddings.table(table), rtol=2e-3, atol=2e-4
        )


@pytest.mark.parametrize("drawn", [2, 5, 9])
def test_placements_give_equal_bits(drawn: int, tmp_path: Path) -> None:
    run = draw_run(drawn, tmp_path, has_one_width=True)
    fused: dict[str, Any] = {"kernels": "torch", **LAYERS}
    wanted = trained(run.shards, device="late:1", placement="all-fast", **run.fields, **fused)
    for seed, name in enumerate(("lookahead", "cache", "hybrid", "all-fast")):
        assert not is_wrong(run, wanted, seed, placement=name, **fused)


def test_a_whole_step_can_be_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = draw_run(9, tmp_path, has_one_width=True)
    fused: dict[str, Any] = {"kernels": "torch", **LAYERS}
    wanted = trained(run.shards, device="late:1", placement="all-fast", **run.fields, **fused)
    begin = QueuedSteps.__init__
    monkeypatch.setattr(
        QueuedSteps, "__init__", lambda *args, **kwargs: begin(*args, **(kwargs | {"is_recorded": True}))
    )
    assert not is_wrong(run, wanted, 3, placement="lookahead", **fused)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_a_resumed_state_goes_on(optimizer: str, tmp_path: Path) -> None:
    """States live in the vector of all parameters, and torch's optimizers show them."""
    shards = Shards.open(write_shards(tmp_path / "shards", ShardSpec()))
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
    every = CheckpointSettings(checkpoint_every=parse_interval("4"))
    train(folder, config, tmp_path / "unbroken", checkpoints=every)

    def stop(stage: str, done: int, *_: object) -> None:
        if stage == "train" and done > 11 * 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder, config, tmp_path / "stopped", checkpoints=every, progress=stop)
    train(folder, config, tmp_path / "stopped", checkpoints=every)
    for file in ("weights.safetensors", "metrics.jsonl"):
        assert (tmp_path / "stopped" / file).read_bytes() == (tmp_path / "unbroken" / file).read_bytes()
