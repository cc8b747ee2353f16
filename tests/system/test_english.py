"""Sentences of the pages stay short."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += sorted((ROOT / "docs").glob("*.md"))


def sentences(page: Path) -> list[int]:
    """Numbers of words of the sentences of a page; code is one word, and tables and headings are left out."""
    text = re.sub(
        r"^```.*?^```|^(?:    |\||#|!|:::).*?$", "\n", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "", text))
    paragraphs = re.split(r"\n\s*\n|\n\s*- ", text)
    found = [each.split() for one in paragraphs for each in re.split(r"(?<=[.!?])[\s*)]+|:\n", one)]
    return [len(words) for words in found if len(words) > 2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    lengths = sentences(page)
    assert mean(lengths) <= 20 and max(lengths) <= 40
