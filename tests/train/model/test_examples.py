"""The models of docs/examples: the numbers of plain torch, equal bits, predictions and exports."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import hotset
from hotset.pipeline.errors import HotsetError
from hotset.pipeline.folders.totals import by_feature, for_features
from hotset.tests.support.processes.stopped_runs import assert_same_files, train_until
from hotset.tests.support.trained_models import no_log
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.data.dataset import ShardDataset
from hotset.train.data.shards import ShardSet
from hotset.train.loop import run_steps
from hotset.train.run import train
from hotset.train.serving.serving_inputs import ServingInputs

EXAMPLES = Path(__file__).resolve().parents[3] / "docs/examples"
LABELS = ("click", "conversion")
SCHEMA = """
format = "parquet"
{labels}
dense = ["age", "price"]

[sparse]
user = "integer"
item = "integer"
{seen}
tags = { kind = "integer", list = true }
"""

Weights = dict[str, torch.Tensor]
Rows = Sequence[Any]
"""(B, D) embeddings of each feature; of a history a list of (length, D), one of each sample."""


def mlp(weights: Weights, name: str, inputs: torch.Tensor) -> torch.Tensor:
    """An MLP with ReLU between its layers."""
    numbers = sorted({int(key.split(".")[-2]) for key in weights if key.startswith(f"{name}.")})
    for number in numbers:
        inputs = inputs @ weights[f"{name}.{number}.weight"].T + weights[f"{name}.{number}.bias"]
        inputs = inputs if number == numbers[-1] else inputs.clamp(min=0)
    return inputs


def deepfm(weights: Weights, dense: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Every pair of fields by itself."""
    first = weights["bias"] + dense @ weights["dense_weights"]
    fields = [dense[:, k : k + 1] * weights["dense_vectors"][k] for k in range(dense.shape[1])]
    for row in rows:
        first = first + row[:, 0]
        fields.append(row[:, 1:])
    for i in range(len(fields)):
        for j in range(i):
            first = first + (fields[i] * fields[j]).sum(1)
    return torch.sigmoid(first.unsqueeze(1) + mlp(weights, "deep", torch.cat(fields, dim=1)))


def esmm(weights: Weights, dense: torch.Tensor, rows: Rows) -> torch.Tensor:
    """The product of two probabilities, as published."""
    inputs = torch.cat([dense, *rows], dim=1)
    click = torch.sigmoid(mlp(weights, "click", inputs))
    return torch.cat([click, click * torch.sigmoid(mlp(weights, "conversion", inputs))], dim=1)


def mmoe(weights: Weights, dense: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Experts one by one."""
    inputs = torch.cat([dense, *rows], dim=1)
    found = []
    for label in range(len(LABELS)):
        shares = (inputs @ weights[f"gates.{label}.weight"].T).exp()
        mixed: Any = 0
        for expert in range(shares.shape[1]):
            share = shares[:, expert] / shares.sum(1)
            layer = weights[f"experts.{expert}.0.weight"].T
            mixed = mixed + share[:, None] * (inputs @ layer + weights[f"experts.{expert}.0.bias"]).relu()
        found.append(torch.sigmoid(mlp(weights, f"towers.{label}", mixed)))
    return torch.cat(found, dim=1)


def din(weights: Weights, dense: torch.Tensor, rows: Rows) -> torch.Tensor:
    """Elements one by one, as far as there are any."""
    user, item, seen, tags = rows

    def units(name: str, inputs: torch.Tensor) -> torch.Tensor:
        for layer in (0, 2):
            inputs = inputs @ weights[f"{name}.{layer}.weight"].T + weights[f"{name}.{layer}.bias"]
            inputs = torch.where(inputs > 0, inputs, weights[f"{name}.{layer + 1}.weight"] * inputs)
        return inputs @ weights[f"{name}.4.weight"].T + weights[f"{name}.4.bias"]

    found = []
    for sample, elements in enumerate(seen):
        pooled = torch.zeros_like(item[sample])
        for element in elements:
            of_both = torch.cat([element, item[sample], element - item[sample], element * item[sample]])
            pooled = pooled + units("attention", of_both) * element
        everything = [dense[sample], user[sample], item[sample], tags[sample], pooled]
        found.append(torch.sigmoid(units("last", torch.cat(everything))))
    return torch.stack(found)


Twin = Callable[[Weights, torch.Tensor, Rows], torch.Tensor]
MODELS: list[tuple[str, Twin, str]] = [
    ("deepfm:DeepFM", deepfm, "one"),
    ("esmm:ESMM", esmm, "both"),
    ("mmoe:MMoE", mmoe, "both"),
    ("din:DIN", din, "seen"),
]
every_model = pytest.mark.parametrize(("name", "twin", "data"), MODELS, ids=[each[0] for each in MODELS])
OF_BOTH_KINDS = [each for each in MODELS if each[0] in ("din:DIN", "esmm:ESMM")]
a_model_of_each_kind = pytest.mark.parametrize(
    ("name", "twin", "data"), OF_BOTH_KINDS, ids=[each[0] for each in OF_BOTH_KINDS]
)
"""One with a history, and one with several labels."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of clicks and conversions, and its shards with one label, with both, and with a history."""
    folder = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(7)
    user_N, item_N = rng.integers(0, 60, 800), rng.integers(0, 90, 800)
    is_click_N = rng.random(800) < 1 / (1 + np.exp(-3 * np.sin(user_N) - np.cos(item_N)))
    columns = {
        "click": is_click_N.astype(int),
        "conversion": (is_click_N & (rng.random(800) < (1 + np.sin(item_N)) / 2)).astype(int),
        "user": user_N,
        "item": item_N,
        "tags": [rng.integers(0, 20, rng.integers(0, 4)).tolist() for _ in range(800)],
        "age": rng.integers(0, 90, 800),
        "price": rng.integers(0, 9, 800),
        "seen": [rng.integers(0, 90, rng.integers(0, 7)).tolist() for _ in range(800)],
    }
    pl.DataFrame(columns).write_parquet(folder / "log.parquet")
    seen = 'seen = { kind = "integer", list = true, table = "item" }'
    for name, labels, history in (
        ("one", 'label = "click"', ""),
        ("both", f"labels = {json.dumps(LABELS)}", ""),
        ("seen", 'label = "click"', seen),
    ):
        schema = SCHEMA.replace("{labels}", labels).replace("{seen}", history)
        (folder / f"{name}.toml").write_text(schema)
        hotset.preprocess(
            folder / "log.parquet",
            folder / name,
            schema=folder / f"{name}.toml",
            batch_size=32,
            embedding_dim=4,
            eval_fraction=0.25,
            hot_bytes=1024,
            workers=1,
            progress=False,
        )
    return folder


@pytest.fixture(autouse=True)
def _in_their_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(EXAMPLES))


def as_double(weights: Any) -> Weights:
    return {name: value.double() for name, value in weights.items()}


@every_model
def test_training_is_that_of_plain_torch(name: str, twin: Twin, data: str, folder: Path) -> None:
    shards = ShardSet.open(folder / data)
    plain: dict[str, Any] = {"embedding_optimizer": "sgd", "dense_optimizer": "sgd"}
    trainer = build_trainer(shards, TrainConfig(model=name, seed=3, embedding_lr=0.1, dense_lr=0.1, **plain))
    before = as_double(trainer.weights())
    run_steps(trainer, no_log)

    weights = {key: value.clone().requires_grad_() for key, value in before.items()}
    prefix = "dense.module."
    layers = {key.removeprefix(prefix): value for key, value in weights.items() if key.startswith(prefix)}
    for batch in ShardDataset(folder / data, seed=3):
        rows: list[Any] = []
        for table, feature in zip(
            for_features(shards.tables, shards.tables), by_feature(shards.tables), strict=True
        ):
            matrix, ids = weights[table_name(weights, table.name)], batch[feature.name].long()
            if not feature.is_multi_hot:
                rows.append(matrix[ids])
                continue
            lengths = batch[f"{feature.name}_offsets"].diff()
            bags = torch.split(matrix[ids], lengths.tolist())
            rows.append(bags if feature.name == "seen" else torch.stack([bag.sum(0) for bag in bags]))
        probability = twin(layers, batch["dense"].double(), rows)
        labels = torch.stack([batch[key] for key in ("label", "label_conversion") if key in batch], dim=1)
        chance = torch.where(labels == 1, probability, 1 - probability)
        grads = torch.autograd.grad(-chance.log().sum() / shards.batch_size, list(weights.values()))
        with torch.no_grad():
            for value, grad in zip(weights.values(), grads, strict=True):
                value -= 0.1 * grad
    for key, value in as_double(trainer.weights()).items():
        torch.testing.assert_close(value, weights[key].detach(), atol=1e-5, rtol=1e-5)
        assert not torch.equal(value, before[key])


def table_name(weights: Weights, name: str) -> str:
    (found,) = [key for key in weights if key.split(".")[-1] == name or key == name]
    return found


@a_model_of_each_kind
def test_all_placements_give_the_same_bits(
    name: str, twin: Twin, data: str, folder: Path, tmp_path: Path
) -> None:
    for placement, threads in (("all-fast", 1), ("lookahead", 2), ("hybrid", 2)):
        out = tmp_path / placement
        settings: dict[str, Any] = {"placement": placement, "threads": threads, "staging_bytes": 4096}
        run = hotset.fit(folder / data, out, model=name, progress=False, **settings)
        assert run.summary.auc is not None and run.summary.auc > 0.5
        assert_same_files(out, tmp_path / "all-fast")


@every_model
def test_a_run_predicts(name: str, twin: Twin, data: str, folder: Path, tmp_path: Path) -> None:
    hotset.fit(folder / data, tmp_path / "run", model=name, progress=False)
    found = hotset.predict(tmp_path / "run", pl.read_parquet(folder / "log.parquet"), progress=False)
    if data != "both":
        assert found["probability"].is_between(0, 1).all()
        return
    click, conversion = (found[f"probability_{label}"] for label in LABELS)
    assert click.is_between(0, 1).all() and conversion.n_unique() > 100
    # A conversion is a click, too: ESMM cannot say otherwise.
    assert name != "esmm:ESMM" or (conversion < click).all()


@pytest.mark.slow
@a_model_of_each_kind
def test_an_exported_program_gives_the_probabilities(
    name: str, twin: Twin, data: str, folder: Path, tmp_path: Path
) -> None:
    hotset.fit(folder / data, tmp_path / "run", model=name, progress=False)
    onnx = all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript")))
    hotset.export(tmp_path / "run", tmp_path / "out", onnx=onnx)
    log = pl.read_parquet(folder / "log.parquet")[:100]
    program: Any = torch.export.load(tmp_path / "out/model.pt2").module()
    inputs = ServingInputs(tmp_path / "out")
    with torch.no_grad():
        found, _ = program(*inputs.for_torch(log.to_dict(as_series=False)))
    predicted = hotset.predict(tmp_path / "run", log, progress=False)
    wanted = predicted.select(pl.col("^probability.*$")).to_numpy().squeeze()
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
    if onnx:
        onnxruntime: Any = importlib.import_module("onnxruntime")
        session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx")
        (of_onnx,) = session.run(["probability"], inputs.for_onnx(log.to_dict(as_series=False)))
        np.testing.assert_allclose(of_onnx, wanted, atol=1e-6)


@pytest.mark.slow
@a_model_of_each_kind
def test_a_killed_run_ends_with_the_same_bits(
    name: str, twin: Twin, data: str, folder: Path, tmp_path: Path
) -> None:
    config = TrainConfig(model=name)
    train(folder / data, config, tmp_path / "whole")
    train_until(12 * 32, folder / data, config, tmp_path / "killed", every=5)
    assert not (tmp_path / "killed/weights.safetensors").exists()
    train(folder / data, config, tmp_path / "killed")
    assert_same_files(tmp_path / "killed", tmp_path / "whole")


def test_an_example_refuses_another_log(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match=r"esmm\.py, line \d+: ValueError: the labels are \(\), want two"):
        hotset.fit(folder / "one", tmp_path / "run", model="esmm:ESMM", progress=False)


def test_examples_are_short() -> None:
    sizes = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(sizes) == len(MODELS) and max(sizes.values()) <= 80
