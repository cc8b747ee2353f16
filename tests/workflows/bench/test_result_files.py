"""Each recorded result says what made it: a script of today, a machine, and a commit that exists."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
RESULTS = sorted((ROOT / "workflows" / "results").glob("*.json"))
SCRIPTS = {
    "preprocess": "preprocess",
    "dlrm-preprocess": "preprocess --dlrm",
    "growth": "preprocess --growth",
    "pack-phases": "preprocess --phases",
    "full-kaggle": "preprocess --growth",
    "train": "training steps",
    "placements": "placements",
    "larger-than-memory": "training memory",
    "kills": "kills",
    "train-kills": "kills --of train",
    "train-kills-restarts": "kills --of restarts",
    "exchange": "ranks bytes",
    "replication": "ranks splits",
    "spy": "ranks spy",
    "codecs": "ranks codecs",
    "links": "ranks speed",
    "quality": "quality seeds",
    "defaults": "quality seeds",
    "torch-quality": "quality torch",
    "against-torch": "quality torch",
    "orders": "placements orders",
    "scores": "fuzz_scores",
    "open-shards": "training steps --open-files 22000",
    "window": "placements window",
    "checkouts": "processes --other",
    "first-hour": "processes",
    "examples": "quality examples",
    "engines": "ranks engines",
    "logs": "logs",
    "fuzz-logs": "fuzz_logs",
    "fuzz-text": "fuzz_text",
    "gpu-day": "gpu_day",
}
"""For each result, by the beginning of its name, what makes it today."""
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


def script_of(name: str) -> str | None:
    """The script that makes a result: that of the longest beginning of its name."""
    found = [each for each in SCRIPTS if name == each or name.startswith(f"{each}-")]
    return SCRIPTS[max(found, key=len)] if found else None


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


def test_a_result_names_its_machine_and_is_made_by_a_script(result: tuple[str, Any]) -> None:
    name, values = result
    assert script_of(name), f"no script makes {name}.json"
    if script_of(name) == "gpu_day":  # runs where few packages are installed, and names the device
        assert values["device"] and values["facts"]["libraries"]["torch"]
        return
    machine = values["machine"]
    assert {key: type(machine[key]) for key in OF_THE_MACHINE} == OF_THE_MACHINE
    assert machine["cores"] >= 1 and machine["memory_bytes"] > 2**30 and machine["load_average"] >= 0
    assert values.get("commit", machine["commit"]) == machine["commit"]


def test_the_commit_of_a_result_exists(result: tuple[str, Any]) -> None:
    _, values = result
    if not history():
        pytest.skip("the whole history of git is not at hand")
    assert values.get("machine", values)["commit"] in history()


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("kills", "kills"),
        ("train-kills", "kills --of train"),
        ("train-2048", "training steps"),
        ("killsmore", None),
    ],
)
def test_the_longest_name_counts(name: str, script: str | None) -> None:
    assert script_of(name) == script


@pytest.mark.parametrize("script", sorted({script.split()[0] for script in SCRIPTS.values()} - {"hotset"}))
def test_every_script_is_there(script: str) -> None:
    folder = "tests/fuzz" if script.startswith("fuzz") else "workflows/bench"
    assert (ROOT / folder / f"{script}.py").is_file()
