"""Some thousand mutated lines of separated text, the same ones in every run of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys

NUM_LINES = 2_000 if os.environ.get("NUMBA_DISABLE_JIT") == "1" else 10_000


def test_mutated_fields_are_read_as_the_naive_twins_do() -> None:
    words = ["-m", "hotset.tests.fuzz.fuzz_fields", "--lines", str(NUM_LINES), "--seed", "1"]
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert found.returncode == 0, f"{words}: {found.stderr}"
    result = json.loads(found.stdout)
    assert result["inputs"] >= NUM_LINES and set(result["outcomes"]) == {
        "good line",
        "unclosed quote",
        *(f"{kind}: {state}" for kind in ("integer", "hex") for state in ("good", "missing", "bad")),
    }
