"""Some thousand mutated lines, the same ones in every run of the tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

_OUTCOMES = {
    "lines": {
        *"good field_count bad_label bad_integer integer_range bad_category nul_byte long_field".split()
    },
    "fields": {
        "good record",
        "unclosed quote",
        "trailing quote",
        *(f"{kind}: {state}" for kind in ("integer", "hex") for state in ("good", "missing", "bad")),
    },
}


@pytest.mark.parametrize("num_lines", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", _OUTCOMES)
def test_mutated_text_is_judged_as_the_naive_parsers_do(kind: str, num_lines: int) -> None:
    words = ["-m", "hotset.tests.fuzz.fuzz_text", "--kinds", kind, "--lines", str(num_lines), "--seed", "1"]
    found = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert found.returncode == 0, f"{words}: {found.stderr}"
    result = json.loads(found.stdout)[kind]
    assert result["inputs"] >= num_lines and result["outcomes"].keys() == _OUTCOMES[kind]
    assert kind == "fields" or result["outcomes"]["good"] > num_lines / 10


def test_a_read_beyond_the_guarded_text_is_a_crash() -> None:
    program = """
import ctypes
from hotset.tests.fuzz.fuzz_text import GuardedText
text = GuardedText().put(b"text")
ctypes.string_at(text.ctypes.data, 4)
print("inside", flush=True)
ctypes.string_at(text.ctypes.data, 5)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "inside\n" and found.returncode == -signal.SIGSEGV
