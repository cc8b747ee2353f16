"""``hotset export-shards``: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.workflows.cli import main


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A preprocessed log of 300 samples, a fifth of them for evaluation."""
    monkeypatch.chdir(tmp_path)
    generate(GenerateConfig(samples=300, scale=1000), tmp_path / "log.tsv", workers=1)
    words = ["preprocess", "log.tsv", "--out", "data", "--eval-fraction", "0.2", "--workers", "1", "-q"]
    assert main(words) == 0
    return "data"


def test_files_and_samples_are_named(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-shards", data, "--out", "out", "--workers", "1", "-q"]) == 0
    *files, last = capsys.readouterr().out.splitlines()
    names = ["columns.json", "test.parquet", "train.parquet"]
    assert [line.split(":")[0] for line in files] == [f"out/{name}" for name in names]
    assert last == "samples: 240 in train, 60 in test"
    assert main(["export-shards", data, "--out", "out2", "--to", "csv", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == "out2" and found["num_samples"] == {"train": 240, "test": 60}
    sizes = {file["name"]: file["num_bytes"] for file in found["files"]}
    assert sizes == {path.name: path.stat().st_size for path in Path("out2").iterdir()}


def test_a_folder_that_exists_is_refused_in_a_line(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export-shards", data, "--out", data, "-q"]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "error: data exists"
