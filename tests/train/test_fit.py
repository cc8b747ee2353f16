"""Training from Python: settings by name, a user's module, and what a finished run gives back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hotset
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.train.fit import FittedRun

SPEC = ShardSpec(batch_size=16, num_hot_only=40, num_mixed=90, num_evaluation=40)


class Net(nn.Module):
    """A linear layer of everything."""

    def __init__(self, inputs: hotset.ModelInputs, scale: float = 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)
        self.scale = scale

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layer(torch.cat([dense, *embeddings.values()], dim=1))
        return self.scale * logits.squeeze(1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


@pytest.fixture(scope="module")
def fitted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> FittedRun:
    out = tmp_path_factory.mktemp("fitted") / "run"
    return hotset.fit(str(data), str(out), model=Net, model_args={"scale": 2.0}, threads=1)


def recorded(run: FittedRun) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((run.folder / "config.json").read_text())
    return config


def test_settings_are_given_by_name_or_in_a_config(data: Path, tmp_path: Path) -> None:
    config = hotset.TrainConfig(placement="cache", threads=1, seed=3)
    found = recorded(
        hotset.fit(
            data, tmp_path / "run", config=config, model="dcnv2", cross_layers=1, seed=4, warmup_steps=3
        )
    )
    assert found["model"] == "dcnv2" and found["config"]["cross_layers"] == 1
    assert (found["config"]["placement"], found["config"]["seed"]) == ("cache", 4)
    assert found["config"]["recipe"]["warmup_steps"] == 3


def test_a_class_is_recorded_so_that_its_run_can_be_evaluated(data: Path, fitted: FittedRun) -> None:
    assert recorded(fitted)["model"] == f"{__name__}:Net"
    assert hotset.evaluate(fitted.folder, data).auc == fitted.summary.auc
    assert hotset.evaluate(fitted, data).log_loss == fitted.summary.log_loss


def test_the_trained_module_comes_back(fitted: FittedRun, data: Path) -> None:
    for module in (fitted.load_model(), hotset.load_model(fitted.folder)):
        assert isinstance(module, Net) and module.scale == 2.0 and not module.training
    fresh = Net(hotset.ModelInputs(2, (hotset.TableInput("C1", 1, 12),), 4))
    weights = fitted.load_model().state_dict()
    assert weights["layer.weight"].shape == fresh.state_dict()["layer.weight"].shape
    assert weights["layer.weight"].isfinite().all()


def test_tables_come_back(fitted: FittedRun) -> None:
    assert fitted.table("C2").shape == (40, 4)
    with pytest.raises(hotset.HotsetError, match="has no table 'C22'") as refused:
        fitted.table("C22")
    assert refused.value.hint == "did you mean 'C2'?"


def test_a_module_is_trained_from_the_weights_it_has_and_stays_as_it_is(data: Path, tmp_path: Path) -> None:
    own = Net(hotset.ModelInputs(2, (hotset.TableInput("C1", 1, 12),), 4))
    before = own.layer.weight.detach().clone()
    run = hotset.fit(data, tmp_path / "run", model=own, dense_lr=1e-9, embedding_lr=1e-9, threads=1)
    assert torch.equal(own.layer.weight, before)
    trained: Any = run.load_model()
    torch.testing.assert_close(trained.layer.weight, before, rtol=0, atol=1e-6)
    assert hotset.evaluate(run, data).auc == run.summary.auc


def test_a_function_makes_the_module(data: Path, tmp_path: Path) -> None:
    run = hotset.fit(data, tmp_path / "run", model=lambda inputs: Net(inputs, 3.0), threads=1)
    loaded: Any = run.load_model()
    assert loaded.scale == 3.0
    with pytest.raises(hotset.HotsetError, match="cannot be imported: it was made inside a program"):
        hotset.load_model(run.folder)


def test_models_of_hotset_come_back_too(data: Path, tmp_path: Path) -> None:
    run = hotset.fit(data, tmp_path / "run", top_mlp=(6,), threads=1)
    assert run.load_model().state_dict()["top.0.bias"].shape == (6,)


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"epoch": 2}, "there is no setting 'epoch'", "did you mean 'epochs'?"),
        ({"home": "striped"}, "there is no setting 'home'", "did you mean 'homes'?"),
        ({"exchange": "int7"}, "exchange must be none, fp16, bf16, int8, int4, fp8, auto or bounded:E", None),
        ({"epochs": 0}, "epochs must be 1 or more", None),
        ({"model": "dcn"}, "model must be one of", "did you mean 'dcnv2'?"),
    ],
)
def test_settings_are_checked(
    settings: dict[str, Any], message: str, hint: str | None, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(hotset.HotsetError, match=message) as refused:
        hotset.fit(data, tmp_path / "run", **settings)
    assert refused.value.hint == hint and not (tmp_path / "run").exists()


class Noisy(Net):
    """Dropout and batch normalization: what depends on the step and on the batches before it."""

    def __init__(self, inputs: hotset.ModelInputs) -> None:
        super().__init__(inputs)
        self.norm = nn.BatchNorm1d(inputs.num_dense)
        self.drop = nn.Dropout(0.5)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(self.drop(self.norm(dense)), embeddings)


@pytest.mark.parametrize("placement", ["all-fast", "lookahead"])
def test_an_interrupted_run_is_resumed_by_the_same_call(placement: str, data: Path, tmp_path: Path) -> None:
    def run(name: str, **more: Any) -> bytes:
        settings = {"placement": placement, "epochs": 2, "threads": 1, "checkpoint_every": 3, **more}
        hotset.fit(data, tmp_path / name, model=Noisy, **settings)
        return (tmp_path / name / "weights.safetensors").read_bytes()

    def interrupt(stage: str, done: int, *_: object) -> None:
        if done > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("interrupted", progress=interrupt)
    assert run("interrupted") == run("unbroken")


def test_a_run_starts_from_another(data: Path, fitted: FittedRun, tmp_path: Path) -> None:
    rates: dict[str, Any] = {"dense_lr": 1e-9, "embedding_lr": 1e-9, "threads": 1}
    settings: dict[str, Any] = {"model": Net, "model_args": {"scale": 2.0}, **rates}
    run = hotset.fit(data, tmp_path / "run", init_from=fitted.folder, **settings)
    torch.testing.assert_close(run.table("C3"), fitted.table("C3"), rtol=0, atol=1e-6)
    weights = [each.load_model().state_dict()["layer.weight"] for each in (run, fitted)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)


def test_progress_is_reported(data: Path, tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    hotset.fit(data, tmp_path / "run", threads=1, progress=lambda *call: seen.append(call[:3]))
    assert ("train", 130, 130) in seen and seen[-1] == ("evaluate", 40, 40)
