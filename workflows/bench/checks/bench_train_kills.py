"""``hotset bench train-kills``: SIGKILL training at random moments, resume it, compare every bit.

Moments are spread evenly over the time from the start of the process to its end, so that runs are hit while
they import, train, write a checkpoint and write their results. Each kill hits a run of another placement and
optimizer; a third of the resumed runs are killed once more. The last run of a folder is not disturbed and
must leave the weights, states, metrics and order of batches of a run that nothing disturbed; those of all
placements with one order of batches must be the same. Then the time is taken that training stands still for
a checkpoint, at a number of rows that all changed.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, HotsetError, require_at_least
from ....pipeline.folders.checksum import hash_file
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....train.checkpoints.checkpoint_files import CHECKPOINTS, read_record, record_paths
from ...machine_facts import describe_machine
from ..bench_kills import kill_after, last_line, start_command
from .checkpoint_stall import measure_stall

_PLACEMENTS: tuple[tuple[str, ...], ...] = (
    ("all-fast",),
    ("hybrid",),
    ("hybrid-dedup",),
    ("fae",),
    ("cache",),
    ("lookahead",),
    ("lookahead", "--plan", "online"),
    ("lookahead", "--slow-bytes", "1MiB"),
    ("hybrid", "--slow-bytes", "1"),
)
_OPTIMIZERS = ("sgd", "adagrad", "adam")
_FILES = ("weights.safetensors", "states.safetensors", "metrics.jsonl", "batch_order.npy")
"""Files of a finished run that must have the bytes of an unbroken one."""
_MOST_TRIES = 5
"""Attempts to hit a run in one part of its time."""
_AGAIN = 1 / 3
"""Share of resumed runs that are killed once more."""
PHASES = ("start", "steps", "checkpoint", "end")


@dataclass(frozen=True, kw_only=True)
class BenchTrainKillsConfig:
    """Settings of the kill benchmark of training."""

    kills: int = 108
    """Number of kills that hit a run before its end."""

    samples: int = 20_000
    """Samples of the generated log."""

    epochs: int = 2
    """Passes over the training part of each run."""

    checkpoint_every: int = 3
    """Steps between two checkpoints of a run."""

    seed: int = 0
    """Seed of the moments of kills and of the log."""

    workers: int = 2
    """Number of runs at a time; each takes one thread."""

    stall_rows: int = 10_000_000
    """Rows at which the time is taken that training stands still for a checkpoint; 0 leaves it out."""

    scratch: Path | None = None
    """Folder for temporary files; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        for name in ("kills", "samples", "epochs", "checkpoint_every", "workers"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("stall_rows", self.stall_rows, 0)


@dataclass(slots=True)
class _Tally:
    """Counts of what has happened so far."""

    kills: int = 0
    late: int = 0
    """Kills that came when the run had ended; not among ``kills``."""
    folders: int = 0
    identical: int = 0
    """Folders that ended with the bytes of the unbroken run."""
    phases: Counter[str] = field(default_factory=Counter)
    """Kills by what the run did when they came."""
    placements: Counter[str] = field(default_factory=Counter)
    optimizers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while workers count."""


@dataclass(frozen=True, slots=True)
class _Unbroken:
    """A run that nothing disturbed."""

    checksums: dict[str, str]
    seconds: float
    """From the start of its process to the end."""


class _Bench:
    """The parts that all kills share.

    Args:
        config: of the benchmark.
        scratch: folder of the shards, and of a folder for each kill.
    """

    def __init__(self, config: BenchTrainKillsConfig, scratch: Path) -> None:
        self._config = config
        self._scratch = scratch
        self._unbroken: dict[tuple[tuple[str, ...], str], _Unbroken] = {}
        self._weights: dict[tuple[bool, str], str] = {}
        """Checksum of the weights by what alone may change them: the order of fae, and the optimizer."""
        self.tally = _Tally()

    def prepare(self) -> None:
        """Make the shards, and let one run compile what all will use."""
        generate(
            GenerateConfig(samples=self._config.samples, seed=self._config.seed, scale=20),
            self._scratch / "log.tsv",
        )
        arguments = ["preprocess", str(self._scratch / "log.tsv"), "--out", str(self._scratch / "data")]
        arguments += ["--hot-bytes", "256KiB", "--batch-size", "512", "-q"]
        self._run_to_end(arguments, self._scratch)
        self._run_to_end(self._train(self._scratch / "warm", ("cache",), "adam"), self._scratch)

    def kill(self, number: int, part: int, placement: tuple[str, ...], optimizer: str) -> None:
        """Kill a run in one part of its time, resume it, and compare."""
        if self.tally.kills >= self._config.kills:
            return
        # A folder and random numbers of its own, so that several may be under way.
        scratch = self._scratch / f"kill-{number}"
        scratch.mkdir()
        rng = random.Random(f"{self._config.seed} {number}")
        unbroken = self._run_unbroken(placement, optimizer, scratch)
        out = scratch / "killed"
        arguments = self._train(out, placement, optimizer)
        for _ in range(_MOST_TRIES):
            shutil.rmtree(out, ignore_errors=True)
            moment = (part + rng.random()) / self._config.kills
            if self._kill_once(arguments, moment * unbroken.seconds, out, scratch):
                break
            self._count_late()
        else:
            return
        self._count(placement, optimizer, out)
        # Some are killed a second time, anywhere.
        if rng.random() < _AGAIN and self.tally.kills < self._config.kills:
            if self._kill_once(arguments, rng.random() * unbroken.seconds, out, scratch):
                self._count(placement, optimizer, out)
            else:
                self._count_late()
        self._compare(arguments, out, unbroken, " ".join((*placement, optimizer)), scratch)
        shutil.rmtree(scratch)

    def _count(self, placement: tuple[str, ...], optimizer: str, out: Path) -> None:
        with self.tally.lock:
            self.tally.kills += 1
            self.tally.phases[phase_of(out)] += 1
            self.tally.placements[" ".join(placement)] += 1
            self.tally.optimizers[optimizer] += 1

    def _count_late(self) -> None:
        with self.tally.lock:
            self.tally.late += 1

    def _kill_once(self, arguments: list[str], seconds: float, out: Path, scratch: Path) -> bool:
        """Kill a run after ``seconds``; returns whether it had not ended."""
        status = kill_after(seconds, start_command(arguments, scratch))
        if status > 0 and not (out / "manifest.json").exists():
            self.tally.faults.append(f"a run ended with exit status {status}: {last_line(scratch)}")
        return status < 0

    def _compare(
        self, arguments: list[str], out: Path, unbroken: _Unbroken, name: str, scratch: Path
    ) -> None:
        """Let a run end, unless it has, and compare its files."""
        fault = None
        if not (out / "manifest.json").exists():
            with start_command(arguments, scratch) as process:
                process.wait()
            if process.returncode:
                fault = f"{name}: exit status {process.returncode}: {last_line(scratch)}"
        found = _checksums(out)
        wrong = [file for file in _FILES if found.get(file) != unbroken.checksums.get(file)]
        if wrong and fault is None:
            fault = f"{name}: {', '.join(wrong)} differs from that of an unbroken run"
        with self.tally.lock:
            self.tally.folders += 1
            self.tally.identical += fault is None
            if fault is not None:
                self.tally.faults.append(fault)

    def _run_unbroken(self, placement: tuple[str, ...], optimizer: str, scratch: Path) -> _Unbroken:
        key = (placement, optimizer)
        # Two workers may both run the first of a kind: with equal bits, or it is a fault.
        if key not in self._unbroken:
            out = scratch / "unbroken"
            started_at = time.perf_counter()
            self._run_to_end(self._train(out, placement, optimizer), scratch)
            seconds = time.perf_counter() - started_at
            self._unbroken[key] = _Unbroken(_checksums(out), seconds)
            shutil.rmtree(out)
            weights = self._unbroken[key].checksums["weights.safetensors"]
            with self.tally.lock:
                if self._weights.setdefault((placement == ("fae",), optimizer), weights) != weights:
                    self.tally.faults.append(
                        f"{' '.join(placement)} with {optimizer} has other weights than all-fast"
                    )
        return self._unbroken[key]

    def _train(self, out: Path, placement: tuple[str, ...], optimizer: str) -> list[str]:
        config = self._config
        arguments = ["train", str(self._scratch / "data"), "--out", str(out), "-q", "--threads", "1"]
        arguments += ["--placement", *placement, "--embedding-optimizer", optimizer]
        arguments += ["--checkpoint-every", str(config.checkpoint_every), "--epochs", str(config.epochs)]
        return [*arguments, "--log-every", "5", "--staging-bytes", "2MiB"]

    def _run_to_end(self, arguments: list[str], scratch: Path) -> None:
        with start_command(arguments, scratch) as process:
            process.wait()
        if process.returncode:
            raise ConfigError(f"{arguments[0]} failed: {last_line(scratch)}")


def bench_train_kills(config: BenchTrainKillsConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Kill and resume until ``config.kills`` kills have hit; return plain data, ready for JSON.

    ``identical`` of ``folders`` ended with the bits of the unbroken run; ``faults`` lists what else was
    wrong, a line each, and is empty if all went well.
    """
    # Every placement meets every optimizer, in turn.
    combinations = [(placement, optimizer) for placement in _PLACEMENTS for optimizer in _OPTIMIZERS]
    with tempfile.TemporaryDirectory(prefix="hotset-train-kills-", dir=config.scratch) as name:
        bench = _Bench(config, Path(name))
        bench.prepare()
        # Parts of the time in a drawn order, so that every placement is hit early and late.
        parts = list(range(config.kills))
        random.Random(config.seed).shuffle(parts)
        with ThreadPoolExecutor(config.workers) as pool:
            kills = [
                pool.submit(bench.kill, number, part, *combinations[number % len(combinations)])
                for number, part in enumerate(parts)
            ]
            for kill in as_completed(kills):
                kill.result()
                progress("kills", min(bench.tally.kills, config.kills), config.kills)
        stall = measure_stall(config.stall_rows, Path(name)) if config.stall_rows else None
    tally = bench.tally
    return {
        "benchmark": "train-kills",
        "kills": tally.kills,
        "late": tally.late,
        "phases": {phase: tally.phases[phase] for phase in PHASES},
        "placements": dict(tally.placements),
        "optimizers": dict(tally.optimizers),
        "folders": tally.folders,
        "identical": tally.identical,
        "faults": tally.faults,
        "stall": stall,
        "settings": {name: setting for name, setting in asdict(config).items() if name != "scratch"},
        "machine": describe_machine(),
    }


def phase_of(out: Path) -> str:
    """Return what a killed run was doing: starting, taking steps, writing a checkpoint, or its results."""
    # The files that are there say how far the run had come.
    if not (out / "config.json").exists():
        return "start"
    if (out / "weights.safetensors").exists() or (out / ".weights.safetensors.tmp").exists():
        return "end"
    folder = out / CHECKPOINTS
    listed: set[str] = set()
    # Files of a checkpoint that no record lists yet are being written.
    for path in record_paths(folder):
        try:
            record = read_record(path)
        except HotsetError:
            continue
        listed |= {path.name, *(entry.path for entry in record.files)}
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return "checkpoint" if found - listed else "steps"


def _checksums(out: Path) -> dict[str, str]:
    return {name: hash_file(out / name)[1] for name in _FILES if (out / name).exists()}


def print_bench_train_kills(result: dict[str, Any], console: Console) -> None:
    """Print kills by what they hit as a table, and the outcome."""
    table = Table(box=None, pad_edge=False)
    table.add_column("killed during")
    table.add_column("kills", justify="right")
    for kind in ("phases", "placements", "optimizers"):
        for name, kills in result[kind].items():
            table.add_row(name, str(kills))
        table.add_section()
    console.print(table, "")
    console.print(
        f"{result['kills']} kills: [bold]{result['identical']} of {result['folders']}[/] runs ended with the "
        "bits of an unbroken one.",
        soft_wrap=True,
    )
    # Pauses of training, beside the time that a plain copy of all rows takes.
    if stall := result["stall"]:
        console.print(
            f"Training stands still for {median(stall['all_changed_ms']):,.0f} ms where all of "
            f"{stall['rows']:,} rows have changed, {median(stall['all_changed_longest_ms']):,.0f} ms at a "
            f"time, and for {median(stall['few_changed_ms']):,.0f} ms where "
            f"{stall['few_changed_rows']:,} have; a copy of all takes {median(stall['copy_ms']):,.0f} ms.",
            soft_wrap=True,
        )
    for fault in result["faults"]:
        console.print(fault, soft_wrap=True, markup=False)


CONFIG = BenchTrainKillsConfig
measure = bench_train_kills
show = print_bench_train_kills
