"""A GPU day goes on whatever becomes of a part, and keeps what each has found.

Tests `records` and `part_settings`, too.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import pytest

from hotset.workflows.bench.gpu_day import day
from hotset.workflows.bench.gpu_day.day import DaySettings, Part, left_out_of, run_day
from hotset.workflows.bench.gpu_day.records import Records

_PART = """
import json, os, subprocess, sys, time
if sys.argv[1] == "hangs":
    # Noted at once: nobody knows how much of its time a busy machine takes to import anything.
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(sys.argv[sys.argv.index("--records") + 1], "a") as records:
        print(json.dumps({{"fact": {{"child": child.pid}}}}), file=records)
        print(json.dumps({{"check": {{"name": "hangs", "is_right": True, "detail": ""}}}}), file=records)
    time.sleep(600)
sys.path.insert(0, {root!r})
from pathlib import Path
from hotset.workflows.bench.gpu_day.records import Records
name, path = sys.argv[1], Path(sys.argv[sys.argv.index("--records") + 1])
records = Records(path, 9)
print("this is", name, flush=True)
records.check(name, True)
if name == "has pieces":
    done = json.loads(sys.argv[sys.argv.index("--done") + 1])
    records = Records(path, 60, done)
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
if name == "rubbish":
    path.open("a").write('{{"row": 7}}\\n[1]\\nnonsense\\n')
records.fact(device="a card")
"""


@pytest.fixture
def parts_that_misbehave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are a script of this test instead of the module's own."""
    script = tmp_path / "part.py"
    script.write_text(_PART.format(root=str(Path(day.__file__).parents[4])))
    launcher = tmp_path / "launch"
    # What the day starts as ``python -m hotset…part NAME …`` becomes ``python part.py NAME …``.
    launcher.write_text(f'#!/bin/sh\nshift 2\nexec "{sys.executable}" "{script}" "$@"\n')
    launcher.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(launcher))


@pytest.mark.slow
@pytest.mark.usefixtures("parts_that_misbehave")
def test_a_part_that_ends_badly_is_named_and_the_next_one_begins(tmp_path: Path) -> None:
    names = ("crashes", "hangs", "fails", "rubbish", "ends well")
    parts = [Part(name, 5.0, 6.0 if name == "hangs" else 60.0) for name in names]
    lines: list[str] = []
    out = tmp_path / "day.json"
    result = run_day(parts, DaySettings(device="cpu"), out, tmp_path, lines.append)
    assert [part["status"] for part in result["parts"]] == ["failed", "timeout", "failed", "rubbish", "ok"]
    # What a part wrote before it ended counts.
    assert [check["name"] for check in result["checks"]] == list(names)
    assert result["rows"] == [{"placement": "lookahead", "samples_per_second": 3.5, "part": "crashes"}]
    # None of them names the pieces of its work, so all of a part that ended badly is left out.
    assert left_out_of(result) == {name: [name] for name in names[:-1]}
    assert result["device"] == "a card"
    outputs = {part["name"]: part["output"] for part in result["parts"]}
    assert "this is crashes" in outputs["crashes"] and "ZeroDivisionError: a kernel" in outputs["fails"]
    assert outputs["rubbish"].count("no record: ") == 3 and outputs["ends well"] == ""
    assert json.loads(out.read_text()) == result and len(lines) == 5
    # What the part that hung had started is gone with it.
    child = Path(f"/proc/{result['facts']['child']}/stat")
    assert not child.exists() or child.read_text().rsplit(")", 1)[1].split()[0] == "Z"


@pytest.mark.usefixtures("parts_that_misbehave")
def test_without_time_a_part_is_not_begun(tmp_path: Path) -> None:
    settings = DaySettings(device="cpu", seconds=4.0)
    result = run_day([Part("ends well", 60.0, 60.0)], settings, tmp_path / "day.json", tmp_path, print)
    assert [part["status"] for part in result["parts"]] == ["not begun"] and result["checks"] == []
    assert left_out_of(result) == {"ends well": ["ends well"]}


@pytest.mark.slow
@pytest.mark.usefixtures("parts_that_misbehave")
@pytest.mark.parametrize("wrong", ["tests", "bits", "none"])
def test_a_result_says_whether_a_check_of_the_device_failed(wrong: str, tmp_path: Path) -> None:
    parts = [Part(name, 5.0, 60.0) for name in ("bits", "tests", "ends well")]
    out = tmp_path / "day.json"
    result = run_day(parts, DaySettings(device=wrong), out, tmp_path, print)
    assert json.loads(out.read_text())["checks_failed"] is (wrong != "none")
    assert day.failed_parts(result) == [name for name in ("bits", "tests") if name == wrong]
    # What comes behind is measured all the same.
    assert [part["status"] for part in result["parts"]] == ["ok"] * 3


@pytest.mark.parametrize(
    ("status", "is_failed"), [("ok", False), ("failed", True), ("rubbish", True), ("timeout", False)]
)
def test_a_part_that_checks_and_breaks_counts_as_a_check_that_failed(status: str, is_failed: bool) -> None:
    parts = [{"name": name, "status": status} for name in ("bits", "speed-16")]
    assert day.failed_parts({"parts": parts, "checks": []}) == ["bits"] * is_failed


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
    later = [Part("bits", 30.0, 300.0), Part("tests", 10.0, 300.0)]
    part = Part("kernels", 60.0, 120.0)
    assert day._limit(part, later, left, DaySettings()) == wanted
    # Where a day is only tried, on a slow machine, each takes what it needs.
    assert day._limit(part, later, left, DaySettings(is_small=True)) == min(left, 240.0)
    # One that was asked for by name has a time of its own.
    assert day._limit(Part("epoch", 0.0, 500.0, is_extra=True), [], left, DaySettings()) == 500.0


@pytest.mark.slow
@pytest.mark.usefixtures("parts_that_misbehave")
def test_a_second_call_does_what_the_first_has_left_out(tmp_path: Path) -> None:
    out = tmp_path / "day.json"
    parts = [Part("has pieces", 5.0, 60.0), Part("ends well", 5.0, 60.0)]
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


def test_an_error_is_a_check_that_failed_and_what_is_behind_it_runs(tmp_path: Path) -> None:
    records = Records(tmp_path / "records", 5.0)
    with records.catching("steps"):
        raise ZeroDivisionError("a kernel")
    records.check("bits", True)
    first, second = map(json.loads, (tmp_path / "records").read_text().splitlines())
    assert first["check"]["name"] == "steps" and not first["check"]["is_right"]
    assert first["check"]["detail"].endswith("ZeroDivisionError: a kernel\n")
    assert second["check"] == {"name": "bits", "is_right": True, "detail": ""}


def test_records_hold_no_number_that_json_does_not_know(tmp_path: Path) -> None:
    records = Records(tmp_path / "records", 1e9)
    records.row(speed=math.inf, name="x")
    assert json.loads((tmp_path / "records").read_text()) == {"row": {"speed": None, "name": "x"}}
    assert 0 < records.seconds_left <= 1e9


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
    written = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    assert written == [
        {"pieces": {"names": ["a", "b", "c", "d", "e"]}},
        {"done": {"name": "b"}},
        {"done": {"name": "c"}},
    ]
