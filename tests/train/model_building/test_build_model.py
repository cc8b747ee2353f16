"""Every model under every placement: the bits of all-fast, and runs that are evaluated again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.config import TrainConfig
from hotset.train.evaluate import evaluate
from hotset.train.model_building.model_inputs import ModelInputs
from hotset.train.run import train
from hotset.train.run_folder.verify_run import verify_run

SPEC = ShardSpec(
    num_rows=(5, 40, 300, 60),
    num_hot=(5, 10, 20, 9),
    batch_size=16,
    num_hot_only=40,
    num_mixed=90,
    num_evaluation=40,
    multi_hot=(1,),
    table_dims=(4, 4, 2, 4),
)
FIELDS: dict[str, Any] = {"epochs": 2, "embedding_optimizer": "adagrad", "staging_bytes": 3000}


class Net(nn.Module):
    """Batch normalization, dropout and a buffer of whole numbers: all that depends on more than a sample."""

    def __init__(self, inputs: ModelInputs, hidden: int = 8) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs.num_dense + inputs.total_dim)
        self.hidden = nn.Linear(inputs.num_dense + inputs.total_dim, hidden)
        self.drop = nn.Dropout(0.25)
        self.last = nn.Linear(hidden, 1)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        hidden = torch.relu(self.hidden(self.norm(torch.cat([dense, *embeddings.values()], dim=1))))
        logits: torch.Tensor = self.last(self.drop(hidden))
        return logits.squeeze(1)


NAME = f"{__name__}:Net"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


def weights_of(data: Path, out: Path, **fields: Any) -> bytes:
    train(data, TrainConfig(**FIELDS | fields), out)
    return (out / "weights.safetensors").read_bytes()


@pytest.mark.parametrize(
    "model",
    [
        {"model": NAME, "pooling": "mean"},
        {"model": "dcnv2", "cross_rank": 3},
        {"model": "dlrm", "bottom_mlp": (6, 5), "top_mlp": (), "pooling": "mean"},
    ],
    ids=["own", "dcnv2", "dlrm"],
)
def test_all_placements_give_the_same_bits(model: dict[str, Any], data: Path, tmp_path: Path) -> None:
    wanted = weights_of(data, tmp_path / "all-fast", placement="all-fast", threads=1, **model)
    for placement in ("lookahead", "cache", "hybrid", "hybrid-dedup"):
        assert weights_of(data, tmp_path / placement, placement=placement, threads=2, **model) == wanted
    train(data, TrainConfig(**FIELDS | model, placement="fae"), tmp_path / "fae")
    config = TrainConfig(**FIELDS | model, placement="all-fast")
    train(data, config, tmp_path / "replay", replay=tmp_path / "fae")
    found = [(tmp_path / name / "weights.safetensors").read_bytes() for name in ("fae", "replay")]
    assert found[0] == found[1] != wanted


@pytest.mark.parametrize(
    "model", [{"model": NAME, "model_args": '{"hidden": 5}'}, {"model": "dcnv2"}, {"top_mlp": (7,)}]
)
def test_a_run_is_evaluated_as_at_its_end(model: dict[str, Any], data: Path, tmp_path: Path) -> None:
    summary = train(data, TrainConfig(**FIELDS | model), tmp_path / "run")
    found = evaluate(tmp_path / "run", data)
    assert (found.auc, found.log_loss) == (summary.auc, summary.log_loss)
    assert verify_run(tmp_path / "run") == []


def test_each_step_draws_numbers_of_its_own(data: Path, tmp_path: Path) -> None:
    seeds: list[int] = []

    class Spy(Net):
        def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
            if self.training:
                seeds.append(torch.initial_seed())
            return super().forward(dense, embeddings)

    summary = train(data, TrainConfig(**FIELDS, model=NAME), tmp_path / "run", model_source=Spy)
    assert len(set(seeds[1:])) == summary.num_steps  # the first was the trial


def test_buffers_are_among_the_weights(data: Path, tmp_path: Path) -> None:
    summary = train(data, TrainConfig(**FIELDS, model=NAME), tmp_path / "run")
    from safetensors.numpy import load_file

    weights = load_file(tmp_path / "run" / "weights.safetensors")
    assert weights["dense.module.norm.num_batches_tracked"] == np.int64(summary.num_steps)
    assert weights["dense.module.norm.running_mean"].any()


def test_a_model_from_python_is_recorded_by_its_name(data: Path, tmp_path: Path) -> None:
    class Local(Net):
        """A class that no other program can import."""

    source = Local
    name = f"{__name__}:{Local.__qualname__}"
    summary = train(data, TrainConfig(**FIELDS, model=name), tmp_path / "run", model_source=source)
    assert json.loads((tmp_path / "run/config.json").read_text())["model"] == name
    with pytest.raises(HotsetError, match="was made inside a program"):
        evaluate(tmp_path / "run", data)
    assert evaluate(tmp_path / "run", data, model_source=source).auc == summary.auc


def test_another_class_than_the_runs_is_refused(data: Path, tmp_path: Path) -> None:
    train(data, TrainConfig(**FIELDS, model=NAME), tmp_path / "run")
    with pytest.raises(HotsetError, match=r"dense\.module\.hidden\.bias has the shape \(8,\), want \(9,\)"):
        evaluate(tmp_path / "run", data, model_source=lambda inputs: Net(inputs, 9))


def test_a_module_that_fails_on_the_smallest_batch_is_refused_before_training(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", replace(SPEC, num_mixed=97))
    with pytest.raises(HotsetError, match=r"on a batch of 1 sample, failed"):
        train(tmp_path, TrainConfig(**FIELDS, model=NAME), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_module_is_refused_before_rows_are_made(data: Path, tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="there is no module nowhere_at_all"):
        train(data, TrainConfig(**FIELDS, model="nowhere_at_all:Net"), tmp_path / "run")
    assert not any((tmp_path / "run").glob("*"))
