"""Runs with several labels, or with values for labels: `predict`, exported folders and changes agree."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import hotset
from hotset.pipeline.errors import ConfigError
from hotset.train.config import ExportConfig
from hotset.train.evaluate import answers_of
from hotset.train.serving.changes import export_changes
from hotset.train.serving.export import build_graph, export_run, features_of
from hotset.train.serving.predict import RunTables
from hotset.train.serving.serving_inputs import ServingInputs

KEYS = 'format = "parquet"\nweight = "w"\nlabels = [{}]\n[dense]\nage = "float"\n[sparse]\nuser = "integer"\n'
NUMBER = '{ column = "seconds", kind = "float" }'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log, its folders ``both`` and ``values`` and a run on each; no test changes them."""
    folder = tmp_path_factory.mktemp("labels")
    rng = np.random.default_rng(5)
    users = rng.integers(0, 20, 400)
    clicks = rng.random(400) < users / 20
    columns = {
        "click": [None if n % 9 == 0 else int(click) for n, click in enumerate(clicks)],
        "buy it": (clicks & (rng.random(400) < 0.5)).astype(int),
        "seconds": np.where(clicks, -7.5 * users, 0.25),
        "w": rng.choice([0.5, 1.5], 400),
        "age": rng.random(400),
        "user": users,
    }
    pl.DataFrame(columns, strict=False).write_parquet(folder / "log.parquet")
    (folder / "own_losses.py").write_text(
        "def squared(logits, labels, weights):\n    return weights * (logits - labels) ** 2\n\n\n"
        'squared.predicts = "value"\n'
    )
    sys.path.append(str(folder))
    for name, labels in (("both", '"click", "buy it"'), ("values", NUMBER)):
        (folder / f"{name}.toml").write_text(KEYS.format(labels))
        log, schema = folder / "log.parquet", folder / f"{name}.toml"
        hotset.preprocess(log, schema=schema, out=folder / name, batch_size=32, progress=False)
    hotset.fit(folder / "both", folder / "both run", loss_weights={"buy it": 0.5}, progress=False)
    loss = "own_losses:squared"
    hotset.fit(folder / "values", folder / "values run", loss=loss, epochs=3, progress=False)
    return folder


def test_a_loss_may_be_a_function_of_the_program(folder: Path, tmp_path: Path) -> None:
    def loss(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return weights * (logits - labels) ** 2

    loss.predicts = "value"  # type: ignore[attr-defined]
    run = hotset.fit(folder / "values", tmp_path / "run", loss=loss, epochs=3, progress=False)
    weights = [path / "weights.safetensors" for path in (run.folder, folder / "values run")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    # What is predicted is recorded, so the function is not needed any more.
    frame = pl.read_parquet(folder / "log.parquet")
    assert hotset.predict(run.folder, frame, progress=False).columns == ["prediction"]
    assert hotset.evaluate(run.folder, folder / "values", progress=False).auc is None


def test_predictions_have_a_column_of_each_label(folder: Path, tmp_path: Path) -> None:
    frame = pl.read_parquet(folder / "log.parquet")
    found = hotset.predict(folder / "both run", folder / "log.parquet", progress=False)
    assert found.columns == ["probability_click", "probability_buy it"]
    assert hotset.predict(folder / "both run", frame.select("user", "age"), progress=False).equals(found)
    assert hotset.predict(folder / "both run", frame[:0].select("user", "age"), progress=False).height == 0
    # Users click more the higher their number, and buy less often than that.
    means = found.with_columns(frame["user"]).group_by("user").mean().sort("user")
    assert means["probability_click"][-3:].mean() > means["probability_click"][:3].mean()  # type: ignore[operator]
    # One label alone has the plain name.
    hotset.fit(folder / "both", tmp_path / "run", loss_weights="click=0", progress=False)
    assert hotset.predict(tmp_path / "run", frame, progress=False).columns == ["probability"]


@pytest.mark.parametrize(("name", "column"), [("both", "probability_buy it"), ("values", "prediction")])
def test_the_graph_of_an_export_predicts_the_same(
    folder: Path, name: str, column: str, tmp_path: Path
) -> None:
    frame = pl.read_parquet(folder / "log.parquet")
    wanted = hotset.predict(folder / f"{name} run", frame, progress=False)
    tables = RunTables.open(folder / f"{name} run")
    (tmp_path / "features.json").write_text(json.dumps(features_of(tables.schema, tables.config.labels)))
    columns = {each: frame[each].to_list() for each in ("user", "age")}
    predicted, logit = build_graph(tables, ExportConfig())(*ServingInputs(tmp_path).for_torch(columns))
    assert predicted.shape == ((400, 2) if name == "both" else (400,))
    of_column = predicted.view(400, -1)[:, wanted.columns.index(column)]
    np.testing.assert_allclose(of_column.numpy(), wanted[column].to_numpy(), rtol=1e-5, atol=1e-5)
    assert torch.equal(predicted, logit if name == "values" else torch.sigmoid(logit))
    assert json.loads((tmp_path / "features.json").read_text()).get("labels") == (
        ["click", "buy it"] if name == "both" else None
    )


def test_values_are_predicted_and_scored_as_values(folder: Path) -> None:
    frame = pl.read_parquet(folder / "log.parquet")
    found = hotset.predict(folder / "values run", frame, progress=False)["prediction"]
    assert found.min() < 0 and found.max() > found.min()  # type: ignore[operator]
    answers = answers_of(RunTables.open(folder / "values run").config)
    assert (answers.labels, answers.predicts) == (("seconds",), "value")


@pytest.mark.slow
def test_exported_programs_name_their_outputs(folder: Path, tmp_path: Path) -> None:
    has_onnx = bool(find_spec("onnxruntime") and find_spec("onnxscript"))
    for name, outputs in (("both", "probability, logit"), ("values", "prediction, logit")):
        export_run(folder / f"{name} run", tmp_path / name, ExportConfig(onnx=has_onnx))
        readme = (tmp_path / name / "README.md").read_text()
        assert f"    {outputs} = model(*inputs.for_torch(columns))\n" in readme
        assert ("in this order: click, buy it." in readme) == (name == "both")
        model = torch.export.load(tmp_path / name / "model.pt2").module()
        columns: dict[str, list[Any]] = {"user": [3, None], "age": [0.5, None]}
        with torch.no_grad():
            predicted, logit = model(*ServingInputs(tmp_path / name).for_torch(columns))
        assert predicted.shape == logit.shape == ((2, 2) if name == "both" else (2,))
        if has_onnx:
            session = import_module("onnxruntime").InferenceSession(str(tmp_path / name / "model.onnx"))
            found = session.run(outputs.split(", "), ServingInputs(tmp_path / name).for_onnx(columns))
            np.testing.assert_allclose(found, [predicted.numpy(), logit.numpy()], rtol=1e-5, atol=1e-5)


def test_changes_lead_to_runs_of_the_same_labels(folder: Path, tmp_path: Path) -> None:
    hotset.fit(folder / "both", tmp_path / "run", loss_weights="buy it=0", progress=False)
    with pytest.raises(ConfigError, match="have other tables, schemas or labels\n"):
        export_changes(tmp_path / "run", folder / "both run", tmp_path / "changes")
    export_changes(folder / "both run", folder / "both run", tmp_path / "changes")
    assert json.loads((tmp_path / "changes/features.json").read_text())["labels"] == ["click", "buy it"]
