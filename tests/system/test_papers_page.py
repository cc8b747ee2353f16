"""The commands of docs/papers.md run one after another, on a smaller log."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.workflows.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs/papers.md"


@pytest.mark.slow
def test_the_commands_of_the_papers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    ((?:hotset|torchrun) .*)$", PAGE.read_text(), re.MULTILINE)
    lines = [line.replace("1000000", "60000") for line in lines if " characterise " not in line]
    assert len(lines) == 12
    for line in lines:
        program, *words = shlex.split(line)
        if program == "hotset":
            assert main([*words]) == 0, line
        else:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words]
            assert subprocess.run(command, timeout=600).returncode == 0, line
