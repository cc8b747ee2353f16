"""Tasks in other processes: the same results and bytes, whatever happens to a worker.

Tests `process_engine`, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError, EngineError, InputError, install_hint
from hotset.pipeline.runtime.engines import use_engine
from hotset.pipeline.runtime.memory import FIXED_BYTES, refuse_small_cap, room_for
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.runtime.tasks import Advance, num_processes, num_workers, run_tasks
from hotset.pipeline.sizes import MIB
from hotset.pipeline.stages.preprocess import preprocess
from hotset.tests.support.logs.criteo_text import draw_samples, text_of, tree_of
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.processes.remote_tasks import die_at, fail_at, square
from hotset.tests.support.processes.worker_processes import children
from hotset.workflows.cli import main

WORKERS = 2


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs") / "log.tsv"
    path.write_bytes(text_of(draw_samples(180, np.random.default_rng(10))))
    return path


@pytest.fixture(scope="module")
def unbroken(log: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("made") / "dir"
    preprocess([log], CONFIG, out, Resources(workers=1))
    return tree_of(out)


@pytest.mark.slow
def test_tasks_in_processes_end_as_in_threads_whatever_happens_to_a_worker(
    tmp_path: Path, log: Path, unbroken: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with use_engine("processes"):
        check_results_and_what_is_told()
        check_a_killed_worker(tmp_path, monkeypatch)
        check_an_error_is_what_the_task_raised()
        check_a_feed_that_fails()
        check_a_caller_that_stops_reading()
        check_preprocess(log, tmp_path / "broken", unbroken, kill_at="encode")
    assert not children()


def check_results_and_what_is_told() -> None:
    told: list[int] = []
    advance = Advance(told.append)
    results = list(run_tasks(square, ((number, advance) for number in range(30)), workers=WORKERS))
    assert results == [number * number for number in range(30)]
    assert sorted(told) == list(range(1, 31))
    assert len(children()) == WORKERS


def check_a_killed_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [(number, 7, tmp_path / "mark") for number in range(20)]
    assert list(run_tasks(die_at, tasks, workers=WORKERS)) == [number * number for number in range(20)]
    monkeypatch.setattr("hotset.pipeline.runtime.tasks._MOST_WORKER_FAILURES", 1)
    with pytest.raises(EngineError, match="killed 1 times in a row") as caught:
        list(run_tasks(die_at, ((number, 3, None) for number in range(20)), workers=WORKERS))
    assert caught.value.hint and "resumes the run" in caught.value.hint
    monkeypatch.undo()


def check_an_error_is_what_the_task_raised() -> None:
    with pytest.raises(InputError, match="7 is bad") as caught:
        list(run_tasks(fail_at, ((number, 7) for number in range(1000)), workers=WORKERS))
    assert caught.value.hint == "give another"
    assert not children()


def check_a_feed_that_fails() -> None:
    def feed() -> Iterator[tuple[int]]:
        yield from ((number,) for number in range(9))
        raise InputError("the feed broke")

    with pytest.raises(InputError, match="the feed broke"):
        list(run_tasks(square, feed(), workers=WORKERS))


def check_a_caller_that_stops_reading() -> None:
    results = run_tasks(fail_at, ((number, -1) for number in range(1000)), workers=WORKERS)
    assert next(results) in children()
    results.close()
    assert not children()


def check_preprocess(log: Path, out: Path, unbroken: dict[str, bytes], *, kill_at: str | None) -> None:
    stages = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == kill_at and stage not in stages:
            os.kill(min(children()), signal.SIGKILL)
        stages.append(stage)

    preprocess([log], CONFIG, out, Resources(workers=WORKERS, progress=progress))
    assert tree_of(out) == unbroken
    assert {"ingest", "count", "rank", "encode", "split", "pack"} <= set(stages)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_worker_and_goes_on(
    tmp_path: Path, log: Path, unbroken: dict[str, bytes]
) -> None:
    program = "\n".join(
        [
            "import sys, time",
            "from pathlib import Path",
            "from hotset.pipeline.runtime.engines import use_engine",
            "from hotset.pipeline.runtime.resources import Resources",
            "from hotset.pipeline.stages.preprocess import preprocess",
            "from hotset.tests.support.preprocess_runs import CONFIG",
            "from hotset.tests.support.processes.worker_processes import children",
            "def progress(stage, done, total):",
            "    print(*children(), flush=True)",
            "    time.sleep(600)",
            "with use_engine('processes'):",
            "    preprocess([Path(sys.argv[1])], CONFIG, Path(sys.argv[2]), Resources(2, progress=progress))",
        ]
    )
    out = tmp_path / "dir"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(log), str(out)], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        workers = [int(word) for word in run.stdout.readline().split()]
        run.kill()
    assert len(workers) == 2
    preprocess([log], CONFIG, out, Resources(workers=WORKERS))
    assert tree_of(out) == unbroken
    deadline = time.monotonic() + 300
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_cap_counts_what_every_process_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.memory.anonymous_bytes", lambda: 0)
    with use_engine("processes"):
        assert num_processes(3) == 3 and num_processes(1) == 0
        with pytest.raises(ConfigError) as caught:
            refuse_small_cap("count", Resources(3, 4 * FIXED_BYTES), MIB)
        assert caught.value.hint == "--memory 641MiB would do; fewer --workers need less"
        assert room_for("count", Resources(3, 4 * FIXED_BYTES + 9 * MIB), MIB) == 9 * MIB
    assert num_processes(3) == 0


def test_tasks_that_share_arrays_stay_here() -> None:
    seen = []
    with use_engine("processes"):
        assert num_workers(0) >= 1
        assert list(
            run_tasks(lambda number: seen.append(number), [(1,), (2,)], workers=2, shares_memory=True)
        )
    assert sorted(seen) == [1, 2]


def test_an_engine_that_is_none_or_not_there_is_one_line(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="no engine 'dask'"), use_engine("dask"):  # type: ignore[arg-type]
        pass
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "hotset.pipeline.runtime.ray_engine", raising=False)
    assert main(["preprocess", str(log), "--out", str(tmp_path / "dir"), "--engine", "ray"]) == 1
    assert capsys.readouterr().err == f"error: --engine ray needs ray\nhint: {install_hint('ray')}\n"
