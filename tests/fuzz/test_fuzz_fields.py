"""Some thousand mutated lines of separated text, the same ones in every run of the tests."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("num_lines", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_fields_are_read_as_the_naive_twins_do(num_lines: int) -> None:
    words = ["-m", "hotset.tests.fuzz.fuzz_fields", "--lines", str(num_lines), "--seed", "1"]
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert found.returncode == 0, f"{words}: {found.stderr}"
    result = json.loads(found.stdout)
    assert result["inputs"] >= num_lines and set(result["outcomes"]) == {
        "good line",
        "unclosed quote",
        *(f"{kind}: {state}" for kind in ("integer", "hex") for state in ("good", "missing", "bad")),
    }
