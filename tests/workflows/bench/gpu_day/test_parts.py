"""Every part of a GPU day runs on the host, without the packages that a GPU image lacks.

Tests `part`, `part_settings`, `device_verbs`, `machine`, `checks`, `movers`, `step_parts`, `speed` and the
command, `__main__`.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hotset.tests.support.late_runs import keep_slow
from hotset.train.device import StreamName
from hotset.train.gpu.simulated_device import LateDevice
from hotset.workflows.bench.gpu_day import __main__ as command
from hotset.workflows.bench.gpu_day import part
from hotset.workflows.bench.gpu_day.__main__ import _DAY_SECONDS, PARTS, _print, main
from hotset.workflows.bench.gpu_day.day import Part
from hotset.workflows.bench.gpu_day.device_verbs import try_verbs
from hotset.workflows.bench.gpu_day.part_settings import PartSettings
from hotset.workflows.bench.gpu_day.records import Records
from hotset.workflows.bench.gpu_day.speed import Memory, _fitting, _in_order, _needs, free_memory

_BLOCKED = '''
import sys

class Hiding:
    """Finds modules as another finder does, but for packages that are not there."""

    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else self._finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
'''
_OF_THE_IMAGE = ("torch", "triton", "numba", "numpy", "pyarrow", "xxhash", "safetensors", "pytest")


def packages_beyond_the_image() -> set[str]:
    """Return the installed packages that a GPU image lacks: all but a few and what these require."""
    there: set[str] = set()
    todo = ["hotset", "setuptools", "pip", *_OF_THE_IMAGE]
    while todo:
        name = canonicalize_name(todo.pop())
        if name in there:
            continue
        there.add(name)
        try:
            required = [] if name == "hotset" else [Requirement(text) for text in requires(name) or ()]
        except PackageNotFoundError:
            continue
        todo += [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]
    found = packages_distributions()
    return {package for package, names in found.items() if not there & set(map(canonicalize_name, names))}


def test_what_a_gpu_image_lacks_is_found() -> None:
    beyond = packages_beyond_the_image()
    assert {"polars", "rich", "hypothesis"} <= beyond
    assert not {"torch", "numpy", "_pytest", "llvmlite", "hotset", "jinja2"} & beyond


@pytest.mark.slow
@pytest.mark.longest
def test_a_day_without_a_gpu_finds_nothing_wrong(tmp_path: Path) -> None:
    # Processes read this file when they start, so every part lives without these packages.
    blocked = f"BLOCKED = {packages_beyond_the_image()!r}\n"
    (tmp_path / "sitecustomize.py").write_text(blocked + _BLOCKED)
    out = tmp_path / "day.json"
    root = Path(__file__).resolve().parents[5]
    command = [sys.executable, "-m", "hotset.workflows.bench.gpu_day", "--device", "late", "--small"]
    # A busy machine may take longer than a day has.
    command += ["--seconds", "800"]
    environment = {"PYTHONPATH": f"{tmp_path}:{root}", "PATH": os.environ["PATH"]}
    # Plugins of pytest are no packages of the image either; it finds them by itself.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    found = subprocess.run(
        [*command, "--out", str(out)], capture_output=True, text=True, env=environment, timeout=840
    )
    result = json.loads(out.read_text())
    assert found.returncode == 0, found.stdout + found.stderr
    assert [part["name"] for part in result["parts"]] == [part.name for part in PARTS if not part.is_extra]
    assert {part["status"] for part in result["parts"]} == {"ok"} and not result["checks_failed"]
    assert all(not part["left_out"] for part in result["parts"])
    assert len(result["checks"]) >= 1 + 7 + 2 + 2 * 7 + 1 + 30
    assert all(check["is_right"] for check in result["checks"])
    speeds = {(row["placement"], row["embedding_dim"]) for row in result["rows"] if "placement" in row}
    names = ("all-fast", "lookahead", "hot-only", "hybrid", "hybrid-dedup", "hybrid-uva", "fae", "cache")
    assert speeds == {(name, dim) for name in names for dim in (16, 64, 128)}
    assert all(row["samples_per_second"] > 0 for row in result["rows"] if "placement" in row)
    assert result["device"] and "torch" in result["facts"]["libraries"]


_IMPORT_ALL = """
import importlib
from hotset.workflows.bench.gpu_day import part
for name, (module, function, _) in part.PARTS.items():
    try:
        getattr(importlib.import_module(f"hotset.workflows.bench.gpu_day.{module}"), function)
    except ModuleNotFoundError as error:
        print(name, error.name)
"""


def run_without(package: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where a package is missing."""
    (folder / "sitecustomize.py").write_text(f"BLOCKED = {{{package!r}}}\n" + _BLOCKED)
    environment = {
        "PYTHONPATH": f"{folder}:{Path(__file__).resolve().parents[5]}",
        "PATH": os.environ["PATH"],
    }
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(("package", "wanted"), [("pytest", "tests pytest\n"), ("safetensors", "")])
def test_a_missing_package_ends_the_parts_that_need_it_and_no_other(
    package: str, wanted: str, tmp_path: Path
) -> None:
    found = run_without(package, tmp_path, "-c", _IMPORT_ALL)
    assert (found.stdout, found.stderr) == (wanted, "")


@pytest.mark.slow
def test_parts_run_where_a_package_is_missing_that_another_needs(tmp_path: Path) -> None:
    arguments = ["--device", "late", "--small", "--scratch", str(tmp_path)]
    arguments += ["--records", str(tmp_path / "records")]
    call = ["-m", "hotset.workflows.bench.gpu_day.part"]
    found = run_without("pytest", tmp_path, *call, "verbs", *arguments)
    assert found.returncode == 0, found.stderr
    checks = [json.loads(line)["check"] for line in (tmp_path / "records").read_text().splitlines()]
    assert len(checks) == 7 and all(check["is_right"] for check in checks)
    found = run_without("pytest", tmp_path, *call, "tests", *arguments)
    assert found.returncode == 1 and "No module named 'pytest'" in found.stderr


@pytest.mark.slow
def test_a_part_that_hangs_prints_where_it_is(tmp_path: Path) -> None:
    hanging = "import time; from hotset.workflows.bench.gpu_day import device_verbs as verbs, part; "
    hanging += "verbs.try_verbs = lambda *_: time.sleep(2); "
    hanging += f"part.main(['verbs', '--records', 'x', '--scratch', {str(tmp_path)!r}, '--seconds', '4'])"
    found = run_without("nothing", tmp_path, "-c", hanging)
    assert "Timeout" in found.stderr and "in <lambda>" in found.stderr


def test_an_unknown_part_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "bits,machines"])
    assert "no part machines: want some of machine, verbs, kernels, first-steps" in capsys.readouterr().err


def test_the_help_says_which_parts_are_left_out_unless_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "speed-64; left out unless named: epoch" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("arguments", "has_epoch"), [([], False), (["--only", "verbs,epoch"], True)])
def test_an_epoch_is_trained_only_where_it_is_named(
    arguments: list[str], has_epoch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def run(parts: Sequence[Part], *_: object) -> dict[str, Any]:
        begun.extend(part.name for part in parts)
        return {"rows": [], "checks": [], "parts": []}

    monkeypatch.setattr(command, "run_day", run)
    assert main([*arguments, "--out", str(tmp_path / "day.json")]) == 0
    assert ("epoch" in begun) == has_epoch and "verbs" in begun


def test_the_parts_keep_to_the_time_of_a_day() -> None:
    assert sum(part.seconds for part in PARTS) <= _DAY_SECONDS
    assert [part.name for part in PARTS if part.is_extra] == ["epoch"] == [PARTS[-1].name]
    assert all(part.seconds <= part.most_seconds for part in PARTS)
    # What is wrong is known before anything is measured, but for the rates of the machine.
    names = [part.name for part in PARTS]
    assert names[:6] == ["machine", "verbs", "kernels", "first-steps", "bits", "tests"]
    assert all(name.startswith("speed") for name in names[6:8])
    assert len(set(names)) == len(PARTS) and set(names) <= part.PARTS.keys()


def test_a_call_for_some_parts_refuses_the_file_of_another_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "day.json"
    arguments = ["--out", str(out), "--device", "late", "--small", "--seconds", "1", "--only", "bits"]
    assert main([*arguments, "--commit", "a"]) == 1
    assert "left out of bits: bits" in capsys.readouterr().out
    found = out.read_text()
    for other in (["--commit", "b"], ["--commit", "a", "--device", "cpu"]):
        with pytest.raises(SystemExit):
            main([*arguments, *other])
        assert "give another --out" in capsys.readouterr().err
    assert out.read_text() == found
    # The same settings go on.
    assert main([*arguments, "--commit", "a", "--only", "verbs"]) == 1
    assert f"make gpu-day OUT={out} ONLY=bits,verbs goes on" in capsys.readouterr().out


@pytest.mark.parametrize("is_right", [True, False])
def test_speeds_of_a_device_whose_checks_failed_are_said_to_be_so(
    is_right: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check = {"name": "equal bits", "is_right": is_right, "detail": "", "part": "bits"}
    of_bits = {"name": "bits", "status": "ok", "left_out": []}
    _print({"rows": [], "checks": [check], "parts": [of_bits]}, tmp_path)
    assert ("CHECKS FAILED in bits: all speeds are of a device" in capsys.readouterr().out) is not is_right


def test_what_is_asked_first_is_measured_first_and_all_fast_in_every_group() -> None:
    names = ["all-fast", "lookahead", "hybrid", "fae", "hot-only", "cache"]
    found = _in_order(names, [64, 16])
    assert found == [
        (["all-fast", "lookahead", "hybrid", "fae"], 64),
        (["all-fast", "lookahead", "hot-only"], 16),
        (["all-fast", "hot-only", "cache"], 64),
        (["all-fast", "hybrid", "fae", "cache"], 16),
    ]


@pytest.mark.parametrize(
    ("host", "device", "wanted"),
    [
        (90.0, 90.0, ["all-fast a b c d"]),
        # Each but all-fast takes 10 on the host, all-fast 10 on the device, and each 1 there.
        (20.0, 90.0, ["all-fast a b", "all-fast c d"]),
        (90.0, 13.0, ["all-fast a b", "all-fast c d"]),
        # A pair is tried in any case.
        (5.0, 5.0, ["all-fast a", "all-fast b", "all-fast c", "all-fast d"]),
    ],
)
def test_groups_are_divided_where_memory_does_not_hold_them(
    host: float, device: float, wanted: list[str]
) -> None:
    needs = {name: Memory(10.0, 1.0) for name in ("all-fast", *"abcd")}
    needs["all-fast"] = Memory(0.0, 11.0)
    assert [" ".join(group) for group in _fitting(needs, Memory(host, device))] == wanted


def test_a_run_needs_its_rows_on_the_host_unless_it_is_all_fast() -> None:
    rows = 1_000_000 * 4 * 128
    near, far = (_needs(name, 1_000_000, 128, 1, on_host=False) for name in ("all-fast", "hybrid"))
    assert near.host == 0 and rows < near.device < 1.1 * rows
    assert far.host == rows and far.device < 0.1 * rows
    # Without a GPU, all is in one memory.
    both = _needs("hybrid", 1_000_000, 128, 1, on_host=True)
    assert both.device == 0 and rows < both.host < 1.1 * rows
    free = free_memory(torch.device("cpu"))
    assert 0 < free.host < math.inf and free.device == math.inf


def checks_of_verbs(folder: Path) -> dict[str, bool]:
    found = folder / "verbs.jsonl"
    found.unlink(missing_ok=True)
    try_verbs(PartSettings("late:3", folder, True), Records(found, 60))
    checks = [json.loads(line)["check"] for line in found.read_text().splitlines()]
    return {check["name"]: check["is_right"] for check in checks}


@pytest.mark.parametrize(
    ("verb", "slow", "name"),
    [
        ("wait", "copies", "pinned memory is copied up and down"),
        ("wait", "compute", "a stream waits for the event of another"),
        ("capture", "moves", "work of moves is recorded and replayed"),
        ("capture", "compute", "work of compute is recorded and replayed"),
        ("pin", "moves", "kernels read and write pinned rows of the host"),
        ("close", "moves", "the device is closed"),
    ],
)
def test_a_verb_that_does_not_do_its_work_is_named(
    verb: str, slow: StreamName, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_slow(monkeypatch, slow)
    right = checks_of_verbs(tmp_path)
    assert len(right) == 7 and all(right.values())

    def refuse(*_: object) -> None:
        raise RuntimeError("an illegal address")

    monkeypatch.setattr(LateDevice, verb, refuse if verb == "close" else lambda *_: None)
    found = checks_of_verbs(tmp_path)
    assert found.keys() == right.keys() and not found[name]
