"""The pages of the API are made from the docstrings without a warning, and have every public name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hotset

PARTS = {"nn", "torchrec"}
PUBLIC = sorted(
    {*hotset.__all__} - PARTS | {f"{part}.{name}" for part in PARTS for name in getattr(hotset, part).__all__}
)
ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_the_api_lists_every_public_name() -> None:
    page = (ROOT / "docs/python.md").read_text()
    assert sorted(line[11:] for line in page.splitlines() if line.startswith("::: hotset.")) == PUBLIC


@pytest.mark.slow
def test_the_pages_are_made_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra docs is not installed")
    # The package is found by its name, as `make docs` has it, without what else lies in a checkout.
    shutil.rmtree(ROOT / "build/package", ignore_errors=True)
    package = ROOT / "build/package/hotset"
    package.mkdir(parents=True)
    for name in ("__init__.py", "nn.py", "pipeline", "stats", "train", "workflows"):
        (package / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site/python/index.html").read_text()
    ids = [name for name in PUBLIC if f'id="hotset.{name}"' not in page]
    assert ids == []
