"""Each promise of the product names a test that exists, and holds it (``tests/PROMISES.md``)."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMISES = ROOT / "tests/PROMISES.md"
_TEST = re.compile(r"^def (test_\w+)\(", re.MULTILINE)
_PROMISE = re.compile(r"- (?P<text>\S.*) — `(?P<path>tests/[\w/]+\.py)::(?P<test>test_\w+)`")


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the tests of a file."""
    return frozenset(_TEST.findall(path.read_text())) if path.exists() else frozenset()


def test_each_promise_names_a_test_that_exists() -> None:
    lines = PROMISES.read_text().splitlines()
    found = [line for line in lines if line.startswith("- ")]
    matches = [_PROMISE.fullmatch(line) for line in found]
    assert [line for line, match in zip(found, matches, strict=True) if match is None] == []
    absent = [
        f"{match['path']}::{match['test']}"
        for match in matches
        if match and match["test"] not in functions_of(ROOT / match["path"])
    ]
    assert absent == [], "tests that hold promises are gone: name others, or bring them back"


def test_no_promise_stands_twice() -> None:
    texts = Counter(line.partition(" — ")[0] for line in PROMISES.read_text().splitlines())
    assert [text for text, number in texts.items() if text.startswith("- ") and number > 1] == []
