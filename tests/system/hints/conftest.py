"""A shell with a log, its preprocessed folder and a trained run for each case."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.tests.support.hints import Shell, hints_recorded, names_in, reached
from hotset.workflows.cli import main


@pytest.fixture(autouse=True)
def hints_of_the_case(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a case that names a place whose hint did not come."""
    with hints_recorded():
        yield
        named = set(names_in(getattr(request.function, "follows", "")))
        assert named <= reached, f"not reached: {sorted(named - reached)}"


SCHEMA = 'format = "csv"\nlabel = "click"\ndense = ["age"]\n[sparse]\ncountry = "text"\n'
LISTS = """format = "csv"
label = "label"
[sparse]
user = "integer"
item = { kind = "integer", list = true }
shop = { kind = "integer", list = true }
"""
NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, hidden=2):
        super().__init__()
        self.first = torch.nn.Linear(inputs.num_dense + inputs.total_dim, hidden)
        self.last = torch.nn.Linear(hidden, 1)

    def forward(self, dense, embeddings):
        hidden = self.first(torch.cat([dense, *embeddings.values()], dim=1))
        return self.last(hidden).squeeze(1)
"""
"""A module that can be trained; the cases put a fault into it and take it out again."""


def write_small_logs(folder: Path) -> None:
    """Write a log as CSV and as Parquet, one with histories of four elements, and their schemas."""
    numbers = range(300)
    columns = {
        "click": [number % 2 for number in numbers],
        "age": [number % 50 for number in numbers],
        "country": [f"c{number % 7}" for number in numbers],
    }
    rows = zip(*columns.values(), strict=True)
    (folder / "log.csv").write_text("click,age,country\n" + "".join(f"{a},{b},{c}\n" for a, b, c in rows))
    pq.write_table(pa.table(columns), folder / "log.parquet")
    (folder / "csv.toml").write_text(SCHEMA)
    (folder / "parquet.toml").write_text(SCHEMA.replace('"csv"', '"parquet"'))
    lines = [f"{number % 2},{number % 5},1|2|{number % 3}|4,5|6|7|{number % 4}" for number in range(61)]
    (folder / "lists.csv").write_text("\n".join(["label,user,item,shop", *lines]) + "\n")
    (folder / "lists.toml").write_text(LISTS)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``log.tsv``, ``data`` (some rows hot), ``run`` and small files; for copying only."""
    folder = tmp_path_factory.mktemp("hints")
    write_small_logs(folder)
    (folder / "nets.py").write_text(NET)
    generate(GenerateConfig(samples=600, seed=1, scale=100), folder / "log.tsv", workers=1)
    data = str(folder / "data")
    quiet = ["-q", "--workers", "1"]
    preprocess = ["preprocess", str(folder / "log.tsv"), "--out", data, "--hot-bytes", "64KiB"]
    assert main([*preprocess, "--batch-size", "128", *quiet]) == 0
    assert main(["train", data, "--out", str(folder / "run"), "--threads", "1", "-q"]) == 0
    return folder


@pytest.fixture
def shell(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shell]:
    """A shell in a copy of `prepared`."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    # Of a run, to import a user's module.
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = Shell(tmp_path, capsys)
    yield made
    made.patch.undo()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the cases to the slow run; that each hint has one is asked in every run."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.path.name != "test_hints.py":
            item.add_marker(pytest.mark.slow)
