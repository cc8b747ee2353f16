"""A log and its shards for the tests of commands, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.workflows.cli import main


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated log of 1,500 lines, for reading only."""
    path = tmp_path_factory.mktemp("logs") / "log.tsv"
    generate(GenerateConfig(samples=1500, seed=1, scale=100), path, workers=1)
    return path


@pytest.fixture(scope="session")
def data(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log preprocessed to shards, for reading only."""
    out = tmp_path_factory.mktemp("data") / "dir"
    arguments = ["preprocess", str(log), "--out", str(out), "--hot-bytes", "64KiB", "--batch-size", "128"]
    assert main([*arguments, "--embedding-dim", "4"]) == 0
    return out
