"""A log of histories from its lines to predictions: TBSM on generated data of the shape of Taobao's log."""

from __future__ import annotations

import csv
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hotset
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.schema.schema_file import schema_named
from hotset.tests.support.scored_runs import ScoredRun, serving_inputs_of
from hotset.train.config import ExportConfig, read_config
from hotset.train.serving.export import build_graph, export_run
from hotset.train.serving.predict import RunPredictor, RunTables
from hotset.train.serving.serving_inputs import ServingInputs
from hotset.workflows.cli import main
from hotset.workflows.recipes import recipe_for

DOCS = Path(__file__).resolve().parents[3] / "docs"
SETTINGS: dict[str, Any] = {"threads": 1, "epochs": 4, "dense_lr": 0.005, "embedding_lr": 0.1}


@dataclass(frozen=True, slots=True)
class Columns:
    """A log as values by column."""

    values: dict[str, list[Any]]

    @classmethod
    def of(cls, log: Path) -> Columns:
        with log.open() as file:
            rows = list(csv.DictReader(file))
        lists = {
            name: [[int(value) for value in row[name].split("|")] for row in rows]
            for name in ("item", "category")
        }
        return cls(lists | {"user": [int(row["user"]) for row in rows]})


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    folder = tmp_path_factory.mktemp("taobao")
    for name, samples, start in (("train.csv", 2400, 0), ("test.csv", 400, 5000)):
        config = GenerateConfig(profile="taobao", samples=samples, start=start, scale=100_000)
        generate(config, folder / name, workers=1)
    logs = [folder / "train.csv", folder / "test.csv"]
    hotset.preprocess(
        logs, folder / "data", schema="taobao", workers=1, eval_files=1, batch_size=32, hot_bytes=4096
    )
    hotset.fit(folder / "data", folder / "run", model="tbsm", placement="lookahead", **SETTINGS)
    return ScoredRun(folder / "run", folder / "data", logs[1])


@pytest.mark.slow
def test_the_model_learns_what_users_choose_next(scored: ScoredRun) -> None:
    auc = hotset.evaluate(scored.run, scored.data).auc
    assert auc is not None and auc > 0.6


def test_predictions_have_the_bits_of_evaluate(scored: ScoredRun) -> None:
    predictor = RunPredictor(scored.run)
    found = np.concatenate(list(predictor.logits(predictor.open_log(scored.log))))
    np.testing.assert_array_equal(found, scored.evaluated())
    assert np.unique(found).size > 300


def test_a_finished_run_is_whole_and_its_module_can_be_loaded(scored: ScoredRun) -> None:
    model = hotset.load_model(scored.run)
    assert type(model).__name__ == "Tbsm" and not model.training


def test_the_exported_graph_gives_the_logits(scored: ScoredRun, tmp_path: Path) -> None:
    found = RunTables.open(scored.run)
    graph = build_graph(found, ExportConfig())
    inputs = serving_inputs_of(found.schema)
    columns = Columns.of(scored.log).values
    _, logit = graph(*inputs.for_torch(columns))
    np.testing.assert_allclose(logit.numpy(), scored.evaluated(), rtol=1e-5, atol=1e-5)
    # A history that is longer than those of the training counts from its end.
    longer = {
        name: [[3, *values[sample]] for sample in range(5)] if name != "user" else values[:5]
        for name, values in columns.items()
    }
    full = [sample for sample in range(5) if len(columns["item"][sample]) == 21]
    _, again = graph(*inputs.for_torch(longer))
    torch.testing.assert_close(again[full], logit[:5][full])
    assert full


@pytest.mark.slow
def test_the_exported_program_gives_the_logits(scored: ScoredRun, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    export_run(scored.run, tmp_path / "out", ExportConfig(onnx=True))
    columns = Columns.of(scored.log).values
    inputs = ServingInputs(tmp_path / "out")
    model: Any = torch.export.load(tmp_path / "out/model.pt2").module()
    with torch.no_grad():
        _, logit = model(*inputs.for_torch(columns))
    np.testing.assert_allclose(logit.numpy(), scored.evaluated(), rtol=1e-5, atol=1e-5)
    session = onnxruntime.InferenceSession(tmp_path / "out/model.onnx")
    (logit,) = session.run(["logit"], inputs.for_onnx(columns))
    np.testing.assert_allclose(logit, scored.evaluated(), rtol=1e-5, atol=1e-5)


def test_the_schema_keeps_lists_in_their_order() -> None:
    schema = schema_named("taobao")
    assert schema.lists == (("item", "|"), ("category", "|")) and schema.one_hot == ("user",)
    recipe = recipe_for("taobao")
    assert (recipe.pack.batch_size, recipe.split.embedding_optimizer) == (256, "adagrad")


@pytest.mark.slow
def test_the_recipe_of_the_page_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/models.md, on a smaller log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taobao.toml").write_bytes((DOCS / "taobao.toml").read_bytes())
    text = (DOCS / "models.md").read_text()
    lines = re.findall(r"^    hotset (.*taobao.*)$", text, re.MULTILINE)
    assert len(lines) == 3
    smaller = {"1000000": "900", "generate": "generate --scale 100000"}
    for line in lines:
        for old, new in smaller.items():
            line = line.replace(old, new)
        assert main(shlex.split(line)) == 0
    config = read_config(tmp_path / "RUN")
    assert config.batch_size == 256 and config.embedding_dim == 16
    assert config.config is not None and config.config.dense_optimizer == "adagrad"
    model = config.dense_model
    assert model is not None and (model.kind, model.history_length, model.last_widths) == ("tbsm", 20, (60,))


def test_published_arrays_become_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """The program of docs/logs.md, on arrays of the published form."""
    monkeypatch.chdir(tmp_path)
    categories = rng.integers(1, 50, (3, 7, 21)).astype(np.int32)
    categories[:, :, :-1] *= np.arange(20) >= np.array([0, 3, 20, 1, 19, 0, 5])[:, None]
    categories[0] = categories[0, :, -1:]
    labels = rng.integers(0, 2, 7).astype(np.int32)
    np.savez_compressed("taobao_train_t20.npz", X_cat=categories, X_int=np.zeros((1, 7, 21)), y=labels)
    (program,) = re.findall(r"```python\n(import numpy.*?)```", (DOCS / "logs.md").read_text(), re.DOTALL)
    exec(program, {})  # the page's own words
    found = Columns.of(Path("taobao.csv")).values
    assert found["user"] == categories[0, :, -1].tolist()
    for name, rows in (("item", categories[1]), ("category", categories[2])):
        assert found[name] == [row[row > 0].tolist() for row in rows]
    assert [len(items) for items in found["item"]] == [21, 18, 1, 20, 2, 21, 16]
