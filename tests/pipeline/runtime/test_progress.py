"""Progress as plain lines, by a clock of the test.

Bars are tested with the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from hotset.pipeline.runtime import progress
from hotset.pipeline.runtime.progress import Lines, Pace, clock_text, shown_progress


class Clock:
    """Seconds as a test sets them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def reported(calls: list[tuple[float, tuple[Any, ...]]], every_seconds: float = 30.0) -> list[str]:
    """The lines of calls at some seconds of a clock."""
    clock = Clock()
    written: list[str] = []
    lines = Lines(written.append, every_seconds=every_seconds, clock=clock)
    for seconds, call in calls:
        clock.seconds = seconds
        lines(*call)
    return written


def test_a_line_comes_every_half_minute() -> None:
    calls = [(second, ("encode", second * 1000, 200_000)) for second in range(100)]
    found = reported([(float(second), call) for second, call in calls])
    assert found == [
        "encode 15%: 30,000 samples, 1.00 k samples/s, 2:50 left",
        "encode 30%: 60,000 samples, 1.00 k samples/s, 2:20 left",
        "encode 45%: 90,000 samples, 1.00 k samples/s, 1:50 left",
    ]


def test_a_short_call_prints_none() -> None:
    assert reported([(float(second), ("encode", second, 30)) for second in range(30)]) == []


def test_training_names_its_step_loss_and_auc() -> None:
    notes = "loss 0.4512, AUC 0.7601"
    calls = [(s, ("train", int(s) * 80_000, 12_000_000, notes, int(s) * 10)) for s in (0.0, 30.0)]
    assert reported(calls) == ["train 20%: step 300, loss 0.4512, AUC 0.7601, 80.0 k samples/s, 2:00 left"]


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (("ingest", 3 << 30, 6 << 30), "ingest 50%: 3 GiB, 102.4 MiB/s, 0:30 left"),
        (("ingest", 3 << 30, 0), "ingest: 3 GiB, 102.4 MiB/s"),
        (("policies", 3, 4), "policies 75%: 0:10 left"),
        (("write", 0, 0), "write"),
    ],
)
def test_what_is_unknown_is_left_out(call: tuple[str, int, int], line: str) -> None:
    stage, _, total = call
    assert reported([(0.0, (stage, 0, total)), (30.0, call)]) == [line]


def test_a_stage_that_goes_on_keeps_its_speed_and_one_that_begins_again_has_none() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.after("train", 0)
    clock.seconds = 1
    assert pace.after("train", 500) == 500
    assert pace.after("evaluate", 9) is None and pace.after("train", 500) == 500
    clock.seconds = 2
    # Never below 0.
    assert pace.after("train", 100) == 500


def test_times_are_clocks() -> None:
    assert [clock_text(seconds) for seconds in (0, 75.9, 4000)] == ["0:00", "1:15", "1:06:40"]


def test_a_call_from_python_reports_in_lines_where_stderr_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "Lines", partial(Lines, every_seconds=0))
    with shown_progress(True) as shown:
        shown("encode", 5, 10)
        # Another call inside draws nothing over it.
        with shown_progress(True) as inner:
            inner("pack", 5, 10)
    with shown_progress(False) as none:
        none("count", 5, 10)
    assert capsys.readouterr().err == "encode 50%: 5 samples\n"


def test_a_notebook_has_one_line_that_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    seconds = iter(range(100))
    monkeypatch.setattr(progress, "Lines", partial(Lines, clock=lambda: next(seconds)))
    with shown_progress(True) as shown:
        shown("encode", 5, 10)
        shown("encode", 10, 10)
    printed = capsys.readouterr().err
    assert "\n" not in printed and printed.endswith(f"\r{'':<79}\r")
    assert [line.split(",")[0] for line in printed.split("\r") if line.strip()] == [
        "encode 50%: 5 samples".ljust(79),
        "encode 100%: 10 samples",
    ]


def test_a_function_gets_as_many_arguments_as_it_takes() -> None:
    seen: list[tuple[Any, ...]] = []
    function: Callable[..., object] = lambda *call: seen.append(call)  # noqa: E731
    with shown_progress(function, num_arguments=3) as shown:
        shown("train", 1, 2, "loss 0.5", 7)
    assert seen == [("train", 1, 2)]
