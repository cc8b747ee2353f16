"""Some mutated files in every run of the tests, other ones each time; and that a fault is not overlooked."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.fuzz import fuzz_files
from hotset.tests.fuzz.fuzz_files import Fuzzer, mutate_bytes, mutate_parts, reseal

NUM_FILES = 10 if os.environ.get("NUMBA_DISABLE_JIT") == "1" else 30


def test_mutated_files_are_read_rightly_or_refused() -> None:
    result = fuzz_files.fuzz_files(NUM_FILES, random.randrange(10**9))
    assert result["wrong"] == [], result["seed"]
    assert result["inputs"] == NUM_FILES and result["outcomes"]["verify: refused"] > NUM_FILES / 2


def test_mutated_files_of_a_log_with_lists_are_read_rightly_or_refused() -> None:
    result = fuzz_files.fuzz_files(NUM_FILES, random.randrange(10**9), lists=True)
    assert result["wrong"] == [], result["seed"]
    assert result["inputs"] == NUM_FILES and result["outcomes"]["verify: refused"] > NUM_FILES / 2


def test_a_reader_that_crashes_is_counted_and_the_next_file_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import os, sys
from hotset.tests.fuzz import fuzz_files
run = fuzz_files.Fuzzer.run
def crash(self, number):
    if number == 1:
        os.abort()
    return run(self, number)
fuzz_files.Fuzzer.run = crash
sys.argv[0] = "fuzz_files"
fuzz_files.main()
"""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([command[0], "-c", program, *command[3:]], **options)

    monkeypatch.setattr("subprocess.Popen", start)
    result = fuzz_files.fuzz_files(3, 0)
    assert result["wrong"] == ["file 1: the process ended with -6"] and result["inputs"] == 2


def test_other_data_that_verify_does_not_see_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuzzer = Fuzzer(tmp_path, 0)
    assert all(fuzzer._judge(name, read) == "right" for name, read in fuzzer.readers.items())
    fuzzer.readers = {"read_batch": lambda path: "other", "verify": lambda path: []}
    outcomes = [fuzzer.run(number) for number in range(10)]
    wrong = [found for found in outcomes if found["outcomes"]["verify"].startswith("wrong")]
    assert wrong and all(not found["is_resealed"] for found in wrong)
    fuzzer.readers = {"read_batch": lambda path: 1 // 0, "verify": lambda path: []}
    assert fuzzer.run(1)["outcomes"]["read_batch"].startswith("wrong: ZeroDivisionError")


def test_a_manifest_that_was_sealed_again_has_the_checksum_that_fits(tmp_path: Path) -> None:
    fuzzer = Fuzzer(tmp_path, 0)
    reseal(fuzzer.dir / "plan", lambda parts: parts["totals"].clear())
    assert Manifest.read(fuzzer.dir / "plan").totals == {}


def test_equal_seeds_mutate_equally() -> None:
    whole, parts = bytes(range(256)) * 20, {"a": [1, 2, {"b": 3}], "c": "d"}
    made = [mutate_bytes(whole, random.Random(seed)) for seed in [*range(30)] * 2]
    assert made[:30] == made[30:] and len(set(made)) > 25
    copies = [{"a": [1, 2, {"b": 3}], "c": "d"} for _ in range(20)]
    for seed, copy in enumerate(copies):
        mutate_parts(copy, random.Random(seed))
    assert sum(copy != parts for copy in copies) > 15
