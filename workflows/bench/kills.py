"""SIGKILL preprocessing or training at random moments, resume it, and compare every byte.

A folder is killed a few times, at moments counted from its first file or checkpoint; then one run ends
undisturbed and must leave the bytes of a run that nothing disturbed. Of a run on two ranks one is killed, the
other must stop by itself, and one rank or four go on. ``--of restarts``: torchrun must bring two ranks back
by itself, with one restart; no wait is longer than two minutes. Runs of all placements with one order of
batches must end with the same weights. ``--of train`` also measures how long training pauses for a
checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import torch

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import MANIFEST, hash_file
from ...train.build import build_trainer
from ...train.checkpoints.resume import RunCheckpoints
from ...train.config import METRICS, PlacementName, TrainConfig
from ...train.config_parts import CheckpointSettings
from ...train.data.shards import ShardSet
from ...train.run_folder.files import CHECKPOINTS
from ..characterise import DrawnShards
from . import harness
from .harness import Facts, Options, tell

_FILES = ("weights.safetensors", "states.safetensors", "metrics.jsonl", "batch_order.npy")
"""Files of a finished run that must have the bytes of an unbroken one."""
_OPTIMIZERS = ("sgd", "adagrad", "adam")
_RESTARTED: tuple[PlacementName, ...] = ("all-fast", "lookahead")
_SLOW_BYTES = "1280KiB"
"""Less than the rows of the log take with any optimizer, and enough for those of Adam by their next use."""
_MOST_KILLS_PER_FOLDER = 4
_MOST_WORKERS = 2
_PATIENCE = 120
"""Seconds after which ranks that are still there do not stop by themselves."""
_LONGEST_SECONDS = 1800
"""Seconds that an unbroken run may take."""
_POLL_SECONDS = 0.002
_STALL_TABLES, _STALL_REPEATS, _FEW = 26, 5, 100


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to preprocess or train."""

    name: str
    arguments: tuple[str, ...]
    marker: str
    """Path in its folder that exists once it is worth killing."""
    optimizer: str = ""
    num_ranks: int = 1
    order: str = ""
    """Runs of one order and optimizer end with the same weights."""


class Unbroken(NamedTuple):
    """A run that nothing disturbed."""

    checksums: dict[str, object]
    start_seconds: float
    """Until its marker existed."""
    seconds: float
    """From there to its end."""
    num_steps: int
    """Steps that it trained; 0 where it trained none."""


PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--of", choices=("preprocess", "train", "ranks", "restarts"), default="preprocess")
PARSER.add_argument("--kills", type=int, default=100, help="kills that hit a run before its end")
PARSER.add_argument("--samples", type=int, help="samples of the log: 100,000 or, to train, 10,000")
PARSER.add_argument("--seed", type=int, default=0, help="seed of the moments")
PARSER.add_argument("--stall-rows", type=int, default=10_000_000, help="rows of the checkpoint timed")


def measure(options: Options, scratch: Path) -> Facts:
    """Kill and resume until enough kills have hit; ``faults`` is empty if all went well."""
    rng = random.Random(options.seed)
    # Kills after a run was finished are late, and not among the others.
    tally: Facts = {"kills": 0, "late": 0, "kinds": Counter(), "folders": 0, "identical": 0, "faults": []}
    tally["restarts"] = []
    unbroken: dict[Kind, Unbroken] = {}
    weights: dict[tuple[str, str], object] = {}
    kinds = itertools.cycle(_prepare(options, scratch))
    while tally["kills"] < options.kills and tally["late"] <= 2 * options.kills:
        kind = next(kinds)
        if kind not in unbroken:
            unbroken[kind] = _run_unbroken(kind, scratch)
            found = unbroken[kind].checksums.get(_FILES[0])
            if weights.setdefault((kind.order, kind.optimizer), found) != found:
                tally["faults"].append(f"{kind.name} has other weights than another placement")
        if options.of == "restarts":
            _kill_and_wait(kind, unbroken[kind], scratch, rng, tally)
        else:
            _kill_and_resume(kind, unbroken[kind], scratch, rng, tally, options.kills)
        tell("{kills} kills, {identical} of {folders} folders identical".format(**tally))
    stall = measure_stall(options.stall_rows, scratch) if options.of == "train" else None
    return tally | {"stall": stall}


def _prepare(options: Options, scratch: Path) -> list[Kind]:
    """Write the log and, to train, the shards; return what is killed in turn."""
    data = scratch / "data"
    is_preprocess = options.of == "preprocess"
    samples = options.samples or (100_000 if is_preprocess else 10_000)
    log = harness.new_log(scratch, samples, seed=options.seed, scale=1 if is_preprocess else 20)
    if is_preprocess:
        return [Kind("preprocess", ("preprocess", str(log), "--hot-bytes", "1MiB"), "columns")]
    words = ["preprocess", str(log), "--out", str(data), "--hot-bytes", "256KiB", "--batch-size", "512", "-q"]
    harness.run_hotset(words, scratch)
    # The run from whose weights others start; it compiles what all will use.
    harness.run_hotset([*_training(data, "cache", "adam"), "--out", str(scratch / "warm")], scratch)
    return _training_kinds(data, scratch / "warm", options.of)


def _training_kinds(data: Path, warm: Path, of: str) -> list[Kind]:
    spilled, started = ("--slow-bytes", _SLOW_BYTES), ("--init-from", str(warm))
    ways: list[tuple[str, tuple[str, ...], int]] = [(each, (), 1) for each in get_args(PlacementName)]
    ways += [("lookahead", spilled, 1), ("hybrid", ("--slow-bytes", "1"), 1), ("cache", started, 1)]
    ways += [("lookahead", (*spilled, *started), 1), ("lookahead", (), 2)]
    if of == "ranks":
        ways = [(each, (), 2) for each in get_args(PlacementName)]
    elif of == "restarts":
        # Long enough that a kill does not only meet the end.
        ways = [(each, ("--epochs", "8"), 2) for each in _RESTARTED]
    kinds = []
    for optimizer in _OPTIMIZERS if of != "restarts" else _OPTIMIZERS[:1]:
        for placement, more, num_ranks in ways:
            shares = ("--micro-batches", "4") if num_ranks > 1 else ()
            plain = [word for word in more if not word.startswith("/")]
            name = [placement, *plain, optimizer, *([f"{num_ranks} ranks"] if num_ranks > 1 else [])]
            order = f"{placement == 'fae'} {num_ranks} {'--init-from' in more}"
            words = (*_training(data, placement, optimizer), *more, *shares)
            kinds.append(Kind(" ".join(name), words, CHECKPOINTS, optimizer, num_ranks, order))
    return kinds


def _training(data: Path, placement: str, optimizer: str) -> list[str]:
    words = ["train", str(data), "-q", "--threads", "1", "--placement", placement, "--epochs", "2"]
    words += ["--embedding-optimizer", optimizer, "--checkpoint-every", "3", "--log-every", "5"]
    return [*words, "--staging-bytes", "2MiB"]


def _end(processes: Sequence[subprocess.Popen[bytes]], timeout: float | None = None) -> list[int]:
    """Wait for the end of all processes, which are killed after ``timeout``; return exit statuses."""
    for process in processes:
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            for rank in _ranks_of(process).values():
                os.kill(rank, signal.SIGKILL)
            process.kill()
    return [process.wait() for process in processes]


def _wait_for(is_there: Callable[[], bool], processes: Sequence[subprocess.Popen[bytes]]) -> float:
    """Wait until something is there, a process has ended or it takes too long; return the time."""
    last = time.perf_counter() + _PATIENCE
    while not is_there() and all(process.poll() is None for process in processes):
        if time.perf_counter() > last:
            break
        time.sleep(_POLL_SECONDS)
    return time.perf_counter()


def _run_unbroken(kind: Kind, scratch: Path) -> Unbroken:
    """Run twice and time the second run: the first one may have to compile."""
    out = scratch / "unbroken"
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        begin = time.perf_counter()
        processes = harness.start_hotset(
            [*kind.arguments, "--out", str(out)], scratch, kind.num_ranks, _PATIENCE
        )
        ready = _wait_for((out / kind.marker).exists, processes)
        if any(_end(processes, _LONGEST_SECONDS)):
            raise ConfigError(f"{kind.name} failed: {harness.last_message(scratch)}")
        ended = time.perf_counter()
    found = Unbroken(_checksums(kind, out), ready - begin, ended - ready, _step_of(out))
    shutil.rmtree(out)
    return found


def _checksums(kind: Kind, out: Path) -> dict[str, object]:
    """Return every file of a folder by its checksum, of a run those that must have equal bytes."""
    if kind.optimizer:
        return {name: hash_file(out / name) for name in _FILES if (out / name).exists()}
    paths = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {path.relative_to(out).as_posix(): hash_file(path) for path in paths}


def _is_finished(kind: Kind, out: Path) -> bool:
    return (out / ("" if kind.optimizer else "shards") / MANIFEST).exists()


def _kill_and_resume(
    kind: Kind, unbroken: Unbroken, scratch: Path, rng: random.Random, tally: Facts, most_kills: int
) -> None:
    """Kill the runs of one folder a few times, then let one run to the end, and compare."""
    out = scratch / "killed"
    arguments = [*kind.arguments, "--out", str(out)]
    for _ in range(rng.randint(1, _MOST_KILLS_PER_FOLDER)):
        # Another number of workers each time: a resumed run must not depend on the run before.
        workers = [] if kind.optimizer else ["--workers", str(rng.randint(1, _MOST_WORKERS))]
        processes = harness.start_hotset([*arguments, *workers], scratch, kind.num_ranks, timeout=20)
        _wait_for((out / kind.marker).exists, processes)
        victim = rng.randrange(kind.num_ranks)
        # A resumed run has its marker from the beginning, and still has to start.
        start = unbroken.start_seconds if rng.random() < 0.5 else 0.0
        seconds = rng.random() * (start + unbroken.seconds)
        try:
            processes[victim].wait(seconds)
        except subprocess.TimeoutExpired:
            processes[victim].kill()
        statuses = _end(processes, _PATIENCE)
        if any(status < 0 for rank, status in enumerate(statuses) if rank != victim):
            tally["faults"].append(f"{kind.name}: a rank did not stop when another was killed")
        if statuses[victim] > 0:
            tally["faults"].append(
                f"{kind.name}: exit status {statuses[victim]}: {harness.last_message(scratch)}"
            )
        if _is_finished(kind, out) or statuses[victim] >= 0:
            tally["late"] += 1
            break
        tally["kills"] += 1
        tally["kinds"][kind.name] += 1
        if tally["kills"] == most_kills:
            break
    # Nothing disturbs the last run, so its folder has to match; another number of ranks goes on.
    num_ranks = rng.choice((1, 4)) if kind.num_ranks > 1 else 1
    status = 0
    if not (kind.optimizer and _is_finished(kind, out)):
        status = max(_end(harness.start_hotset(arguments, scratch, num_ranks, _PATIENCE)), key=abs)
    _compare(kind, unbroken, out, status, harness.last_message(scratch), tally)


def _compare(kind: Kind, unbroken: Unbroken, out: Path, status: int, message: str, tally: Facts) -> bool:
    """Count a folder that has ended, remove it, and return whether it has the bytes of an unbroken run."""
    is_identical = status == 0 and _checksums(kind, out) == unbroken.checksums
    tally["folders"] += 1
    tally["identical"] += is_identical
    if not is_identical:
        tally["faults"].append(f"{kind.name} differs (exit status {status}: {message})")
    shutil.rmtree(out, ignore_errors=True)
    return is_identical


def _kill_and_wait(kind: Kind, unbroken: Unbroken, scratch: Path, rng: random.Random, tally: Facts) -> None:
    """Kill one rank of a launch that may start its ranks again once, and compare what it ends with."""
    out = scratch / "killed"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(kind.num_ranks)]
    words = [*launch, "--max-restarts", "1", "-m", "hotset", *kind.arguments, "--out", str(out)]
    messages = scratch / "launch.txt"
    with messages.open("wb") as file:
        launcher = subprocess.Popen([sys.executable, *words], stdout=file, stderr=file)
    # By its steps, not by the clock: a busy machine kills as early as an idle one.
    wanted = rng.randrange(unbroken.num_steps)
    _wait_for(lambda: (out / kind.marker).exists() and _step_of(out) >= wanted, [launcher])
    ranks = _ranks_of(launcher)
    rank = rng.randrange(kind.num_ranks)
    is_late = _is_finished(kind, out) or len(ranks) < kind.num_ranks
    step = _step_of(out)
    if not is_late:
        os.kill(ranks[rank], signal.SIGKILL)
    begin = time.perf_counter()
    (status,) = _end([launcher], _PATIENCE)
    seconds = time.perf_counter() - begin
    said = messages.read_text(errors="replace").splitlines()
    is_identical = _compare(kind, unbroken, out, status, said[-1] if said else "", tally)
    tally["late" if is_late else "kills"] += 1
    if not is_late:
        facts = {"kind": kind.name, "rank": rank, "step": step, "seconds_to_end": round(seconds, 1)}
        errors = [line for line in said if "error: " in line][:1]
        tally["restarts"].append(facts | {"status": status, "identical": is_identical, "said": errors})


def _step_of(out: Path) -> int:
    """Return the last step in the metrics of a run; 0 before the first."""
    text = (out / METRICS).read_text() if (out / METRICS).exists() else ""
    lines = text.split("\n")[:-1]  # without one that is half written
    return int(json.loads(lines[-1])["step"]) if lines else 0


def _ranks_of(launcher: subprocess.Popen[bytes]) -> dict[int, int]:
    """Return the process of each rank of a launch that is still there."""
    found = {}
    with suppress(OSError):
        for child in Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split():
            with suppress(OSError):
                for each in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    if each.startswith(b"RANK="):
                        found[int(each[5:])] = int(child)
    return found


def measure_stall(num_rows: int, scratch: Path) -> Facts:
    """Return how long training pauses for checkpoints of so many rows of width 16 with Adagrad."""
    rows_of_table = max(num_rows // _STALL_TABLES, 2)
    drawn = DrawnShards(rows_of_table=rows_of_table, hot_rows_of_table=1, skew=0.0, num_batches=1)
    drawn.write(scratch / "drawn" / "shards")
    config = TrainConfig(placement="all-fast", embedding_optimizer="adagrad", threads=1)
    # No step is trained: rows are marked as changed, and what a checkpoint then costs is measured.
    trainer = build_trainer(ShardSet.open(scratch / "drawn"), config, tracks_changes=True)
    settings = CheckpointSettings(checkpoint_every=1, keep_checkpoints=1)
    saved = RunCheckpoints(trainer, scratch / "checkpoints", "", settings)
    found: dict[str, list[float]] = {"few_changed_ms": [], "all_changed_ms": [], "copy_ms": []}
    longest: list[float] = []
    for _ in range(_STALL_REPEATS):
        for name, step in (("few_changed_ms", _FEW), ("all_changed_ms", 1)):
            for width in trainer.embeddings.groups:
                assert width.changed is not None
                rows = torch.arange(0, sum(width.placement.num_rows), step).numpy()
                width.changed.mark_rows(rows, is_saved=False)
            # A checkpoint belongs to a step, so one is counted as taken, with any batch.
            trainer.step += 1
            trainer.batch_numbers.append(0)
            saved.take([])
            while saved.is_under_way:
                saved.advance()
                saved.settle()
                time.sleep(0.005)
            found[name].append(1000 * saved.stall_seconds)
            assert saved.last_written == trainer.step
        longest.append(1000 * saved.longest_stall_seconds)
        begin = time.perf_counter()
        for width in trainer.embeddings.groups:
            width.fast.weights_SD.clone()
            width.fast.state_SW.clone()
        found["copy_ms"].append(1000 * (time.perf_counter() - begin))
    saved.close()
    trainer.embeddings.transfers.close()
    return {"rows": rows_of_table * _STALL_TABLES, **found, "all_changed_longest_ms": longest}


if __name__ == "__main__":
    harness.main(PARSER, measure)
