"""Measure candidates against each other, each in a fresh process.

CPU seconds of all threads are reported beside the wall clock, because other programs disturb them least. A
fresh process has a peak of memory that is its candidate's alone; it does a small job first, so that imports
and compilation are over when the clock starts.

Virtual machines need care: touching memory that the host reclaimed while it was free costs up to 2 ms per
MiB, forty times as much as usual, and the first candidate to use it would pay. So another process touches and
frees as much memory as a candidate may need just before its clock starts.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.runtime.tasks import num_workers
from .rounds import take_turns

_SAMPLING_SECONDS = 0.02
"""Interval at which anonymous memory is read."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to do a job."""

    name: str
    about: str
    """Description of what it does."""
    function: Callable[..., dict[str, Any]]
    """A top-level function, called with an empty folder and ``arguments``; returns facts for the result."""
    warm_up: tuple[Any, ...]
    """Arguments of a small job that runs before the clock starts."""
    arguments: tuple[Any, ...]
    """Arguments of the job that is measured."""
    room_bytes: int = 0
    """Memory and page cache that it may need, touched before the clock starts."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One candidate in one round."""

    wall_seconds: float
    cpu_seconds: float
    """CPU seconds of all threads."""
    peak_rss_bytes: int
    """Peak resident memory of the whole process, mapped files included."""
    peak_anonymous_bytes: int
    """Peak of the part that is no mapped file, read every 20 ms."""
    facts: dict[str, Any]
    """Result of the candidate's function."""


def run_rounds(
    candidates: Sequence[Candidate],
    rounds: int,
    scratch: Path,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> dict[str, list[Measurement]]:
    """Run each candidate once per round, in turn; return measurements by name, in the order of rounds."""
    turns = {
        candidate.name: partial(measure_in_fresh_process, candidate, scratch, workers=workers)
        for candidate in candidates
    }
    return take_turns(turns, rounds, lambda _, done: progress("bench", done, rounds * len(turns)))


def measure_in_fresh_process(candidate: Candidate, scratch: Path, *, workers: int = 0) -> Measurement:
    """Measure in a separate new process whose libraries may use ``workers`` threads."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=spawn, initializer=_limit_threads, initargs=(num_workers(workers),)
    ) as pool:
        return pool.submit(measure, candidate, scratch).result()


def _limit_threads(workers: int) -> None:
    """Limit the threads of libraries; runs before the candidate's own are imported, which read this once."""
    os.environ["POLARS_MAX_THREADS"] = str(workers)
    os.environ["OMP_NUM_THREADS"] = str(workers)


def measure(candidate: Candidate, scratch: Path) -> Measurement:
    """Measure in this process, with temporary folders under ``scratch``."""
    # The warm-up gets a folder of the same kind, so that nothing about the timed run is new.
    # The first run compiles and reads libraries from disk; it is not counted.
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        candidate.function(Path(folder), *candidate.warm_up)
    touch_memory(candidate.room_bytes)
    with tempfile.TemporaryDirectory(dir=scratch) as folder, AnonymousMemory() as anonymous:
        # Both clocks stop before anything else is done.
        wall_start = time.perf_counter()
        cpu_start = time.process_time()
        facts = candidate.function(Path(folder), *candidate.arguments)
        wall_seconds = time.perf_counter() - wall_start
        cpu_seconds = time.process_time() - cpu_start
    return Measurement(wall_seconds, cpu_seconds, memory_bytes("VmHWM"), anonymous.peak_bytes, facts)


def touch_memory(num_bytes: int) -> None:
    """Let another process fill and free ``num_bytes``, but at most half of the available memory."""
    available = memory_bytes("MemAvailable", "/proc/meminfo")
    num_bytes = min(num_bytes, available // 2)
    if num_bytes:
        subprocess.run([sys.executable, "-IS", "-c", f"b'1' * {num_bytes}"], check=True)


class AnonymousMemory:
    """Watch the anonymous memory of this process from a thread, which costs 0.3% of a core."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> AnonymousMemory:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._stop.wait(_SAMPLING_SECONDS)
            self.peak_bytes = max(self.peak_bytes, memory_bytes("RssAnon"))

    def take_peak(self) -> int:
        """Return the peak since the last call (bytes), and start a new one."""
        peak_bytes = max(self.peak_bytes, memory_bytes("RssAnon"))
        self.peak_bytes = 0
        return peak_bytes


def memory_bytes(field: str, file: str = "/proc/self/status") -> int:
    """Return a field that Linux gives in kB as bytes; 0 where there is none.

    ``ru_maxrss`` would not do: it starts at the memory of the process that started this one.
    """
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def summarize(candidate: Candidate, rounds: Sequence[Measurement]) -> dict[str, Any]:
    """Return medians over rounds, peaks of memory, and the seconds and bytes of every round."""

    def median(field: str) -> float:
        return float(statistics.median(getattr(measured, field) for measured in rounds))

    wall_seconds = median("wall_seconds")
    return {
        "about": candidate.about,
        "wall_seconds": wall_seconds,
        "cpu_seconds": median("cpu_seconds"),
        "samples_per_second": rounds[0].facts["num_samples"] / wall_seconds,
        "peak_rss_bytes": max(measured.peak_rss_bytes for measured in rounds),
        "peak_anonymous_bytes": max(measured.peak_anonymous_bytes for measured in rounds),
        "rounds": [_without_facts(measured) for measured in rounds],
    }


def _without_facts(measured: Measurement) -> dict[str, Any]:
    stages = {"stages": measured.facts["stages"]} if "stages" in measured.facts else {}
    return {name: value for name, value in asdict(measured).items() if name != "facts"} | stages


def median_stages(rounds: Sequence[Measurement]) -> dict[str, dict[str, float]]:
    """Return the median seconds of each stage, for candidates whose facts have ``stages``."""
    stages = [measured.facts["stages"] for measured in rounds]
    return {
        name: {clock: statistics.median(stage[name][clock] for stage in stages) for clock in stages[0][name]}
        for name in stages[0]
    }
