"""The programs of README and docs/python.md and the examples of docstrings run as they stand."""

from __future__ import annotations

import gzip
import inspect
import re
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import hotset
from hotset.pipeline.generate.generate import GenerateConfig, generate

PAGE = Path(__file__).resolve().parents[2] / "docs/python.md"


def run_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the first program on a generated log, the name of whose module is that of no file."""
    generate(GenerateConfig(samples=800, seed=1, scale=1000), folder / "log.tsv", workers=1)
    (folder / "log.tsv.gz").write_bytes(gzip.compress((folder / "log.tsv").read_bytes()))
    monkeypatch.chdir(folder)
    program = blocks()[0]
    names: dict[str, Any] = {"__name__": "page"}
    exec(program, names)  # the page's own words
    return names


def blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == 5
    return found


def test_the_page_names_every_public_function() -> None:
    assert [name for name in hotset.__all__ if f"hotset.{name}" not in PAGE.read_text()] == []


def test_the_program_runs_up_to_its_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exported: list[Any] = []
    monkeypatch.setattr(hotset, "export", lambda *given, **named: exported.append((given, named)))
    names = run_program(tmp_path, monkeypatch)
    assert names["scores"].height == 800 and names["scores"]["probability"].is_between(0, 1).all()
    assert "AUC 0." in capsys.readouterr().out
    assert exported == [((names["run"], "exported"), {"onnx": True})]


def test_the_program_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (PAGE.parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (schema,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "clicks.toml").write_text(schema)
    rng = np.random.default_rng(0)
    columns = {
        "clicked": rng.integers(0, 2, 6000),
        "ts": (np.arange(6000) + 1_700_000_000_000).astype("datetime64[ms]"),
        "price": rng.integers(0, 90, 6000),
        "user": rng.zipf(1.3, 6000) % 200,
        "item": rng.zipf(1.2, 6000) % 300,
        "site": rng.choice(["a", "b", "c"], 6000),
    }
    pl.DataFrame(columns).write_parquet(tmp_path / "clicks.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    exec(program, names)  # the page's own words
    assert names["scores"].height == 6000 and "AUC 0." in capsys.readouterr().out


def examples() -> dict[str, str]:
    """The example of each public function."""
    public = [*hotset.__all__, "nn.Embeddings"]
    found = {name: inspect.getdoc(attrgetter(name)(hotset)) or "" for name in public}
    codes = {name: re.search(r"Example:\n\s+``(.*?)``\n?$", text, re.DOTALL) for name, text in found.items()}
    return {name: code[1] for name, code in codes.items() if code}


@pytest.mark.parametrize("is_export", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_examples_of_docstrings_run_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_export: bool
) -> None:
    order = (
        "preprocess",
        "statistics",
        "Shards",
        "nn.Embeddings",
        "fit",
        "evaluate",
        "predict",
        "load_model",
        "export",
    )
    assert examples().keys() == set(order)
    monkeypatch.chdir(tmp_path)
    generate(GenerateConfig(samples=400, seed=1, scale=1000), tmp_path / "train.tsv", workers=1)
    names: dict[str, Any] = {"hotset": hotset}
    for name in order if is_export else order[:-1]:
        exec(examples()[name], names)  # the docstring's own words
    assert names["batch"]["label"].size == 343 and names["scores"].len() == 400
    assert isinstance(names["dense_layers"], torch.nn.Module)


def test_the_loop_of_ones_own_gets_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(GenerateConfig(samples=300, scale=1000), tmp_path / "log.tsv", workers=1)
    monkeypatch.chdir(tmp_path)
    hotset.preprocess("log.tsv", "data", batch_size=64)
    names: dict[str, Any] = {}
    # Workers are forked processes, which other tests of the dataset start.
    exec(blocks()[2].replace("num_workers=2", "num_workers=0"), names)
    assert len(names["dataset"]) == 5 and names["epoch"] == 1
    assert len(names["ids"]) == len(names["label"]) == len(names["dense"])

    # The same loop with rows of its own ends with a checkpoint and scores.
    exec(blocks()[3], names)
    assert sum(len(logits) for logits in names["valid"]) == 42
    kept = torch.load("checkpoint.pt")["rows"]
    assert kept["C3.weight"].shape == kept["C3.state"].shape and kept["C3.state"].any()


@pytest.mark.slow
def test_the_programs_run_to_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    names = run_program(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "serving_inputs", raising=False)
    exec(blocks()[1], names)
    np.testing.assert_allclose(names["served"], names["scores"]["probability"].to_numpy()[:100], atol=1e-5)
