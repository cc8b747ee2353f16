"""Some mutated files, the same ones in every run of the tests; and that a fault is not overlooked."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.fuzz import fuzz_files
from hotset.tests.fuzz.fuzz_files import Fuzzer, mutate_bytes, mutate_parts, reseal


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    """A fuzzer of one preprocessed folder, for tests that put it back as it was."""
    return Fuzzer(tmp_path_factory.mktemp("fuzzed"), 0)


@pytest.fixture(scope="module")
def fuzzer_of_lists(tmp_path_factory: pytest.TempPathFactory) -> Fuzzer:
    """The same of a log with lists, floats and texts."""
    return Fuzzer(tmp_path_factory.mktemp("fuzzed lists"), 1, lists=True)


def test_some_mutated_files_are_read_rightly_or_refused(fuzzer_of_lists: Fuzzer) -> None:
    found = [fuzzer_of_lists.run(number)["outcomes"] for number in range(4)]
    assert [each for each in found if any(outcome.startswith("wrong") for outcome in each.values())] == []
    assert any(each["verify"] == "refused" for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("lists", [False, True])
def test_mutated_files_are_read_rightly_or_refused(lists: bool) -> None:
    result = fuzz_files.fuzz_files(40, 1, lists=lists)
    assert result["wrong"] == [], result["seed"]
    assert result["inputs"] == 40 and result["outcomes"]["verify: refused"] >= 10


@pytest.mark.slow
def test_a_reader_that_crashes_is_counted_and_the_next_file_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    program = """
import os, sys
from hotset.tests.fuzz import fuzz_files
class Crashing:
    def __init__(self, folder, seed, *, lists):
        (folder / "whole").mkdir(exist_ok=True)
    def run(self, number):
        if number == 0:
            os.abort()
        return {"path": "log", "kind": "stage", "is_resealed": False, "outcomes": {"verify": "refused"}}
fuzz_files.Fuzzer = Crashing
sys.argv[0] = "fuzz_files"
fuzz_files.main()
"""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        return popen([command[0], "-c", program, *command[3:]], **options)

    monkeypatch.setattr("subprocess.Popen", start)
    result = fuzz_files.fuzz_files(2, 0)
    assert result["wrong"] == ["file 0: the process ended with -6"] and result["inputs"] == 1


@pytest.mark.slow
def test_other_data_that_verify_does_not_see_are_wrong(
    fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(fuzzer._judge(name, read) == "right" for name, read in fuzzer.readers.items())
    readers = {"read_batch": lambda path: "other", "verify": lambda path: []}
    monkeypatch.setattr(fuzzer, "readers", readers)
    outcomes = [fuzzer.run(number) for number in range(10)]
    wrong = [found for found in outcomes if found["outcomes"]["verify"].startswith("wrong")]
    assert wrong and all(not found["is_resealed"] for found in wrong)
    readers["read_batch"] = lambda path: str(1 // 0)
    assert fuzzer.run(1)["outcomes"]["read_batch"].startswith("wrong: ZeroDivisionError")


def test_a_manifest_that_was_sealed_again_has_the_checksum_that_fits(
    fuzzer_of_lists: Fuzzer, tmp_path: Path
) -> None:
    shutil.copytree(fuzzer_of_lists.dir / "plan", tmp_path / "plan")
    reseal(tmp_path / "plan", lambda parts: parts["totals"].clear())
    assert Manifest.read(tmp_path / "plan").totals == {}


def test_equal_seeds_mutate_equally() -> None:
    whole = bytes(range(256)) * 20
    parts = {"a": [1, 2, {"b": 3}], "c": "d"}
    made = [mutate_bytes(whole, random.Random(seed)) for seed in [*range(30)] * 2]
    assert made[:30] == made[30:] and len(set(made)) > 25
    copies = [{"a": [1, 2, {"b": 3}], "c": "d"} for _ in range(20)]
    for seed, copy in enumerate(copies):
        mutate_parts(copy, random.Random(seed))
    assert sum(copy != parts for copy in copies) > 15
