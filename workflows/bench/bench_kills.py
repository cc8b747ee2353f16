"""``hotset bench kills``: SIGKILL preprocessing at random moments, resume it, compare every byte.

Each folder's run is killed one to four times, in a stage drawn from those that are left and at a moment drawn
from the time that stage takes; each run draws its number of workers. After each kill, everything that has a
manifest must be complete. The last run is not killed, and its folder must hold exactly the bytes of an
undisturbed run. A kill that comes when every stage is finished is not counted.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, ManifestError, require_at_least
from ...pipeline.folders.checksum import hash_file
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.runtime.resources import ProgressCallback, silent
from ...pipeline.sizes import MIB, ByteSize
from ...pipeline.stages.stage_order import FOLDERS
from ..machine_facts import describe_machine
from .measuring.recorded_settings import recorded_settings

_HOT_BYTES = ByteSize(4 * MIB)
_MOST_KILLS_PER_FOLDER = 4
_POLL_SECONDS = 0.002
_SOONER = 0.8
"""Factor of the moment of a kill for each one before it that came too late."""
"""Interval at which the undisturbed run is watched for its manifests."""
Tree = dict[str, tuple[int, str]]
"""Bytes and checksum of every file below a folder, by relative path."""


@dataclass(frozen=True, kw_only=True)
class BenchKillsConfig:
    """Settings of the kill benchmark."""

    kills: int = 100
    """Number of kills that hit a run before its end."""

    samples: int = 300_000
    """Samples of the generated log."""

    seed: int = 0
    """Seed of the moments of kills, the numbers of workers and the log."""

    most_workers: int = 3
    """Most threads of a run; each draws its number from one to this."""

    hot_bytes: ByteSize = _HOT_BYTES
    """Fast memory for hot rows (bytes); the default is small so that both kinds of batches occur."""

    memory: ByteSize | None = None
    """Memory cap that half of the runs get, so that their stages spill (bytes); none by default. It must do
    for a run with the most workers."""

    engines: tuple[Literal["threads", "processes"], ...] = ("threads",)
    """Engines that runs draw theirs from, as in `hotset preprocess --engine`."""

    scratch: Path | None = None
    """Folder for temporary files, six times the log; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        for name in ("kills", "samples", "most_workers"):
            require_at_least(name, getattr(self, name), 1)
        if not self.engines:
            raise ConfigError("engines is empty: name threads, processes or both")


@dataclass(slots=True)
class _Tally:
    """Counts of what has happened so far."""

    kills: int = 0
    late: int = 0
    """Kills that came when every stage was finished; not among ``kills``."""
    late_in_turn: int = 0
    """Those of them since the last kill that hit."""
    folders: int = 0
    identical: int = 0
    """Folders that ended with the bytes of the undisturbed run."""
    stages: Counter[str] = field(default_factory=Counter)
    """Kills by the first stage that was not sealed when they came."""
    faults: list[str] = field(default_factory=list)
    """Whatever else was wrong, a line each."""


@dataclass(frozen=True, slots=True)
class _UnbrokenRun:
    """A run that nothing disturbed."""

    tree: Tree
    start_seconds: float
    """Seconds until its first folder existed: imports."""
    end_seconds: list[float]
    """Seconds from then to the manifest of each stage."""


def bench_kills(config: BenchKillsConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Kill and resume until ``config.kills`` kills have hit; return plain data, ready for JSON.

    ``identical`` of ``folders`` ended with the bytes of the unbroken run; ``faults`` lists what else was
    wrong, a line each, and is empty if all went well.
    """
    rng = random.Random(config.seed)
    tally = _Tally()
    with tempfile.TemporaryDirectory(prefix="hotset-kills-", dir=config.scratch) as name:
        scratch = Path(name)
        generate(GenerateConfig(samples=config.samples, seed=config.seed), scratch / "log.tsv")
        # The bytes to end with, and how long each stage takes: moments are drawn from that.
        unbroken = _run_unbroken(config, scratch)
        _refuse_cap(config, scratch, unbroken.tree)
        while tally.kills < config.kills:
            _kill_and_resume(config, scratch, unbroken, rng, tally)
            progress("kills", min(tally.kills, config.kills), config.kills)
    # Kills by stage, and what became of every folder.
    return {
        "benchmark": "kills",
        "kills": tally.kills,
        "late": tally.late,
        "stages": {stage: tally.stages[stage] for stage in FOLDERS},
        "folders": tally.folders,
        "identical": tally.identical,
        "faults": tally.faults,
        "unbroken": {
            "start_seconds": unbroken.start_seconds,
            "end_seconds": dict(zip(FOLDERS, unbroken.end_seconds, strict=True)),
            "files": len(unbroken.tree),
            "bytes": sum(num_bytes for num_bytes, _ in unbroken.tree.values()),
        },
        "settings": recorded_settings(config),
        "machine": describe_machine(),
    }


def _start(
    config: BenchKillsConfig, scratch: Path, out: Path, rng: random.Random | None = None
) -> subprocess.Popen[bytes]:
    """Start preprocessing into ``out``: with one thread and no cap, or with both drawn from ``rng``."""
    arguments = ["preprocess", str(scratch / "log.tsv"), "--out", str(out)]
    arguments += ["--hot-bytes", str(config.hot_bytes)]
    arguments += ["--workers", str(rng.randint(1, config.most_workers) if rng else 1)]
    # Each run draws cap and engine anew: a resumed run must not depend on those of the run before.
    if rng and config.memory is not None and rng.random() < 0.5:
        arguments += ["--memory", str(config.memory)]
    if rng and config.engines != ("threads",):
        arguments += ["--engine", rng.choice(config.engines)]
    return start_command(arguments, scratch)


def start_command(arguments: list[str], scratch: Path) -> subprocess.Popen[bytes]:
    with open(scratch / "messages.txt", "wb") as messages:
        command = [sys.executable, "-m", "hotset.workflows.cli", *arguments]
        return subprocess.Popen(command, stdout=messages, stderr=messages)


def _run_unbroken(config: BenchKillsConfig, scratch: Path) -> _UnbrokenRun:
    """Run twice and time the second run: the first one may have to compile."""
    out = scratch / "unbroken"
    # The second run compiles nothing, so the moments drawn from it hit what they aim at.
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        started_at = time.perf_counter()
        with _start(config, scratch, out) as process:
            ready_at = _wait_for(out, process)
            ends = [_wait_for(out / name / MANIFEST, process) - ready_at for name in FOLDERS.values()]
        if process.returncode:
            raise ConfigError(f"preprocess failed: {last_line(scratch)}")
    return _UnbrokenRun(tree_checksums(out), ready_at - started_at, ends)


def _refuse_cap(config: BenchKillsConfig, scratch: Path, wanted: Tree) -> None:
    """Raise ConfigError where a run with the most workers cannot keep the cap: it would count as a fault."""
    if config.memory is None:
        return
    out = scratch / "capped"
    arguments = ["preprocess", str(scratch / "log.tsv"), "--out", str(out)]
    arguments += ["--hot-bytes", str(config.hot_bytes), "--workers", str(config.most_workers)]
    # Under the cap, with as many workers as any run has, and with each engine that runs may have.
    for engine in config.engines:
        named = [*arguments, "--memory", str(config.memory), "--engine", engine]
        with start_command(named, scratch) as process:
            process.wait()
        if process.returncode:
            raise ConfigError(
                f"{config.most_workers} workers cannot keep within {config.memory} bytes ({engine}): "
                f"{last_line(scratch)}",
                hint="raise --memory, or lower --most-workers",
            )
        # The cap may change the way to the bytes, not the bytes.
        if tree_checksums(out) != wanted:
            raise ConfigError("a run within --memory ends with other bytes than one without")
        shutil.rmtree(out)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> float:
    """Wait until ``path`` exists or the process has ended; return the time."""
    while not path.exists() and process.poll() is None:
        time.sleep(_POLL_SECONDS)
    return time.perf_counter()


def _kill_and_resume(
    config: BenchKillsConfig, scratch: Path, unbroken: _UnbrokenRun, rng: random.Random, tally: _Tally
) -> None:
    """Kill the runs of one folder a few times, then let one run to the end, and compare."""
    out = scratch / "killed"
    for _ in range(rng.randint(1, _MOST_KILLS_PER_FOLDER)):
        process = _start(config, scratch, out, rng)
        seconds = unbroken.start_seconds + _draw_moment(unbroken.end_seconds, _stage_hit(out), rng)
        # Where the machine was busy while the undisturbed run was timed, all moments would come too late.
        seconds *= _SOONER**tally.late_in_turn
        status = kill_after(seconds, process)
        stage = _stage_hit(out)
        # Whatever looks finished now must be complete: the next run will trust it.
        tally.faults += _check_sealed(out, unbroken.tree)
        if status > 0:
            # Negative is the kill; positive is an error of the run itself.
            tally.faults.append(f"a resumed run ended with exit status {status}: {last_line(scratch)}")
        # Where every stage is sealed, the kill came too late, and this folder takes no more of them.
        tally.late += stage is None
        tally.late_in_turn = tally.late_in_turn + 1 if stage is None else 0
        if stage is None or tally.kills == config.kills:
            break
        tally.kills += 1
        tally.stages[stage] += 1

    # Nothing disturbs the last run, so its folder has to match.
    with _start(config, scratch, out, rng) as process:
        process.wait()
    is_identical = process.returncode == 0 and tree_checksums(out) == unbroken.tree
    tally.folders += 1
    tally.identical += is_identical
    if not is_identical:
        how = f"exit status {process.returncode}: {last_line(scratch)}"
        tally.faults.append(f"folder {tally.folders} differs from an unbroken one ({how})")
    # A run that was refused has made none.
    shutil.rmtree(out, ignore_errors=True)


def _draw_moment(end_seconds: list[float], first: str | None, rng: random.Random) -> float:
    """Draw when to kill a run that resumes at the stage ``first`` (seconds after its imports).

    The stage is drawn first, so that short stages are hit as often as long ones.
    """
    bounds = [0.0, *end_seconds]
    first_number = list(FOLDERS).index(first or "ingest")
    number = rng.randrange(first_number, len(FOLDERS))
    return rng.uniform(bounds[number], bounds[number + 1]) - bounds[first_number]


def kill_after(seconds: float, process: subprocess.Popen[bytes]) -> int:
    """Kill the process after ``seconds``; return its exit status, negative if the kill came in time."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait()


def _stage_hit(out: Path) -> str | None:
    """Return the first stage without a manifest; None if all are finished."""
    return next((stage for stage, name in FOLDERS.items() if not (out / name / MANIFEST).exists()), None)


def _check_sealed(out: Path, wanted: Tree) -> list[str]:
    """Return a line for each file that looks finished but differs from the unbroken run.

    A file looks finished when it is a manifest or is listed in one.
    """
    # Only folders with a manifest claim to be finished.
    faults = []
    for name in FOLDERS.values():
        try:
            if not (out / name / MANIFEST).exists():
                continue
            listed = {f"{name}/{entry.path}" for entry in Manifest.read(out / name).files}
        except ManifestError as error:
            faults.append(str(error))
            continue
        # Every file that the manifest lists, and the manifest itself.
        for path in sorted({*listed, f"{name}/{MANIFEST}"}):
            if not (out / path).exists() or hash_file(out / path) != wanted.get(path):
                faults.append(f"{path} looks finished and is not")
    return faults


def tree_checksums(folder: Path) -> Tree:
    """Return every file below ``folder``, hidden ones too."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}


def last_line(scratch: Path) -> str:
    lines = (scratch / "messages.txt").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it printed nothing"


def print_bench_kills(result: dict[str, Any], console: Console) -> None:
    """Print kills by stage as a table, and the outcome."""
    table = Table(box=None, pad_edge=False)
    table.add_column("killed in")
    table.add_column("kills", justify="right")
    for stage, kills in result["stages"].items():
        table.add_row(stage, str(kills))
    console.print(table, "")
    # The one figure that counts, then every folder that differs.
    console.print(
        f"{result['kills']} kills, {result['settings']['samples']:,} samples: "
        f"[bold]{result['identical']} of {result['folders']}[/] folders are identical to those of an "
        "unbroken run.",
        soft_wrap=True,
    )
    for fault in result["faults"]:
        console.print(fault, soft_wrap=True, markup=False)


CONFIG = BenchKillsConfig
measure = bench_kills
show = print_bench_kills
