"""A GPU day goes on whatever becomes of a part, keeps what each has found, and runs on the host."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import hotset
from hotset.workflows.bench import gpu_day
from hotset.workflows.bench.gpu_day import PARTS, DaySettings, Part, Records, left_out_of, main, run_day

PACKAGES = Path(hotset.__file__).parents[1]
_PART = """
import json, os, subprocess, sys, time
name, path = sys.argv[1], sys.argv[sys.argv.index("--records") + 1]
if name == "hangs":
    # Noted before anything is imported, which takes any time on a busy machine.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(path, "a") as records:
        print(json.dumps({{"fact": {{"child": child.pid}}}}), file=records)
        print(json.dumps({{"check": {{"name": "hangs", "is_right": True, "detail": ""}}}}), file=records)
        records.write('{{"row": {{"trunc')
    time.sleep(600)
sys.path.insert(0, {root!r})
from pathlib import Path
from hotset.workflows.bench.gpu_day import Records
records = Records(Path(path), 9)
print("this is", name, flush=True)
records.check(name, True)
if name == "has pieces":
    done = json.loads(sys.argv[sys.argv.index("--done") + 1])
    records = Records(Path(path), 60, done)
    for piece in records.pieces(["first", "second", "third"]):
        records.row(piece=piece)
        if piece == "second" and not done:
            os.abort()
if name == "crashes":
    records.row(placement="lookahead", samples_per_second=3.5)
    os.abort()
if name in ("bits", "tests"):
    records.check("equal bits", name != sys.argv[sys.argv.index("--device") + 1])
if name == "fails":
    raise ZeroDivisionError("a kernel")
records.fact(device="a card")
"""
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
_IN_ONE_PROCESS = """
import subprocess, sys, types
from hotset.workflows.bench import gpu_day

class Process:
    pid = 1 << 30  # which no process has

    def __init__(self, command, **_):
        self.status = gpu_day.run_part(command[command.index("part") + 1 :])

    def wait(self, timeout=0.0):
        return self.status

    def kill(self):
        pass

gpu_day.subprocess = types.SimpleNamespace(**vars(subprocess) | {"Popen": Process})
sys.exit(gpu_day.main())
"""
"""A day whose parts run in its own process: to import torch for each takes as long as a third of them."""
_OF_THE_IMAGE = ("torch", "triton", "numba", "numpy", "pyarrow", "xxhash", "safetensors", "pytest")


def part(name: str, seconds: float = 5.0, most_seconds: float = 60.0, *, is_extra: bool = False) -> Part:
    return Part(name, seconds, most_seconds, "", is_extra=is_extra)


@pytest.fixture
def parts_that_misbehave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are a script of this test instead of the module's own."""
    script = tmp_path / "part.py"
    script.write_text(_PART.format(root=str(PACKAGES)))
    launcher = tmp_path / "launch"
    # What the day starts as ``python -m hotset…gpu_day part NAME …`` becomes ``python part.py NAME …``.
    launcher.write_text(f'#!/bin/sh\nshift 3\nexec "{sys.executable}" "{script}" "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(launcher))


@pytest.mark.slow
@pytest.mark.usefixtures("parts_that_misbehave")
def test_a_part_that_ends_badly_is_named_and_the_next_one_begins(tmp_path: Path) -> None:
    names = ("crashes", "hangs", "fails", "ends well")
    parts = [part(name, most_seconds=gpu_day._LEAST_SECONDS if name == "hangs" else 60.0) for name in names]
    lines: list[str] = []
    out = tmp_path / "day.json"
    result = run_day(parts, DaySettings(device="cpu"), out, tmp_path, lines.append)
    assert [part["status"] for part in result["parts"]] == ["failed", "timeout", "failed", "ok"]
    # What a part wrote before it ended counts, but for the record that a kill truncated.
    assert [check["name"] for check in result["checks"]] == list(names)
    assert result["rows"] == [{"placement": "lookahead", "samples_per_second": 3.5, "part": "crashes"}]
    # None of them names the pieces of its work, so all of a part that ended badly is left out.
    assert left_out_of(result) == {name: [name] for name in names[:-1]}
    assert result["device"] == "a card"
    outputs = {part["name"]: part["output"] for part in result["parts"]}
    assert "this is crashes" in outputs["crashes"] and "ZeroDivisionError: a kernel" in outputs["fails"]
    assert outputs["ends well"] == ""
    assert json.loads(out.read_text()) == result and len(lines) == 4
    # What the part that hung had started is gone with it.
    child = Path(f"/proc/{result['facts']['child']}/stat")
    assert not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.usefixtures("parts_that_misbehave")
def test_without_time_a_part_is_not_begun(tmp_path: Path) -> None:
    settings = DaySettings(device="cpu", seconds=4.0)
    result = run_day([part("ends well", 60.0)], settings, tmp_path / "day.json", tmp_path, print)
    assert [part["status"] for part in result["parts"]] == ["not begun"] and result["checks"] == []
    assert left_out_of(result) == {"ends well": ["ends well"]}


@pytest.mark.slow
@pytest.mark.usefixtures("parts_that_misbehave")
@pytest.mark.parametrize("wrong", ["tests", "bits", "none"])
def test_a_result_says_whether_a_check_of_the_device_failed(
    wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "day.json"
    parts = [part(name) for name in ("bits", "tests", "ends well")]
    result = run_day(parts, DaySettings(device=wrong), out, tmp_path, print)
    assert json.loads(out.read_text())["checks_failed"] is (wrong != "none")
    assert gpu_day.failed_parts(result) == [name for name in ("bits", "tests") if name == wrong]
    # What comes behind is measured all the same.
    assert [part["status"] for part in result["parts"]] == ["ok"] * 3
    gpu_day._print(result, out)
    warning = f"CHECKS FAILED in {wrong}: all speeds are of a device"
    assert (warning in capsys.readouterr().out) is (wrong != "none")


@pytest.mark.parametrize(("status", "is_failed"), [("ok", False), ("failed", True), ("timeout", False)])
def test_a_part_that_checks_and_breaks_counts_as_a_check_that_failed(status: str, is_failed: bool) -> None:
    parts = [{"name": name, "status": status} for name in ("bits", "speed-16")]
    assert gpu_day.failed_parts({"parts": parts, "checks": []}) == ["bits"] * is_failed


@pytest.mark.parametrize(
    ("left", "wanted"),
    [
        (100.0, 60.0),  # its own share, as the parts behind it have theirs
        (130.0, 90.0),  # with what those before have left
        (400.0, 120.0),
        (30.0, -10.0),
    ],
)
def test_a_part_takes_no_time_of_those_behind_it(left: float, wanted: float) -> None:
    later = [part("bits", 30.0, 300.0), part("tests", 10.0, 300.0)]
    kernels = part("kernels", 60.0, 120.0)
    assert gpu_day._limit(kernels, later, left, DaySettings()) == wanted
    # Where a day is only tried, on a slow machine, each takes what it needs.
    assert gpu_day._limit(kernels, later, left, DaySettings(is_small=True)) == min(left, 240.0)
    # One that was asked for by name has a time of its own.
    assert gpu_day._limit(part("epoch", 0.0, 500.0, is_extra=True), [], left, DaySettings()) == 500.0


@pytest.mark.slow
@pytest.mark.usefixtures("parts_that_misbehave")
def test_a_second_call_does_what_the_first_has_left_out(tmp_path: Path) -> None:
    out = tmp_path / "day.json"
    parts = [part("has pieces"), part("ends well")]
    first = run_day(parts, DaySettings(device="cpu"), out, tmp_path, print)
    assert left_out_of(first) == {"has pieces": ["second", "third"]}
    assert [row["piece"] for row in first["rows"]] == ["first", "second"]
    (tmp_path / "again").mkdir()
    second = run_day(parts, DaySettings(device="cpu"), out, tmp_path / "again", print, first)
    assert left_out_of(second) == {}
    # What was found before stays, but for the part that had left out nothing, which was run anew.
    assert [row["piece"] for row in second["rows"]] == ["first", "second", "second", "third"]
    names = [(check["part"], check["name"]) for check in second["checks"]]
    assert names == [("has pieces", "has pieces")] * 2 + [("ends well", "ends well")]
    assert [part["name"] for part in second["parts"]] == ["has pieces", "ends well"]
    assert json.loads(out.read_text()) == second


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records").read_text().splitlines()]


def test_records_keep_what_comes_behind_an_error_and_no_number_that_json_does_not_know(
    tmp_path: Path,
) -> None:
    records = Records(tmp_path / "records", 5.0)
    with records.catching("steps"):
        raise ZeroDivisionError("a kernel")
    records.check("bits", True)
    records.row(speed=math.inf, name="x")
    first, *others = written(tmp_path)
    assert first["check"]["name"] == "steps" and not first["check"]["is_right"]
    assert first["check"]["detail"].endswith("ZeroDivisionError: a kernel\n")
    check = {"name": "bits", "is_right": True, "detail": ""}
    assert others == [{"check": check}, {"row": {"speed": None, "name": "x"}}]
    assert 0 < records.seconds_left <= 5.0


def test_pieces_are_done_while_there_is_time_and_those_of_an_earlier_call_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    records = Records(tmp_path / "records", 10.0, done=["a"])
    begun = []
    for piece in records.pieces(["a", "b", "c", "d", "e"]):
        begun.append(piece)
        now += 4.0
    # The third would end at 12 seconds.
    assert begun == ["b", "c"]
    done = [{"done": {"name": name}} for name in "bc"]
    assert written(tmp_path) == [{"pieces": {"names": ["a", "b", "c", "d", "e"]}}, *done]


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
    # Another test may have imported setuptools, which puts its own copies of packages on the path.
    with patch.object(sys, "path", [path for path in sys.path if not path.endswith("_vendor")]):
        found = packages_distributions()
    return {package for package, names in found.items() if not there & set(map(canonicalize_name, names))}


def run_without(packages: set[str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where some packages are missing: processes read this file when they start."""
    (folder / "sitecustomize.py").write_text(f"BLOCKED = {packages!r}\n" + _BLOCKED)
    environment = {"PYTHONPATH": f"{folder}:{PACKAGES}", "PATH": os.environ["PATH"]}
    # Plugins of pytest are no packages of the image either; it finds them by itself.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=840
    )


@pytest.mark.slow
@pytest.mark.longest
def test_a_day_without_a_gpu_finds_nothing_wrong(tmp_path: Path) -> None:
    beyond = packages_beyond_the_image()
    assert {"polars", "rich", "hypothesis"} <= beyond
    assert not {"torch", "numpy", "_pytest", "llvmlite", "hotset", "jinja2"} & beyond
    out = tmp_path / "day.json"
    # A busy machine may take longer than a day has.
    options = ["--device", "late", "--small", "--seconds", "800", "--out", str(out)]
    # One width stands for all: a part has nothing else of its own.
    names = [part.name for part in PARTS if not part.is_extra and part.name not in ("speed-64", "speed-128")]
    options += ["--only", ",".join(names)]
    found = run_without(beyond, tmp_path, "-c", _IN_ONE_PROCESS, *options)
    result = json.loads(out.read_text())
    said = [part["output"][-2000:] for part in result["parts"] if part["status"] != "ok"]
    assert found.returncode == 0, "\n".join([found.stdout, found.stderr, *said])
    assert [part["name"] for part in result["parts"]] == names
    assert {part["status"] for part in result["parts"]} == {"ok"} and not result["checks_failed"]
    assert all(not part["left_out"] for part in result["parts"])
    assert len(result["checks"]) >= 1 + 7 + 1 + 2 * 7 + 1 + 10
    assert all(check["is_right"] for check in result["checks"])
    speeds = {(row["placement"], row["embedding_dim"]) for row in result["rows"] if "placement" in row}
    placements = ("all-fast", "lookahead", "hot-only", "hybrid", "hybrid-dedup", "hybrid-uva", "fae", "cache")
    assert speeds == {(name, 16) for name in placements}
    assert all(row["samples_per_second"] > 0 for row in result["rows"] if "placement" in row)
    assert result["device"] and "torch" in result["facts"]["libraries"]


@pytest.mark.slow
def test_a_missing_package_ends_the_parts_that_need_it_and_no_other(tmp_path: Path) -> None:
    words = ["part", "tests", "--device", "late", "--small", "--scratch", str(tmp_path)]
    words += ["--records", str(tmp_path / "records")]
    program = "import importlib; from hotset.workflows.bench import gpu_day\n"
    program += "for part in (*gpu_day.PARTS, *gpu_day._INNER):\n"
    program += "    module, name = part.function.split('.')\n"
    program += "    getattr(importlib.import_module(f'hotset.workflows.bench.{module}'), name)\n"
    program += f"print('all are there'); gpu_day.main({words!r})"
    found = run_without({"pytest", "safetensors"}, tmp_path, "-c", program)
    assert found.returncode == 1 and found.stdout == "all are there\n", found.stderr
    assert found.stderr.endswith("No module named 'pytest'\n")


@pytest.mark.slow
def test_a_part_that_hangs_prints_where_it_is(tmp_path: Path) -> None:
    hanging = "import time, types; from hotset.workflows.bench import gpu_day\n"
    hanging += "module = types.SimpleNamespace(try_verbs=lambda *_: time.sleep(2))\n"
    hanging += "gpu_day.importlib = types.SimpleNamespace(import_module=lambda *_: module)\n"
    words = ["part", "verbs", "--records", "x", "--scratch", str(tmp_path), "--seconds", "4"]
    found = run_without(set(), tmp_path, "-c", f"{hanging}gpu_day.main({words!r})")
    assert "Timeout" in found.stderr and "in <lambda>" in found.stderr


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["--only", "bits,machines"], "no part machines: want some of machine, verbs, kernels, first-steps"),
        (["--help"], "speed-64; left out unless named: caches, epoch"),
    ],
)
def test_parts_are_named(arguments: list[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    said = capsys.readouterr()
    assert printed in " ".join((said.out + said.err).split())


@pytest.mark.parametrize(("arguments", "has_extra"), [([], False), (["--only", "verbs,caches,epoch"], True)])
def test_an_epoch_and_caches_are_measured_only_where_they_are_named(
    arguments: list[str], has_extra: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def run(parts: Sequence[Part], *_: object) -> dict[str, Any]:
        begun.extend(part.name for part in parts)
        return {"rows": [], "checks": [], "parts": []}

    monkeypatch.setattr(gpu_day, "run_day", run)
    assert main([*arguments, "--out", str(tmp_path / "day.json")]) == 0
    assert ("epoch" in begun) == ("caches" in begun) == has_extra and "verbs" in begun


def test_a_device_is_not_replaced_by_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path / "fifo"), "--seconds", "0"])
    assert "fifo is not a regular file" in capsys.readouterr().err and (tmp_path / "fifo").is_fifo()


def test_the_parts_keep_to_the_time_of_a_day() -> None:
    assert sum(part.seconds for part in PARTS) <= gpu_day._DAY_SECONDS
    assert [part.name for part in PARTS if part.is_extra] == ["caches", "epoch"]
    assert not any(part.is_extra for part in PARTS[:-2])
    assert all(part.seconds <= part.most_seconds for part in PARTS)
    # What is wrong is known before anything is measured, but for the rates of the machine.
    names = [part.name for part in PARTS]
    assert names[:6] == ["machine", "verbs", "kernels", "first-steps", "bits", "tests"]
    assert all(name.startswith("speed") for name in names[6:8]) and len(set(names)) == len(PARTS)


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
