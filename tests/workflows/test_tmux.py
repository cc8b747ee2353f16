"""The commands of the main job in tmux, as a user has them before the eyes."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hotset.tests.support.terminal import ROOT

pytestmark = pytest.mark.skipif(
    shutil.which("tmux") is None, reason="no tmux: scripts/install-system-packages installs it"
)

_MOST_SECONDS = 120.0
"""Time after which a command is taken to hang."""
_ENDED = "exit status "
_BAR = re.compile("[\u2501\u2578\u257a]")
_COLOR = re.compile(r"\x1b\[([0-9;]*;)?(3[0-8]|4[0-8]|9[0-7])[;m]")
_NUMBERS = itertools.count()
_STAGES = ("ingest", "count", "rank", "encode", "split", "pack")


class Pane:
    """A pane of tmux in which one command of hotset runs, in a server without the user's settings."""

    def __init__(self, arguments: str, folder: Path, columns: int, *, color: bool = True) -> None:
        # A server that ends may keep its socket for a moment.
        self._socket = folder / f"tmux-{next(_NUMBERS)}"
        unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TMUX")
        self._environment = {name: value for name, value in os.environ.items() if name not in unset}
        self._environment |= {"LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT.parent)}
        if not color:
            self._environment["NO_COLOR"] = "1"
        command = shlex.join([sys.executable, "-m", "hotset.workflows.cli", *shlex.split(arguments)])
        # The pane stays when the command has ended, until its server is told to end.
        program = shlex.join(["bash", "-c", f"{command}; echo {_ENDED}$?; sleep 600"])
        size = ["-x", str(columns), "-y", "40", "-c", str(folder)]
        self._call("-f", "/dev/null", "new-session", "-d", *size, program)

    def _call(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=self._environment)
        return done.stdout

    def lines(self, *options: str) -> list[str]:
        """Return what stands on the screen and above it, broken into lines as tmux shows them."""
        shown = self._call("capture-pane", "-p", "-S", "-", *options).splitlines()
        return [line.rstrip() for line in shown if line.strip()]

    def wait(self, look: Callable[[list[str]], None] = lambda lines: None) -> list[str]:
        """Return the lines that the command left when it had ended well; ``look`` sees them before, often."""
        begin = time.monotonic()
        while not any(line.startswith(_ENDED) for line in self.lines()):
            look(self.lines())
            assert time.monotonic() - begin < _MOST_SECONDS, self.lines()
            time.sleep(0.05)
        *lines, ended = self.lines()
        assert ended == f"{_ENDED}0", lines
        return lines

    def close(self) -> None:
        """End the server, and what runs in it."""
        self._call("kill-server")


def left_by(arguments: str, folder: Path, columns: int, *, color: bool = True) -> list[str]:
    """Return the lines that a command leaves; no bar, no cut number and no unwanted colour is among them."""
    pane = Pane(arguments, folder, columns, color=color)
    try:
        lines = pane.wait()
        assert color or not _COLOR.search("\n".join(pane.lines("-e")))
    finally:
        pane.close()
    assert not [line for line in lines if _BAR.search(line) or "\u2026" in line]
    return lines


@pytest.mark.slow
def test_the_main_job_leaves_one_line_of_each_stage(log: Path, tmp_path: Path) -> None:
    arguments = f"preprocess {log} --out d --hot-bytes 64KiB --batch-size 64"
    lines = left_by(arguments, tmp_path, 200)
    assert tuple(line.split()[0] for line in lines[: len(_STAGES)]) == _STAGES
    assert all(line.endswith(" samples/s") for line in lines[: len(_STAGES)])
    assert lines[len(_STAGES)].startswith("d: ")
    trained = left_by("train d --out r --placement lookahead", tmp_path, 60, color=False)
    assert any("samples/s" in line for line in trained) and any("AUC" in line for line in trained)
    # A table that is wider than the terminal begins again with its first column.
    for columns in (60, 200):
        features = [line.split()[0] for line in left_by("stats d", tmp_path, columns, color=False)]
        names = [name for name in features if name[1:].isdigit()]
        assert names[:26] == [f"C{number}" for number in range(1, 27)]


@pytest.mark.slow
def test_training_shows_rate_loss_auc_and_time_left(data: Path, tmp_path: Path) -> None:
    frames: list[str] = []
    coded: list[str] = []
    pane = Pane(f"train {data} --out r --epochs 40 --evaluate-every 200", tmp_path, 60, color=True)

    def look(lines: list[str]) -> None:
        frames.extend(line for line in lines if line.startswith("train "))
        coded.extend(pane.lines("-e"))

    try:
        pane.wait(look)
    finally:
        pane.close()
    whole = re.compile(r"train .*\d+% .*loss \d\.\d{4}, AUC \d\.\d{4} .*\d k?( samples)?/s +\d:\d\d left")
    assert any(whole.match(line) for line in frames), frames
    assert _COLOR.search("\n".join(coded))
