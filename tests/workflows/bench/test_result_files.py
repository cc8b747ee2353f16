"""Each recorded result says what made it: a command of today, a machine, and a commit that exists."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hotset.workflows.commands.bench_command import BENCHES

ROOT = Path(__file__).resolve().parents[3]
RESULTS = sorted((ROOT / "workflows" / "results").glob("*.json"))
COMMANDS = BENCHES
OTHER_NAMES = {"full-kaggle": "growth", "schedule-full-kaggle": "schedule"}
"""Results whose names do not begin with that of their benchmark."""
OF_THE_MACHINE = {
    "cpu": str,
    "cores": int,
    "memory_bytes": int,
    "system": str,
    "load_average": float,
    "python": str,
    "libraries": dict,
    "hotset": str,
    "commit": str,
}


def benchmark_of(name: str) -> str | None:
    """The benchmark that a result is of: the longest whose name it begins with."""
    found = [each for each in COMMANDS if name == each or name.startswith(f"{each}-")]
    return OTHER_NAMES.get(name, max(found, key=len, default=None))


@cache
def history() -> frozenset[str]:
    """The commits before the present one; none where there is no whole history."""
    if not (ROOT / ".git").exists():
        return frozenset()
    ran = [
        subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
        for arguments in (["rev-parse", "--is-shallow-repository"], ["rev-list", "HEAD"])
    ]
    is_whole = all(each.returncode == 0 for each in ran) and ran[0].stdout.strip() == "false"
    return frozenset(ran[1].stdout.split()) if is_whole else frozenset()


@pytest.fixture(params=RESULTS, ids=lambda path: path.stem)
def result(request: pytest.FixtureRequest) -> tuple[str, Any]:
    path: Path = request.param
    return path.stem, json.loads(path.read_text())


def test_a_result_is_what_a_benchmark_of_today_records(result: tuple[str, Any]) -> None:
    name, values = result
    benchmark = benchmark_of(name)
    assert benchmark in COMMANDS, f"no benchmark is called as {name}.json begins"
    # A result that names its benchmark names that one, or the one it was run as a part of.
    assert isinstance(values, dict) and values.get("benchmark", benchmark) == benchmark
    machine = values["machine"]
    assert {key: type(machine[key]) for key in OF_THE_MACHINE} == OF_THE_MACHINE
    assert machine["cores"] >= 1 and machine["memory_bytes"] > 2**30 and machine["load_average"] >= 0
    assert values.get("commit", machine["commit"]) == machine["commit"]


def test_the_commit_of_a_result_exists(result: tuple[str, Any]) -> None:
    _, values = result
    if not history():
        pytest.skip("the whole history of git is not at hand")
    assert values["machine"]["commit"] in history()


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        ("kills", "kills"),
        ("train-kills", "train-kills"),
        ("train-2048", "train"),
        ("full-kaggle", "growth"),
        ("killsmore", None),
    ],
)
def test_the_longest_name_of_a_benchmark_counts(name: str, benchmark: str | None) -> None:
    assert benchmark_of(name) == benchmark
