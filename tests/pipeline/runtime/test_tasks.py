"""Tasks end in order, few in flight, none at work once the run has ended; a thread's buffers are its own."""

from __future__ import annotations

import mmap
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import fields
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import MIB, ConfigError, install_hint
from hotset.pipeline.runtime import tasks
from hotset.pipeline.runtime.limits import Node
from hotset.pipeline.runtime.tasks import (
    DEFAULT_RESOURCES,
    ENGINES,
    FIXED_BYTES,
    Resources,
    check_cap,
    cores_of_worker,
    crew_size,
    drop_thread_buffers,
    num_processes,
    num_workers,
    placed_like_file,
    release_pages,
    room_for,
    run_tasks,
    silent,
    thread_buffer,
    use_engine,
)
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.encode import EncodeConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.processes.made_up_cluster import made_up_cluster
from hotset.workflows.cli import main


def test_defaults_take_every_core_and_show_nothing() -> None:
    assert DEFAULT_RESOURCES == Resources(workers=0, memory_bytes=None, progress=silent)
    DEFAULT_RESOURCES.progress("count", 1, 2)


def test_resources_can_be_sent_to_a_worker() -> None:
    assert pickle.loads(pickle.dumps(Resources(workers=3))) == Resources(workers=3)


def test_no_config_has_a_field_that_is_a_resource() -> None:
    resources = {field.name for field in fields(Resources)}
    for config in (IngestConfig, CountConfig, RankConfig, EncodeConfig, SplitConfig, PackConfig):
        assert not resources & {field.name for field in fields(config)}


class Work:
    """Counts what is at work, and what was begun."""

    def __init__(self) -> None:
        self.lock, self.at_work, self.most, self.begun, self.fed = threading.Lock(), 0, 0, 0, 0

    def feed(self, num_tasks: int, *, fails_at: int | None = None) -> Iterator[tuple[int]]:
        for number in range(num_tasks):
            if number == fails_at:
                raise ValueError("the feed broke")
            self.fed += 1
            yield (number,)

    def work(self, number: int) -> int:
        with self.lock:
            self.at_work += 1
            self.begun += 1
            self.most = max(self.most, self.at_work)
        time.sleep(0.004 if number % 3 == 0 else 0.001)
        with self.lock:
            self.at_work -= 1
        return number * number

    def fail_at_seven(self, number: int) -> int:
        square = self.work(number)
        if number == 7:
            raise ValueError("task 7 broke")
        return square


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("num_tasks", [0, 1, 2, 30])
def test_results_come_in_the_order_of_the_tasks(num_tasks: int, workers: int) -> None:
    work = Work()
    results = list(run_tasks(work.work, work.feed(num_tasks), workers=workers))
    assert results == [number * number for number in range(num_tasks)]
    assert work.most <= workers


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_task_that_fails_ends_the_run_with_none_at_work(workers: int) -> None:
    work = Work()
    with pytest.raises(ValueError, match="task 7 broke"):
        list(run_tasks(work.fail_at_seven, work.feed(1000), workers=workers))
    assert work.at_work == 0 and work.begun < 60
    assert threading.active_count() < 50


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_feed_that_fails_ends_the_run_with_its_error(workers: int) -> None:
    work = Work()
    with pytest.raises(ValueError, match="the feed broke"):
        list(run_tasks(work.work, work.feed(1000, fails_at=20), workers=workers))
    assert work.at_work == 0


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_caller_that_stops_reading_leaves_none_at_work(workers: int, error: type[BaseException]) -> None:
    work = Work()

    def read() -> None:
        for result in run_tasks(work.work, work.feed(1000), workers=workers):
            if result == 25:
                raise error

    with pytest.raises(error):
        read()
    assert work.at_work == 0 and work.begun < 60
    begun = work.begun
    time.sleep(0.02)
    assert work.begun == begun


def test_an_interrupt_while_waiting_leaves_none_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    work, pressed = Work(), threading.Event()

    def interrupted(*futures: Any, **options: Any) -> Any:
        if pressed.is_set():
            return wait(*futures, **options)
        pressed.set()
        raise KeyboardInterrupt

    results = run_tasks(work.work, work.feed(1000), workers=2)
    assert next(results) == 0
    monkeypatch.setattr(tasks, "wait", interrupted)  # the main thread waits for its results in it
    with pytest.raises(KeyboardInterrupt):
        list(results)
    assert work.at_work == 0 and pressed.is_set()


COLLECTED = """
import faulthandler, gc, threading
from hotset.pipeline.runtime.tasks import run_tasks

def stop_reading():
    results = run_tasks(abs, ((number,) for number in range(100)), workers=2)
    assert next(results) == 0
    cycle = [results]
    cycle.append(cycle)

def collecting():
    gc.collect()
    maintain()

faulthandler.dump_traceback_later(30, exit=True)
gc.disable()
stop_reading()
# Called by a thread that starts or joins another one, which holds the lock of these locks.
maintain, threading._maintain_shutdown_locks = threading._maintain_shutdown_locks, collecting
thread = threading.Thread(target=int)
thread.start()
thread.join()
print("ended")
"""
"""Leaves results unread, for the collector of garbage to close in the middle of a thread's start."""


@pytest.mark.skipif(
    not hasattr(threading, "_maintain_shutdown_locks"), reason="Python keeps no locks of threads any more"
)
def test_results_that_are_collected_while_a_thread_starts_let_it_start() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_no_number_of_workers_means_the_cores() -> None:
    assert num_workers(0) >= 1
    assert num_workers(3) == 3


def test_memory_of_one_name_is_used_again_and_grows() -> None:
    drop_thread_buffers()
    first = thread_buffer("ids", (4, 3), np.int32)
    assert first.shape == (4, 3) and first.dtype == np.int32 and first.flags.c_contiguous
    again = thread_buffer("ids", (2, 3), np.float32)
    assert again.shape == (2, 3) and np.shares_memory(first, again)
    larger = thread_buffer("ids", (40, 3), np.int32)
    assert larger.shape == (40, 3) and not np.shares_memory(first, larger)
    assert not np.shares_memory(larger, thread_buffer("keys", (40,), np.int64))
    assert thread_buffer("none", (0, 3), np.int32).shape == (0, 3)
    drop_thread_buffers()
    assert not np.shares_memory(larger, thread_buffer("ids", (40, 3), np.int32))


def test_threads_share_nothing() -> None:
    mine, others = thread_buffer("ids", (8,), np.int32), []
    thread = Thread(target=lambda: others.append(thread_buffer("ids", (8,), np.int32)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, others[0])


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4096, 5000, 1 << 20])
def test_forgotten_memory_can_be_written_again_and_its_neighbours_are_kept(num_bytes: int) -> None:
    memory = np.full(num_bytes + 20_000, 7, np.uint8)
    release_pages(memory[10_000 : 10_000 + num_bytes])
    assert (memory[:10_000] == 7).all() and (memory[10_000 + num_bytes :] == 7).all()
    memory[10_000 : 10_000 + num_bytes] = 8
    assert (memory[10_000 : 10_000 + num_bytes] == 8).all()


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 10**12 + 7])
@pytest.mark.parametrize("skipped", [0, 1, 17])
def test_memory_begins_as_far_into_a_page_as_a_file(position: int, skipped: int) -> None:
    memory = np.zeros(skipped + mmap.PAGESIZE + 100, np.uint8)[skipped:]
    placed = placed_like_file(memory, position)
    assert (placed.ctypes.data - position) % mmap.PAGESIZE == 0
    assert placed.shape[0] > 100 and np.shares_memory(placed[-1:], memory[-1:])


@pytest.fixture
def cluster() -> Iterator[None]:
    """The tasks of a test are those of a cluster of one machine."""
    with made_up_cluster(Node(3, 64 << 30)):
        yield


def test_a_cap_counts_what_every_process_costs(monkeypatch: pytest.MonkeyPatch, cluster: None) -> None:
    monkeypatch.setattr("hotset.pipeline.runtime.tasks.anonymous_bytes", lambda: 0)
    assert num_processes(3) == 3 and num_processes(1) == 0
    with pytest.raises(ConfigError) as caught:
        check_cap("count", Resources(3, 4 * FIXED_BYTES), MIB)
    assert caught.value.hint == "--memory 641MiB would do; fewer --workers need less"
    assert room_for("count", Resources(3, 4 * FIXED_BYTES + 9 * MIB), MIB) == 9 * MIB


@pytest.mark.parametrize(
    ("cores", "workers", "cores_each", "crews"),
    [
        ((16, 16), 0, 1, [16, 16]),
        ((16, 16), 32, 1, [16, 16]),
        ((16, 16), 31, 1, [16, 16]),
        ((16, 16), 16, 2, [8, 8]),
        ((16, 16), 2, 16, [1, 1]),
        ((16, 16), 1, 16, [1, 1]),
        ((16, 4), 6, 3, [5, 1]),
        ((64,), 5, 12, [5]),
        ((8, 64), 3, 21, [0, 3]),
    ],
)
def test_no_machine_runs_more_workers_than_it_was_counted_for(
    cores: tuple[int, ...], workers: int, cores_each: int, crews: list[int]
) -> None:
    machines = [Node(number, 1 << 30) for number in cores]
    with made_up_cluster(*machines):
        count = num_workers(workers)
        assert cores_of_worker(machines, count) == cores_each
        assert [node.num_workers(cores_each, count) for node in machines] == crews
        assert crew_size(workers) == max(crews) and sum(crews) >= count
        assert num_processes(workers) == (max(crews) if count > 1 else 0)


def test_tasks_of_a_cluster_take_the_cores_that_keep_others_away() -> None:
    for workers, cores in ((0, 1), (4, 1), (3, 1), (2, 2)):
        with made_up_cluster(Node(2, 1 << 30), Node(2, 1 << 30)) as engine:
            naps = ((0.002 * (number % 3),) for number in range(30))
            assert list(run_tasks(time.sleep, naps, workers=workers)) == [None] * 30
        assert set(engine.cores) == {cores} and engine.most_at_work <= (workers or 4)


def test_tasks_that_share_arrays_stay_here(cluster: None) -> None:
    seen: list[int] = []
    assert num_workers(0) == 3
    assert list(run_tasks(seen.append, [(1,), (2,)], workers=2, shares_memory=True)) == [None, None]
    assert sorted(seen) == [1, 2]


def test_threads_are_no_other_processes() -> None:
    with use_engine("threads"):
        assert num_processes(3) == 0
    assert ENGINES == ("threads", "ray")


def test_an_engine_that_is_none_or_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("dask", "processes"):
        with pytest.raises(ConfigError, match=f"no engine '{name}'") as caught:
            with use_engine(name):  # type: ignore[arg-type]
                pass
        assert caught.value.hint == "use one of threads, ray"
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "hotset.pipeline.runtime.ray_engine", raising=False)
    log = tmp_path / "log.tsv"
    assert main(["preprocess", str(log), "--out", str(tmp_path / "dir"), "--engine", "ray"]) == 1
    assert capsys.readouterr().err == f"error: --engine ray needs ray\nhint: {install_hint('ray')}\n"
