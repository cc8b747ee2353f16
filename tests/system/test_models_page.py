"""The example of docs/models.md and the commands of docs/papers.md run as they stand."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.workflows.cli import main

DOCS = Path(__file__).resolve().parents[2] / "docs"
SPEC = ShardSpec(batch_size=16, num_hot_only=40, num_mixed=90, num_evaluation=40)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder with shards in DIR and the file of the example."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("nets", "losses"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    write_shards(tmp_path / "DIR" / "shards", SPEC)
    loss, module, _ = blocks()
    (tmp_path / "losses.py").write_text(loss)
    (tmp_path / "nets.py").write_text(module)
    return tmp_path


def blocks() -> list[str]:
    """A loss, a module, and the program that trains it."""
    found = re.findall(r"```python\n(.*?)```", (DOCS / "models.md").read_text(), re.DOTALL)
    assert len(found) == 3
    return found


def test_the_program_trains_and_evaluates(folder: Path) -> None:
    names: dict[str, Any] = {}
    exec(blocks()[2], names)  # the page's own words
    assert names["again"].auc == names["run"].summary.auc
    assert type(names["module"]).__name__ == "WideAndDeep" and names["rows"].shape == (5, 4)


def test_the_commands_train_and_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(
        r"^    hotset (train DIR --model nets.*|evaluate RUN.*)$",
        (DOCS / "models.md").read_text(),
        re.MULTILINE,
    )
    assert len(lines) == 2
    for line in lines:
        assert main(shlex.split(line)) == 0
    assert "AUC" in capsys.readouterr().out


def test_the_loss_trains(folder: Path) -> None:
    (option,) = re.findall(r"^`(--loss losses:\w+)`", (DOCS / "models.md").read_text(), re.MULTILINE)
    assert main(["train", "DIR", *option.split(), "--out", "VALUES", "--max-steps", "2"]) == 0


@pytest.mark.slow
def test_the_commands_of_the_papers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    ((?:hotset|torchrun) .*)$", (DOCS / "papers.md").read_text(), re.MULTILINE)
    lines = [line.replace("1000000", "10000") for line in lines if " characterise " not in line]
    assert len(lines) == 12
    for line in lines:
        program, *words = shlex.split(line)
        if program == "hotset":
            assert main([*words]) == 0, line
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words]
            assert subprocess.run(command, timeout=600).returncode == 0, line
