"""Faults are drawn in one order, made where they say, and found where a test fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.tests.fuzz import mutants
from hotset.tests.fuzz.mutants import draw, judge, mutants_of

MODULE = '''"""Adds."""

LIMIT = 7


def clamp(value: int) -> int:
    """Return ``value``, at most 7."""
    seen = []
    seen.append(f"{value + 1}")
    return LIMIT if value > 6 else value
'''
TEST = '''"""Tests."""
from hotset.stats.clamp import clamp


def test_values_are_clamped():
    assert [clamp(5), clamp(6), clamp(9)] == [5, 6, 7]
'''


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one module and its test."""
    root = tmp_path / "hotset"
    for name, text in {
        "__init__.py": "",
        "stats/__init__.py": "",
        "stats/clamp.py": MODULE,
        "tests/stats/test_clamp.py": TEST,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_faults_are_made_inside_functions_alone(checkout: Path) -> None:
    found = mutants_of(checkout / "stats/clamp.py", checkout)
    assert [(mutant.kind, mutant.after) for mutant in found] == [
        ("statement", "pass"),
        ("comparison", "(value >= 6)"),
        ("constant", "7"),
    ]


def test_a_longer_draw_begins_with_a_shorter_one(checkout: Path) -> None:
    assert draw(checkout, 1, 3)[:2] == draw(checkout, 1, 2)
    assert {mutant.kind for mutant in draw(checkout, 1, 3)} == {"comparison", "constant", "statement"}


@pytest.mark.slow
def test_a_fault_is_found_where_a_test_fails(checkout: Path) -> None:
    results = {mutant.kind: judge(mutant, checkout, 60) for mutant in draw(checkout, 1, 3)}
    assert results["comparison"]["result"] == "killed" and results["comparison"]["before"] == "value > 6"
    assert results["statement"]["result"] == "survived"
    assert (checkout / "stats/clamp.py").read_text() == MODULE


def test_tests_of_a_module_are_those_of_its_name(checkout: Path) -> None:
    assert mutants.tests_of("stats/clamp.py", checkout) == ["tests/stats/test_clamp.py"]
