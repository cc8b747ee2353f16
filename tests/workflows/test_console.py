"""The terminal while a command works and after it (`console`, `progress`)."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from rich.console import Console

from hotset.pipeline.runtime.progress import Bars, Speed, rate_text
from hotset.tests.support.terminal import run_in_terminal
from hotset.workflows.console import TextTable, describe_rate, print_table, say_error, say_next

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
        sys.stdin.readline()
"""


def lines_with_bars(lines: list[str]) -> list[str]:
    """The lines with a part of a progress bar."""
    return [line for line in lines if "\u2501" in line or "\u2578" in line]


@pytest.mark.parametrize(("columns", "color"), [(60, True), (200, False)])
def test_messages_and_bars_do_not_write_over_each_other(columns: int, color: bool) -> None:
    status, screen = run_in_terminal(["-c", _TWO_STAGES], columns, color=color)
    assert status == 0
    assert [line.split()[0] for line in screen.lines if line] == ["ingest", "count", "rank"]
    assert lines_with_bars(screen.lines) == []
    assert color or not screen.has_color


@pytest.mark.parametrize("columns", [60, 200])
def test_a_bar_shows_share_rate_and_time_left(columns: int) -> None:
    def is_shown(lines: list[str]) -> bool:
        return any(line.startswith("rank ") and "50%" in line for line in lines)

    _, screen = run_in_terminal(["-c", _TWO_STAGES, "stop"], columns, until=is_shown)
    (bar,) = lines_with_bars(screen.lines)
    assert bar.endswith((" left", " passed")) and len(bar) <= columns


@pytest.mark.usefixtures("data")  # after which its kernels are compiled
def test_each_stage_of_a_run_ends_as_one_line(log: Path, tmp_path: Path) -> None:
    out = "a-folder-whose-name/takes-most-of-a-line"
    (tmp_path / out).parent.mkdir()
    arguments = ["-m", "hotset.workflows.cli", "preprocess", str(log), "--out", out, "--hot-bytes", "64KiB"]
    status, screen = run_in_terminal(arguments, 60, cwd=tmp_path)
    assert status == 0
    lines = [line for line in screen.lines if line]
    stages = ("ingest", "count", "rank", "encode", "split", "pack")
    assert tuple(line.split()[0] for line in lines[:6]) == stages and lines[6].startswith(f"{out}: ")
    assert all(line.endswith(" samples/s") for line in lines[:6])
    assert lines_with_bars(screen.lines) == []


@pytest.mark.slow
def test_training_shows_rate_loss_auc_and_time_left(data: Path, tmp_path: Path) -> None:
    whole = re.compile(r"train .*\d+% .*loss \d\.\d{4}, AUC \d\.\d{4} .*\d k?( samples)?/s +\d:\d\d left")
    bars: list[str] = []

    def look(lines: list[str]) -> bool:
        bars.extend(line for line in lines if whole.match(line))
        return False

    arguments = ["-m", "hotset.workflows.cli", "train", str(data), "--out", "r", "--epochs", "40"]
    status, screen = run_in_terminal([*arguments, "--evaluate-every", "200"], 60, cwd=tmp_path, until=look)
    assert status == 0 and bars and screen.has_color
    # What stays is the table of scores.
    assert lines_with_bars(screen.lines) == []
    assert any("samples/s" in line for line in screen.lines) and any("AUC" in line for line in screen.lines)


def test_threads_that_begin_a_stage_together_share_one_bar() -> None:
    bars = Bars(Console(file=io.StringIO(), force_terminal=True))
    num_threads = 4
    together = Barrier(num_threads)
    # A thread that switches at every chance finds a stage without a bar as often as can be.
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def report_stages(thread: int) -> set[int]:
        found = set()
        try:
            for stage in range(100):
                together.wait()
                bars(f"stage {stage}", thread, num_threads)
                together.wait()
                found.add(len(bars._progress.tasks))
        except Exception:  # the others wait for no thread that failed
            together.abort()
            raise
        return found

    try:
        with ThreadPoolExecutor(num_threads) as pool:
            found = set().union(*pool.map(report_stages, range(num_threads)))
    finally:
        sys.setswitchinterval(before)
    assert found == {1}


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_no_number_of_a_wide_table_is_cut(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[f"key {row}", *(f"{10**7 * row + number:,} MiB" for number in range(1, 9))] for row in range(2)]
    print_table(Console(width=columns), TextTable([f"column {number}" for number in range(9)], rows))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    for row in range(2):
        for number in range(1, 9):
            assert f"{10**7 * row + number:,} MiB" in shown
    assert "\u2026" not in shown and (columns > 100 or shown.count("key 1") > 1)


def test_a_title_wraps_at_the_width_of_the_terminal_and_not_at_that_of_its_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    title = "2 ranks, 256 samples each on average: rows to a rank in a step"
    print_table(Console(width=80), TextTable(["scheme", "rows"], [], title))
    assert capsys.readouterr().out.splitlines()[:2] == [title, "scheme  rows"]


_NOTED = """
import functools, itertools, sys
from hotset.pipeline.runtime import progress as module
from hotset.workflows.console import progress_bars
# A thousand samples take a second, however long they took.
module.Bars = functools.partial(module.Bars, clock=itertools.count().__next__)
with progress_bars() as progress:
    for step in range(20):
        progress("train", step * 1000, 40_000_000, "loss 0.4567, AUC 0.7890")
    sys.stdin.readline()
"""


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_a_bar_shows_its_note_and_cuts_no_number(columns: int) -> None:
    def is_shown(lines: list[str]) -> bool:
        shown = [line for line in lines if line]
        return len(shown) == 1 and shown[0].startswith("train ") and shown[0].endswith(" left")

    _, screen = run_in_terminal(["-c", _NOTED], columns, until=is_shown)
    (line,) = (line for line in screen.lines if line)
    assert "loss 0.4567, AUC 0.7890" in line and " 1.00 k" in line
    assert "/s " in line and (columns == 60 or "samples/s" in line)
    assert "\u2026" not in line and len(line) <= columns


_MESSAGES = """
import logging
from hotset.workflows.console import progress_bars, say, say_error, set_verbosity
set_verbosity(quiet={quiet}, verbose={verbose})
with progress_bars() as progress:
    progress("count", 1, 2)
    say("said")
    logging.getLogger("hotset.train.run").info("a detail")
    logging.getLogger("hotset.train.run").warning("a warning")
    say_error("wrong", "hotset stats " + "x" * 80)
"""


@pytest.mark.parametrize(
    ("quiet", "verbose", "shown"),
    [
        (False, False, ["said", "warning: a warning"]),
        (True, False, ["warning: a warning"]),
        (False, True, ["said", "train.run: a detail", "warning: a warning"]),
    ],
)
def test_verbosity_chooses_the_messages(quiet: bool, verbose: bool, shown: list[str]) -> None:
    _, screen = run_in_terminal(["-c", _MESSAGES.format(quiet=quiet, verbose=verbose)], 60)
    hint = "hint: hotset stats " + "x" * 80
    # The terminal itself continues a hint in the next row, so that it is copied as one line.
    assert [line for line in screen.lines if line] == [*shown, "error: wrong", hint[:60], hint[60:]]
    assert screen.has_color


def test_a_library_user_hears_the_log_alone() -> None:
    program = "import logging; from hotset.pipeline.preprocess import preprocess; "
    program += "print(logging.getLogger('hotset').handlers)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


_LINE = "from hotset.workflows.console import *; print_line(stdout_console(), 'nine letters ' * 9)"


def test_a_line_of_data_wraps_between_words_on_a_terminal_alone() -> None:
    _, screen = run_in_terminal(["-c", _LINE], 60)
    shown = [line for line in screen.lines if line]
    assert len(shown) == 2 and all(word in ("nine", "letters") for line in shown for word in line.split())
    piped = subprocess.run([sys.executable, "-c", _LINE], capture_output=True, text=True, check=True)
    assert len(piped.stdout.splitlines()) == 1


def test_a_hint_without_a_command_wraps_between_words() -> None:
    program = "from hotset.workflows.console import *; say_error('wrong', 'nine letters ' * 9)"
    _, screen = run_in_terminal(["-c", program], 60)
    shown = [line for line in screen.lines if line]
    words = {word for line in shown for word in line.split()}
    assert len(shown) == 4 and words == {"error:", "wrong", "hint:", "nine", "letters"}


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    program = "from hotset.workflows.console import *; "
    program += "print_line(stdout_console(), 'written back: ' + '1,024 MiB in 2.5 s, 0.41 M samples/s, ' * 6)"
    for columns in (60, 63, 66, 69, 72):
        _, screen = run_in_terminal(["-c", program], columns)
        shown = [line for line in screen.lines if line]
        assert max(map(len, shown)) <= columns
        assert not any(line[-1].isdigit() or line.endswith(" M") for line in shown)


@pytest.mark.parametrize(
    ("samples_per_second", "text"),
    [
        (0.0, "0 samples/s"),
        (2.2, "2 samples/s"),
        (734.4, "734 samples/s"),
        (8134.2, "8,130 samples/s"),
        (23_456.0, "23,500 samples/s"),
        (731_200.0, "0.73 M samples/s"),
        (12_345_678.0, "12.35 M samples/s"),
    ],
)
def test_slow_rates_are_told_in_samples_and_fast_ones_in_millions(
    samples_per_second: float, text: str
) -> None:
    assert describe_rate(samples_per_second) == text


@pytest.mark.parametrize("columns", [60, 200])
def test_lists_of_commands_wrap_behind_the_names(columns: int) -> None:
    _, screen = run_in_terminal(["-m", "hotset.workflows.cli", "--help"], columns)
    shown = [line for line in screen.lines if line.startswith("  ")]
    ends = {len(line) - len(line.lstrip()) for line in shown}
    assert max(map(len, screen.lines)) <= columns and len(ends) == (2 if columns == 60 else 1)


def test_a_command_shows_at_once_that_it_works() -> None:
    def is_shown(lines: list[str]) -> bool:
        return any(line.startswith("starting ") and line.endswith(" passed") for line in lines)

    program = "import sys\nfrom hotset.workflows.console import *\n"
    program += "with progress_bars() as progress:\n    sys.stdin.readline()"
    _, screen = run_in_terminal(["-c", program], 60, until=is_shown)
    assert is_shown(lines_with_bars(screen.lines))


def test_the_rate_is_that_of_the_last_half_minute_and_of_no_single_moment() -> None:
    speed = Speed()
    # Two parts that end at nearly the same time tell nothing of the rate.
    assert speed.after(10.0, 5 * 10**6) is None and speed.after(10.001, 10**7) is None
    assert speed.after(11.0, 2 * 10**7) == pytest.approx(1.5e7)
    for second in range(12, 100):
        found = speed.after(float(second), 2 * 10**7 + 1000 * (second - 11))
    assert found == pytest.approx(1000)


def test_a_stage_that_goes_on_has_its_rate_from_the_start() -> None:
    seconds = 0
    bars = Bars(Console(file=io.StringIO(), force_terminal=True), clock=lambda: seconds)

    def rate() -> float | None:
        (task,) = bars._progress.tasks
        speed: float | None = task.fields["speed"]
        return speed

    for seconds in (0, 1):
        bars("train", 1000 * seconds, 9000)
    assert rate() == 1000
    for stage, known in (("evaluate", None), ("train", 1000)):
        bars(stage, 2000, 9000)
        assert rate() == known
    # As soon as its own rate is known, that one is shown.
    seconds = 2
    bars("train", 2500, 9000)
    assert rate() == 500
    # One that stands still has none, whatever it had before.
    seconds = 100
    bars("train", 2500, 9000)
    bars("train", 2500, 9000)
    seconds = 101
    bars("train", 2500, 9000)
    assert rate() == 0


_COMPILING = """
import os, sys
os.environ["NUMBA_CACHE_DIR"] = "cache"
sys.path.insert(0, ".")
from types import ModuleType
from hotset.workflows import cli
from hotset.workflows.command_list import Command
from hotset.workflows.console import progress_bars

class MadeUp(Command):
    @classmethod
    def parse(cls, command, arguments):
        return cls()

    def execute(self):
        import few_kernels
        with progress_bars() as progress:
            progress("ingest", 1, 2)
            few_kernels.run()
            sys.stdin.readline()
        return 0

made_up = ModuleType("made_up")
made_up.IngestCommand = MadeUp
sys.modules["hotset.workflows.commands.made_up"] = made_up
cli.COMMANDS["ingest"] = ("made_up", "")
sys.exit(cli.main(["ingest", *sys.argv[1:]]))
"""
_FEW_KERNELS = """
from hotset.stats.kernel import kernel
@kernel
def _add_one(x):
    return x + 1
def run():
    _add_one(1)
"""


@pytest.mark.slow
def test_the_bar_of_a_first_run_names_the_kernel_that_is_compiled_and_the_next_one_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "few_kernels.py").write_text(_FEW_KERNELS)
    for is_first in (True, False):

        def is_shown(lines: list[str], is_first: bool = is_first) -> bool:
            bars = [line for line in lines if line.startswith("ingest ")]
            return bool(bars) and is_first == ("compiling add_one (once)" in bars[-1])

        status, _ = run_in_terminal(["-c", _COMPILING], 80, cwd=tmp_path, until=is_shown)
        assert status == 0


@pytest.mark.parametrize(
    ("stage", "rate"),
    [
        ("verify", "3 MiB/s"),
        ("hot", "3.15 M samples/s"),
        ("trace", "3.15 M samples/s"),
        ("drift", "3.15 M samples/s"),
        ("predict", "3.15 M samples/s"),
        ("rows", "3.15 M rows/s"),
        ("policies", ""),
    ],
)
def test_a_stage_with_a_unit_shows_its_rate(stage: str, rate: str) -> None:
    assert rate_text(stage, 3 << 20) == rate


def test_every_command_of_a_hint_is_one_that_this_shell_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/env/bin/hotset"])
    monkeypatch.setattr(shutil, "which", lambda _: None)
    say_error("it is damaged", "`rm -r d/shards && hotset pack d` writes it again")
    hint = capsys.readouterr().err.splitlines()[1]
    assert hint == "hint: `rm -r d/shards && /opt/env/bin/hotset pack d` writes it again"


def test_the_next_command_is_printed_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hotset.workflows.console.command_prefix", lambda: "hotset")
    say_next("train DIR --out RUN")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    say_next("train DIR --out RUN")
    assert capsys.readouterr().err == "next: hotset train DIR --out RUN\n"


def test_rows_of_a_piped_table_end_with_their_last_word() -> None:
    table = TextTable(
        ["budget", "rows", "note"], [["1 MiB", "7", ""], ["[2] MiB", "11", "<- chosen"]], num_texts=1
    )
    file = io.StringIO()
    print_table(Console(file=file, width=80, markup=True), table)
    lines = file.getvalue().split("\n")
    assert lines[2].endswith("<- chosen") and lines[2].startswith("[2] MiB") and lines[3:] == ["", ""]
    assert all(line == line.rstrip() for line in lines)
