"""What the docs refer to is there: pages, folders and modules."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_of_the_code_exist(page: Path) -> None:
    paths = re.findall(r"\b(?:stats|pipeline|train|workflows|tests)/[\w/.-]*\w", page.read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []
