"""Measuring contestants against each other: each in a fresh process, in turn, for several rounds.

Speeds of a shared machine drift by a factor of two within minutes, so contestants take turns and a ratio is
taken within a round; the median over rounds is what is reported. CPU seconds, of all threads, stand beside
the wall clock because neighbours disturb them least. A fresh process makes the peak of memory its
contestant's own; it does a small job first, so that imports and compilers are done when the clock starts.

A virtual machine adds a trap: memory that its host took back while it was free costs up to 2 ms a MiB at the
next touch, forty times the usual, and whoever comes first pays. So as much as a contestant may need is
touched and freed, by another process, just before its clock starts.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ... import __version__
from ...pipeline.runtime.tasks import ProgressCallback, num_workers, silent

_LIBRARIES = ("numba", "numpy", "polars", "pyarrow")
_SAMPLING_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do a job."""

    name: str
    about: str
    """What it does, for people."""
    function: Callable[..., dict[str, Any]]
    """Top-level; called with an empty folder and ``arguments``, returns facts for the result."""
    warm_up: tuple[Any, ...]
    """Arguments of a small job, done before the clock starts."""
    arguments: tuple[Any, ...]
    room_bytes: int = 0
    """Memory and page cache it may need, touched before the clock starts."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One contestant in one round."""

    wall_seconds: float
    cpu_seconds: float
    """Of all threads."""
    peak_rss_bytes: int
    """Resident memory of the whole process at its most, mapped files included."""
    peak_anonymous_bytes: int
    """Of it what is no mapped file, looked at every 20 ms."""
    facts: dict[str, Any]


def run_rounds(
    contestants: Sequence[Contestant],
    rounds: int,
    scratch: Path,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> dict[str, list[Measurement]]:
    """Each contestant once in each round, in turn; measurements by name, in the order of rounds."""
    measured: dict[str, list[Measurement]] = {contestant.name: [] for contestant in contestants}
    for done in range(rounds * len(contestants)):
        contestant = contestants[done % len(contestants)]
        measured[contestant.name].append(measure_in_fresh_process(contestant, scratch, workers=workers))
        progress("bench", done + 1, rounds * len(contestants))
    return measured


def measure_in_fresh_process(contestant: Contestant, scratch: Path, *, workers: int = 0) -> Measurement:
    """Measure in a process started for it alone, whose libraries may use ``workers`` threads."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        1, mp_context=spawn, initializer=_limit_threads, initargs=(num_workers(workers),)
    ) as pool:
        return pool.submit(measure, contestant, scratch).result()


def _limit_threads(workers: int) -> None:
    """Runs before the contestant's libraries are imported."""
    os.environ["POLARS_MAX_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(workers)


def measure(contestant: Contestant, scratch: Path) -> Measurement:
    """Measure here; folders under ``scratch`` come and go."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        contestant.function(Path(folder), *contestant.warm_up)
    touch_memory(contestant.room_bytes)
    with tempfile.TemporaryDirectory(dir=scratch) as folder, AnonymousMemory() as anonymous:
        wall, cpu = time.perf_counter(), time.process_time()
        facts = contestant.function(Path(folder), *contestant.arguments)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Measurement(wall, cpu, memory_bytes("VmHWM"), anonymous.peak_bytes, facts)


def touch_memory(num_bytes: int) -> None:
    """Have another process fill ``num_bytes``, half of what is available at most, and free them."""
    available = memory_bytes("MemAvailable", "/proc/meminfo")
    num_bytes = min(num_bytes, available // 2)
    if num_bytes:
        subprocess.run([sys.executable, "-IS", "-c", f"b'1' * {num_bytes}"], check=True)


class AnonymousMemory:
    """Watches this process from a thread; costs 0.3 % of a core."""

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
        """The most since the last call (bytes)."""
        peak, self.peak_bytes = max(self.peak_bytes, memory_bytes("RssAnon")), 0
        return peak


def memory_bytes(field: str, file: str = "/proc/self/status") -> int:
    """A field that Linux gives in kB; 0 where there is none.

    Not ``ru_maxrss``: that begins at the memory of the process that started this one.
    """
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def median_ratio(slow: Sequence[Measurement], fast: Sequence[Measurement], field: str) -> float:
    """Median over rounds of ``slow.field / fast.field``, each pair from one round."""
    ratios: list[float] = [getattr(a, field) / getattr(b, field) for a, b in zip(slow, fast, strict=True)]
    return statistics.median(ratios)


def summarise(contestant: Contestant, rounds: Sequence[Measurement]) -> dict[str, Any]:
    """Medians over rounds, peaks of memory, and the seconds and bytes of every round."""

    def median(field: str) -> float:
        return float(statistics.median(getattr(measured, field) for measured in rounds))

    wall_seconds = median("wall_seconds")
    return {
        "about": contestant.about,
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
    """Median seconds of each stage, of contestants whose facts have ``stages``."""
    stages = [measured.facts["stages"] for measured in rounds]
    return {
        name: {clock: statistics.median(stage[name][clock] for stage in stages) for clock in stages[0][name]}
        for name in stages[0]
    }


def describe_machine() -> dict[str, Any]:
    """What a timing depends on; nothing that tells one machine of a kind from another."""
    return {
        "cpu": _cpu_model(),
        "cores": num_workers(0),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "hotset": __version__,
        "commit": commit(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the checkout this file is in; None where it is in none."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
