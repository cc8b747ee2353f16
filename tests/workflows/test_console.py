"""What a user sees on the terminal while a command works and when it has ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from hotset.tests.support.terminal import run_in_terminal
from hotset.workflows.console import print_table

_TWO_STAGES = """
import sys, time
from hotset.workflows.console import bars_hidden, progress_bars, say, stdout_console
with progress_bars() as progress:
    for stage in ("ingest", "count"):
        for done in range(0, 101, 25):
            progress(stage, done * 10**6, 100 * 10**6)
            time.sleep(0.02)
        say(f"{stage:<8} a/rather/long/folder/{stage}: 1 MiB in 0.1 s")
    progress("rank", 50 * 10**6, 100 * 10**6)
    with bars_hidden():
        stdout_console().print("rank     by stdout")
    if "stop" in sys.argv:
        time.sleep(0.2)
        import os
        os._exit(0)
"""


def lines_with_bars(lines: list[str]) -> list[str]:
    """The lines with a part of a progress bar."""
    return [line for line in lines if "\u2501" in line or "\u2578" in line]


@pytest.mark.parametrize(("columns", "color"), [(60, True), (80, False), (120, True), (200, False)])
def test_messages_and_bars_do_not_write_over_each_other(columns: int, color: bool) -> None:
    status, screen = run_in_terminal(["-c", _TWO_STAGES], columns, color=color)
    assert status == 0
    assert [line.split()[0] for line in screen.lines if line] == ["ingest", "count", "rank"]
    assert lines_with_bars(screen.lines) == []
    assert color or not screen.has_color


@pytest.mark.parametrize("columns", [60, 200])
def test_a_bar_shows_share_rate_and_time_left(columns: int) -> None:
    _, screen = run_in_terminal(["-c", _TWO_STAGES, "stop"], columns)
    (bar,) = lines_with_bars(screen.lines)
    assert bar.startswith("rank ") and "50%" in bar
    assert bar.endswith((" left", " passed"))
    assert len(bar) <= columns


def test_each_stage_of_a_run_ends_as_one_line(log: Path, tmp_path: Path) -> None:
    arguments = ["-m", "hotset.workflows.cli", "preprocess", str(log), "--out", "out", "--hot-bytes", "64KiB"]
    status, screen = run_in_terminal(arguments, 60, cwd=tmp_path)
    assert status == 0
    for stage in ("ingest", "count", "rank", "encode", "split", "pack"):
        assert len([line for line in screen.lines if line.startswith(stage)]) == 1
    assert lines_with_bars(screen.lines) == []


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_no_number_of_a_wide_table_is_cut(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table()
    for number in range(9):
        table.add_column(f"column {number}", justify="right")
    for row in range(2):
        table.add_row(f"key {row}", *(f"{10**7 * row + number:,} MiB" for number in range(1, 9)))
    print_table(Console(width=columns), table)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    for row in range(2):
        for number in range(1, 9):
            assert f"{10**7 * row + number:,} MiB" in shown
    assert "\u2026" not in shown and (columns > 100 or shown.count("key 1") > 1)
