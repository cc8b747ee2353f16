"""Files around the code agree with each other: CI, pre-commit, versions, pages of the site, the notebook."""

from __future__ import annotations

import ast
import json
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOTEBOOK = ROOT / "docs/examples/own_log.ipynb"


def versions(which: str) -> list[str]:
    found = subprocess.run([ROOT / "scripts/versions", which], capture_output=True, text=True, check=True)
    return found.stdout.split()


def test_the_lowest_versions_are_those_of_the_project() -> None:
    wanted = [
        each.replace(">=", "==")
        for extra in (
            PROJECT["dependencies"],
            *(PROJECT["optional-dependencies"][of] for of in ("train", "report")),
        )
        for each in extra
        if not each.startswith("torch")
    ]
    lowest = versions("lowest")
    assert [each for each in wanted if each not in lowest] == [] and versions("newest") == []
    (torch,) = re.findall(r"^torch==.*", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch in lowest


def test_ci_runs_every_python_that_the_project_names() -> None:
    named = [each[-4:] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert f"python: {json.dumps(named)}" in workflow and "run: .ci/run" in workflow


@pytest.mark.parametrize("torch", ["2.12.1 cpu", "2.13.0 cpu", "2.130.0 cpu", "2.14.0+cu130 13.0", None])
def test_torchrec_is_installed_beside_the_torch_it_fits(torch: str | None, tmp_path: Path) -> None:
    (pinned,) = re.findall(r"^torch==(\d+\.\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    # An interpreter with such a torch that installs nothing.
    python = tmp_path / "python"
    answer = "exit 1" if torch is None else f"echo {torch}"
    python.write_text(f"#!/bin/sh\ncase $1 in -c) {answer} ;; -m) echo $* ;; esac\n")
    python.chmod(0o755)
    done = subprocess.run([ROOT / "scripts/install-torchrec", python], capture_output=True, text=True)
    fits = torch is not None and torch.startswith(f"{pinned}.")
    assert done.returncode == (0 if fits else 1)
    assert ("--no-deps torchrec fbgemm-gpu-cpu" in done.stdout) == fits
    if not fits:
        name = (torch or "none").split()[0]
        assert done.stderr.startswith(
            f"error: TorchRec is installed here for torch {pinned}, and {python} has"
        )
        assert name in done.stderr and done.stderr.count("\n") == 1


def test_pre_commit_runs_the_ruff_of_the_constraints() -> None:
    pinned = re.findall(r"^ruff==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert re.findall(r"rev: v(\S+)", (ROOT / ".pre-commit-config.yaml").read_text()) == pinned


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert set(named) == pages | {"index.md", "contributing.md"} and len(named) == len(set(named))


def cells() -> list[Any]:
    """The code cells of the notebook."""
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in found if cell["cell_type"] == "code"]


def test_the_notebook_was_run_from_top_to_bottom() -> None:
    assert [cell["execution_count"] for cell in cells()] == list(range(1, len(cells()) + 1))
    assert all(cell["outputs"] for cell in cells())


@pytest.mark.slow
def test_the_notebook_gives_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in cells():
        code = ast.parse("".join(cell["source"]))
        last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else ast.parse("None").body[0]
        assert isinstance(last, ast.Expr)
        exec(compile(code, str(NOTEBOOK), "exec"), names)  # the notebook's own words
        value = eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)
        (output,) = cell["outputs"]
        if output["output_type"] == "execute_result":
            # A frame, or a list that the notebook breaks into lines.
            shown = "".join(output["data"]["text/plain"])
            assert "".join(str(value).split()) == "".join(shown.split())
    (shown_auc,) = re.findall(r"AUC (\S+)", json.dumps([cell["outputs"] for cell in cells()]))
    assert float(names["run"].summary.auc) == pytest.approx(float(shown_auc[:5]), abs=0.01)


def test_blocks_of_pages_are_run_or_skipped_for_a_reason() -> None:
    pages = runpy.run_path(str(ROOT / "scripts/run_pages.py"))
    found = {page: list(pages["blocks_of"](page)) for page in pages["PAGES"]}
    run = {page: [block for block in blocks if not block.reason] for page, blocks in found.items()}
    assert [block.kind for block in run["README.md"]] == ["sh", "toml", "python", "sh", "sh"]
    assert sum(map(len, run.values())) >= 40 and sum(map(len, found.values())) >= 60
    # Benchmarks and the GPU's page need more than a fresh environment.
    assert {page for page in found if found[page] and not run[page]} <= {
        "docs/benchmarks.md",
        "docs/from-torchrec.md",
        "docs/formats.md",
    }
    assert "run_pages.py README.md" in (ROOT / ".github/workflows/ci.yml").read_text()
