"""``hotset bench train-kills``: SIGKILL training at random moments, resume it, compare every bit.

A run spends most of its time before its first step, so moments are counted from the first checkpoint of a
process: those of the first kills of all runs are spread evenly from there to the end of the run, so that
runs are hit while they train, write a checkpoint and write their results. Each of these kills hits a run of
another kind (placement, rows in a file, weights of another run to start from, two ranks) and optimizer; more
than half of the resumed runs are killed again, half of them at any moment from the start of the process on.
Of a run on ranks one is killed, the others must stop by themselves, and another number of ranks goes on. The
last run of a folder is not disturbed and must leave the weights, states, metrics and order of batches of a
run that nothing disturbed; the weights of all kinds with one order of batches, the same shares and the same
beginning must be the same. Then the time is taken that training stands still for a checkpoint, at a number
of rows that all changed.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.folders.checksum import hash_file
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ...machine_facts import describe_machine
from ..bench_kills import last_line
from ..measuring.recorded_settings import recorded_settings
from .checkpoint_stall import measure_stall
from .killed_runs import KINDS, NUM_SHARES, RANKED_KINDS, RunKind, StartedRun
from .run_phases import PHASES, newest_checkpoint, phase_of

_OPTIMIZERS = ("sgd", "adagrad", "adam")
_FILES = ("weights.safetensors", "states.safetensors", "metrics.jsonl", "batch_order.npy")
"""Files of a finished run that must have the bytes of an unbroken one."""
_MOST_TRIES = 8
"""Attempts to hit a run in one part of its time."""
_SOONER = 0.8
"""Factor of the moment of a kill for each one of the same folder that came too late."""
_AGAIN = 0.6
"""Share of killed runs that are killed once more when they are resumed."""
_ANYWHERE = 0.5
"""Share of these that may be killed before they train."""


@dataclass(frozen=True, kw_only=True)
class BenchTrainKillsConfig:
    """Settings of the kill benchmark of training."""

    kills: int = 108
    """Number of kills that hit a run between its first checkpoint and its end."""

    samples: int = 10_000
    """Samples of the generated log."""

    epochs: int = 2
    """Passes over the training part of each run."""

    checkpoint_every: int = 3
    """Steps between two checkpoints of a run."""

    seed: int = 0
    """Seed of the moments of kills and of the log."""

    workers: int = 2
    """Number of runs at a time; each takes one thread."""

    ranks: bool = False
    """Kill runs on two ranks alone, of all placements."""

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
    """Kills that came when the run was finished; not among ``kills``."""
    folders: int = 0
    identical: int = 0
    """Folders that ended with the bytes of the unbroken run."""
    phases: Counter[str] = field(default_factory=Counter)
    """Kills by what the run did when they came."""
    kinds: Counter[str] = field(default_factory=Counter)
    optimizers: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while workers count."""

    @property
    def of_training(self) -> int:
        """Kills of processes that had trained."""
        return self.kills - self.phases["start"]


@dataclass(frozen=True, slots=True)
class _Unbroken:
    """A run that nothing disturbed."""

    checksums: dict[str, str]
    start_seconds: float
    """From the start of its processes to the first checkpoint."""
    train_seconds: float
    """From there to its last file."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """When a run is killed."""

    seconds: float
    of_training: bool
    """Whether they are counted from the first checkpoint that the killed process writes, not from its start.
    """


@dataclass(frozen=True, slots=True)
class _Job:
    """A run that is killed, or that nothing disturbs."""

    kind: RunKind
    optimizer: str
    out: Path
    """Its folder."""
    scratch: Path
    """Folder of its messages."""

    @property
    def name(self) -> str:
        return f"{self.kind.name}, {self.optimizer}"

    @property
    def is_finished(self) -> bool:
        return (self.out / "manifest.json").exists()


class _Bench:
    """The parts that all kills share.

    Args:
        config: of the benchmark.
        scratch: folder of the shards, and of a folder for each kill.
    """

    def __init__(self, config: BenchTrainKillsConfig, scratch: Path) -> None:
        self._config = config
        self._scratch = scratch
        self._unbroken: dict[tuple[RunKind, str], _Unbroken] = {}
        self._weights: dict[tuple[tuple[bool, ...], str], str] = {}
        """Checksum of the weights by what alone may change them."""
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
        # It is the run, too, from whose weights others start.
        warm = _Job(RunKind(placement="cache"), "adam", self._scratch / "warm", self._scratch)
        self._run_to_end(self._train(warm), self._scratch)

    def kill(self, number: int, part: int, kind: RunKind, optimizer: str) -> None:
        """Kill a run in one part of its time, resume it, and compare."""
        if self._has_killed_enough:
            return
        # A folder and random numbers of its own, so that several may be under way.
        scratch = self._scratch / f"kill-{number}"
        scratch.mkdir()
        rng = random.Random(f"{self._config.seed} {number}")
        unbroken = self._run_unbroken(kind, optimizer, scratch)
        job = _Job(kind, optimizer, scratch / "killed", scratch)
        # A kill that comes too late is tried again a little sooner, on a new run.
        for num_late in range(_MOST_TRIES):
            shutil.rmtree(job.out, ignore_errors=True)
            share = (part + rng.random()) / self._config.kills * _SOONER**num_late
            if self._kill_once(job, _Moment(share * unbroken.train_seconds, of_training=True), rng):
                break
        else:
            return
        # Some are killed again and again, until a kill comes too late.
        while rng.random() < _AGAIN and not self._has_killed_enough:
            if not self._kill_once(job, _any_moment(unbroken, rng), rng):
                break
        self._compare(job, unbroken, kind.other_ranks(rng))
        shutil.rmtree(scratch)

    @property
    def _has_killed_enough(self) -> bool:
        return self.tally.of_training >= self._config.kills

    def _count(self, job: _Job, *, has_trained: bool) -> None:
        phase = phase_of(job.out) if has_trained else "start"
        with self.tally.lock:
            self.tally.kills += 1
            self.tally.phases[phase] += 1
            self.tally.kinds[job.kind.name] += 1
            self.tally.optimizers[job.optimizer] += 1

    def _count_late(self) -> None:
        with self.tally.lock:
            self.tally.late += 1

    def _note(self, fault: str) -> None:
        with self.tally.lock:
            self.tally.faults.append(fault)

    def _kill_once(self, job: _Job, moment: _Moment, rng: random.Random) -> bool:
        """Kill a run, or one of its ranks, and count it; returns whether the run was not finished."""
        num_ranks = job.kind.num_ranks
        checkpoint = newest_checkpoint(job.out)
        run = StartedRun(self._train(job), job.scratch, num_ranks, is_killed=True)
        if moment.of_training:
            run.wait_until(lambda: newest_checkpoint(job.out) > checkpoint)
        victim = rng.randrange(num_ranks)
        was_there = run.kill_after(moment.seconds, victim)
        has_trained = newest_checkpoint(job.out) > checkpoint
        if not run.survivors_stop(victim):
            self._note(f"{job.name}: a rank goes on after rank {victim} was killed")
        status = max(run.wait())
        # A rank that is gone once it has sent its last row holds nobody up.
        is_hit = was_there and not job.is_finished
        # Ranks that lost another one end with an error; a run by itself has none.
        if status > 0 and not (is_hit and num_ranks > 1) and not job.is_finished:
            self._note(f"{job.name}: a run ended with exit status {status}: {last_line(job.scratch)}")
        if is_hit:
            self._count(job, has_trained=has_trained)
        else:
            self._count_late()
        return is_hit

    def _compare(self, job: _Job, unbroken: _Unbroken, num_ranks: int) -> None:
        """Let a run end, unless it has, and compare its files."""
        fault = None
        if not job.is_finished:
            statuses = StartedRun(self._train(job), job.scratch, num_ranks).wait()
            if any(statuses):
                fault = f"{job.name}: exit status {max(statuses, key=abs)}: {last_line(job.scratch)}"
        # A run that failed is one fault, whatever its files are like; else each file must match.
        found = _checksums(job.out)
        wrong = [file for file in _FILES if found.get(file) != unbroken.checksums.get(file)]
        if wrong and fault is None:
            fault = f"{job.name}: {', '.join(wrong)} differs from that of an unbroken run"
        with self.tally.lock:
            self.tally.folders += 1
            self.tally.identical += fault is None
        if fault is not None:
            self._note(fault)

    def _run_unbroken(self, kind: RunKind, optimizer: str, scratch: Path) -> _Unbroken:
        key = (kind, optimizer)
        # Two workers may both run the first of a kind: with equal bits, or it is a fault.
        if key not in self._unbroken:
            job = _Job(kind, optimizer, scratch / "unbroken", scratch)
            started_at = time.perf_counter()
            run = StartedRun(self._train(job), scratch, kind.num_ranks)
            run.wait_until(lambda: newest_checkpoint(job.out) > "")
            trains_at = time.perf_counter()
            run.wait_until(lambda: job.is_finished)
            ends_at = time.perf_counter()
            if any(run.wait()):
                raise ConfigError(f"train failed: {last_line(scratch)}")
            self._unbroken[key] = _Unbroken(_checksums(job.out), trains_at - started_at, ends_at - trains_at)
            shutil.rmtree(job.out)
            weights = self._unbroken[key].checksums["weights.safetensors"]
            with self.tally.lock:
                first = self._weights.setdefault((kind.decides, optimizer), weights)
            if first != weights:
                self._note(f"{job.name} has other weights than another placement")
        return self._unbroken[key]

    def _train(self, job: _Job) -> list[str]:
        config = self._config
        kind = job.kind
        arguments = ["train", str(self._scratch / "data"), "--out", str(job.out), "-q", "--threads", "1"]
        arguments += ["--placement", kind.placement, *kind.options, "--embedding-optimizer", job.optimizer]
        arguments += ["--checkpoint-every", str(config.checkpoint_every), "--epochs", str(config.epochs)]
        if kind.num_ranks > 1:
            arguments += ["--shares", str(NUM_SHARES)]
        if kind.is_continued:
            arguments += ["--init-from", str(self._scratch / "warm")]
        return [*arguments, "--log-every", "5", "--staging-bytes", "2MiB"]

    def _run_to_end(self, arguments: list[str], scratch: Path) -> None:
        if any(StartedRun(arguments, scratch).wait()):
            raise ConfigError(f"{arguments[0]} failed: {last_line(scratch)}")


def bench_train_kills(config: BenchTrainKillsConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Kill and resume until ``config.kills`` kills have hit training; return plain data, ready for JSON.

    ``identical`` of ``folders`` ended with the bits of the unbroken run; ``faults`` lists what else was
    wrong, a line each, and is empty if all went well.
    """
    # Every kind meets every optimizer, in turn.
    kinds = RANKED_KINDS if config.ranks else KINDS
    combinations = [(kind, optimizer) for optimizer in _OPTIMIZERS for kind in kinds]
    started_at = time.perf_counter()
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
                progress("kills", min(bench.tally.of_training, config.kills), config.kills)
        seconds = time.perf_counter() - started_at
        stall = measure_stall(config.stall_rows, Path(name)) if config.stall_rows else None
    tally = bench.tally
    return {
        "benchmark": "train-kills",
        "kills": tally.kills,
        "late": tally.late,
        "phases": {phase: tally.phases[phase] for phase in PHASES},
        "kinds": dict(tally.kinds),
        "optimizers": dict(tally.optimizers),
        "folders": tally.folders,
        "identical": tally.identical,
        "faults": tally.faults,
        "seconds": seconds,
        "stall": stall,
        "settings": recorded_settings(config),
        "machine": describe_machine(),
    }


def _any_moment(unbroken: _Unbroken, rng: random.Random) -> _Moment:
    """Draw when a resumed run is killed."""
    of_training = rng.random() >= _ANYWHERE
    before = 0.0 if of_training else unbroken.start_seconds
    return _Moment(rng.random() * (before + unbroken.train_seconds), of_training)


def _checksums(out: Path) -> dict[str, str]:
    return {name: hash_file(out / name)[1] for name in _FILES if (out / name).exists()}


def print_bench_train_kills(result: dict[str, Any], console: Console) -> None:
    """Print kills by what they hit as a table, and the outcome."""
    table = Table(box=None, pad_edge=False)
    table.add_column("killed during")
    table.add_column("kills", justify="right")
    for kind in ("phases", "kinds", "optimizers"):
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
