"""Children that compile end with their parent, and start where they help: in commands, and in `fit`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numba
import pytest

import hotset
from hotset.workflows import compile_ahead
from hotset.workflows.characterise import DrawnShards
from hotset.workflows.cli import main
from hotset.workflows.compile_ahead import CompileAhead, compiling_ahead

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")

_CHILD = """
import sys, time
from hotset.workflows import compile_ahead

def wait(folder):
    open(sys.argv[1] + ".pid", "w").write(f"{os.getpid()} {folder}")
    time.sleep(600)

import os
compile_ahead._WORK[sys.argv[1]] = compile_ahead._Work(wait, 1, ())
compile_ahead._main(sys.argv[1])
"""
_PARENT = """
import time
from hotset.workflows import compile_ahead
compile_ahead._MODULE = "waiting_child"
compile_ahead._WORK = {"some work": compile_ahead._Work(print, 1, ())}
compile_ahead._is_missing = lambda work: True
compile_ahead.usable_cores = lambda: 2
with compile_ahead.compiling_ahead(["some work"]) as ahead:
    ahead.wait(lambda *_: None)
"""

_LOOKS = 3000
"""Looks at a child, 0.02 s apart: on a busy machine it takes a while to end."""


@pytest.fixture
def child_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that runs as a child does, and waits; the file of its number."""
    (tmp_path / "waiting_child.py").write_text(_CHILD)
    above = str(Path(compile_ahead.__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), above]))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "some work.pid"


def number_and_folder(file: Path) -> tuple[int, Path]:
    """Wait for the child to say where it works."""
    while not file.exists() or not file.read_text():
        time.sleep(0.02)
    number, folder = file.read_text().split()
    return int(number), Path(folder)


def is_running(number: int) -> bool:
    """Return whether there is such a process, but for one that ended and nobody asked about."""
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_their_parent_and_leave_nothing(child_module: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT], stderr=subprocess.DEVNULL, start_new_session=True
    )
    number, folder = number_and_folder(child_module)
    assert is_running(number) and folder.exists()
    parent.send_signal(how)
    parent.wait()
    for _ in range(_LOOKS):
        if not is_running(number):
            break
        time.sleep(0.02)
    else:
        os.kill(number, signal.SIGKILL)
        pytest.fail("the child goes on without its parent")
    assert not folder.exists()


@pytest.mark.parametrize(("cores", "room"), [(1, None), (8, 1), (8, compile_ahead._CHILD_BYTES)])
def test_no_child_is_started_where_a_core_or_memory_is_short(
    cores: int, room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_ahead, "usable_cores", lambda: cores)
    monkeypatch.setattr(compile_ahead, "available_bytes", lambda: room)
    monkeypatch.setattr(compile_ahead, "_is_missing", lambda work: True)
    monkeypatch.setattr(subprocess, "Popen", None)
    with compiling_ahead(list(compile_ahead._WORK)) as ahead:
        ahead.wait(lambda *_: pytest.fail("nothing is compiled"))


def test_at_most_one_child_a_core_runs_and_one_that_fails_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compile_ahead, "usable_cores", lambda: 2)
    monkeypatch.setattr(compile_ahead, "available_bytes", lambda: None)
    monkeypatch.setattr(compile_ahead, "_is_missing", lambda work: True)
    monkeypatch.setattr(compile_ahead, "_MODULE", "no_such_module")
    shown: list[tuple[str, str]] = []
    ahead = CompileAhead(list(compile_ahead._WORK))
    assert len(ahead._running) == 2
    ahead.wait(lambda stage, done, total, note: shown.append((stage, note)))
    assert not ahead._running and not ahead._pending
    assert shown[0] == ("compiling (once, about 21 s)", "training steps, row transfers, preprocessing, a log")


def test_work_whose_kernels_are_in_the_cache_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = compile_ahead._WORK[compile_ahead.LOG]
    work.run(tmp_path)
    assert not compile_ahead._is_missing(work)
    monkeypatch.setattr(compile_ahead, "is_compiled", lambda kernel: kernel.__name__ != "write_samples")
    assert compile_ahead._is_missing(work)


_DEMO = """
import sys
from pathlib import Path
from hotset.stats import kernel
from hotset.workflows import cli, compile_ahead

for number, work in enumerate(compile_ahead._WORK.values()):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir()
    work.run(folder)
load = kernel._CheckedCache.load_overload

def noted(self, *arguments):
    print("new:", self._function.__name__)
    return load(self, *arguments)

kernel._CheckedCache.load_overload = noted
sys.exit(cli.main(["demo", "-q", "--samples", "20000", "--out", sys.argv[1] + "/demo"]))
"""
_QUICK = {"_find_distinct", "copy_entries", "locate_lookups", "take_valid"}
"""Kernels that compile in a moment, and that the kinds of work do not call."""


@pytest.mark.slow
def test_the_kernels_of_a_demo_are_compiled_before_its_clocks_start(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", _DEMO, str(tmp_path)], check=True, capture_output=True, text=True
    ).stdout
    new = {line.removeprefix("new: ") for line in shown.splitlines() if line.startswith("new: ")}
    assert new <= _QUICK


def test_the_kernels_that_tell_of_each_work_are_there() -> None:
    for work in compile_ahead._WORK.values():
        compile_ahead._is_missing(work)


def test_fit_from_python_compiles_ahead_as_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[list[str]] = []

    class Noted(CompileAhead):
        def __init__(self, names: Sequence[str]) -> None:
            kinds.append(list(names))
            super().__init__([])

    monkeypatch.setattr(compile_ahead, "CompileAhead", Noted)
    shards = tmp_path / "data"
    drawn = DrawnShards(rows_of_table=50, skew=1.0, batch_size=64, num_batches=2, optimizer="adagrad")
    drawn.write(shards)
    hotset.fit(shards, tmp_path / "run", threads=1)
    hotset.fit(shards, tmp_path / "fast", placement="all-fast", threads=1)
    assert main(["train", str(shards), "--out", str(tmp_path / "command"), "--threads", "1"]) == 0
    assert kinds == [["training steps", "row transfers"], ["training steps"], kinds[0]]
    # A wrong folder is refused before anything is compiled.
    with pytest.raises(hotset.HotsetError):
        hotset.fit(tmp_path / "none", tmp_path / "new")
    assert len(kinds) == 3
