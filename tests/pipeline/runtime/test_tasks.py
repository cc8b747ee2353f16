"""Tasks over threads: in order, few in flight, and none at work once the run has ended."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import wait
from typing import Any

import pytest

from hotset.pipeline.runtime import tasks
from hotset.pipeline.runtime.tasks import num_workers, run_tasks


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
