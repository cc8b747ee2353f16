"""The programs of docs/python.md run as they stand: from a raw log to predictions in ONNX Runtime."""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotset
from hotset.pipeline.generate.generate_log import GenerateConfig, generate

PAGE = Path(__file__).resolve().parents[2] / "docs/python.md"


def run_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the first program on a generated log, the name of whose module is that of no file."""
    generate(GenerateConfig(samples=800, seed=1, scale=1000), folder / "log.tsv", workers=1)
    (folder / "log.tsv.gz").write_bytes(gzip.compress((folder / "log.tsv").read_bytes()))
    monkeypatch.chdir(folder)
    program, _ = blocks()
    names: dict[str, Any] = {"__name__": "page"}
    exec(program, names)  # the page's own words
    return names


def blocks() -> list[str]:
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == 2
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
