"""The fuzz benchmark runs each part by itself and reports what was judged wrongly, signals too."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench.checks.bench_fuzz import BenchFuzzConfig, bench_fuzz, num_wrong, print_bench_fuzz
from hotset.workflows.cli import main


def test_a_small_run_by_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--lines", "2000", "--fields", "0", "--files", "0", "--folders", "0", "--seed", "7", "--json"]
    assert main(["bench", "fuzz", *words]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["lines"]["inputs"] >= 2000 and result["lines"]["wrong"] == 0
    assert result["settings"]["seed"] == result["lines"]["seed"] == 7
    assert "folders" not in result and result["machine"]["cores"] > 0


def test_every_part_is_run_with_the_seed_and_what_is_wrong_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[1] != "-m":  # the machine is described by other programs
            return subprocess.CompletedProcess(command, 0, "", "")
        commands.append(command[2:])
        found: dict[str, Any] = {"inputs": 10, "wrong": 0, "seconds": 1.0, "seed": 3}
        if command[2].endswith("fuzz_lines"):
            return subprocess.CompletedProcess(command, -11, "", "")
        if command[2].endswith("fuzz_fields"):
            return subprocess.CompletedProcess(command, 1, "", "AssertionError: 1,2,3\n")
        if command[2].endswith("fuzz_folders"):
            found["wrong"] = ["folder 3, dir/plan/[x].arrow: KeyError"]
        return subprocess.CompletedProcess(command, 0, json.dumps(found), "")

    monkeypatch.setattr(subprocess, "run", run)
    result = bench_fuzz(BenchFuzzConfig(seed=3, workers=2, folders=10, files=5))
    assert [command[0].rpartition(".")[2] for command in commands] == [
        *("fuzz_lines", "fuzz_fields", "fuzz_files", "fuzz_files", "fuzz_folders")
    ]
    assert all(command[-2:] == ["--seed", "3"] for command in commands)
    parts = ("lines", "fields", "files", "files with lists", "folders")
    assert [num_wrong(result[name]) for name in parts] == [1, 1, 0, 0, 1]
    print_bench_fuzz(result, Console(width=200))
    said = capsys.readouterr().out
    assert "ended by SIGSEGV: it printed nothing" in said
    assert "ended by exit status 1: AssertionError: 1,2,3" in said
    assert "folder 3, dir/plan/[x].arrow: KeyError" in said and "seed 3" in said


def test_without_a_checkout_there_is_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="needs the tests of a checkout"):
        bench_fuzz(BenchFuzzConfig(lines=1))
