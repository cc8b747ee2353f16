"""``hotset bench kills``: SIGKILL preprocessing at random moments, run it again, compare every byte.

Each folder is killed one to four times, in a stage drawn from those it has left and at a moment drawn from
the time that stage takes; each run has another number of workers. After each kill whatever has a manifest
must be whole; the last run is left alone, and its folder must hold the bytes of a run that nothing
disturbed. A kill that comes when every folder is finished counts for nothing.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, ManifestError
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ...pipeline.folders.output import hash_file
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.runtime.tasks import ProgressCallback, silent
from ...pipeline.sizes import MIB, ByteSize
from ...pipeline.stages.preprocess import FOLDERS
from .bench_harness import describe_machine

_HOT_BYTES = ByteSize(4 * MIB)
_MOST_KILLS_A_FOLDER = 4
_POLL_SECONDS = 0.002
Tree = dict[str, tuple[int, str]]
"""Every file below a folder: bytes and checksum by relative path."""


@dataclass(frozen=True, kw_only=True)
class BenchKillsConfig:
    """What the kill benchmark may vary."""

    kills: int = 100
    """Kills that hit a run before its end."""

    samples: int = 300_000
    """Samples of the generated log."""

    seed: int = 0
    """Of the moments, the workers and the log."""

    most_workers: int = 3
    """Each run has from one to this many threads."""

    hot_bytes: ByteSize = _HOT_BYTES
    """Fast memory for hot rows, small enough here that both kinds of batches occur (bytes)."""

    memory: ByteSize | None = None
    """Cap that half of the runs keep, so that stages spill there (bytes); none by default."""

    scratch: Path | None = None
    """Folder for what comes and goes, six times the log; the system's own by default."""

    def __post_init__(self) -> None:
        for name in ("kills", "samples", "most_workers"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")


@dataclass(slots=True)
class _Tally:
    """What has happened so far."""

    kills: int = 0
    late: int = 0
    """Kills that came when every folder was finished; not among ``kills``."""
    folders: int = 0
    identical: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    """Kills by the first stage that was not sealed when they came."""
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Unbroken:
    """A run that nothing disturbed."""

    tree: Tree
    start_seconds: float
    """Until its first folder was there: imports."""
    end_seconds: list[float]
    """From there to the manifest of each stage."""


def bench_kills(config: BenchKillsConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Kill and resume until ``config.kills`` kills have hit; plain data, ready for JSON.

    ``identical`` of ``folders`` ended in the bytes of the unbroken run; ``faults`` says what else was found,
    a line each, and is empty where all went well.
    """
    luck, tally = random.Random(config.seed), _Tally()
    with tempfile.TemporaryDirectory(prefix="hotset-kills-", dir=config.scratch) as name:
        scratch = Path(name)
        generate(GenerateConfig(samples=config.samples, seed=config.seed), scratch / "log.tsv")
        unbroken = _run_unbroken(config, scratch)
        while tally.kills < config.kills:
            _kill_and_resume(config, scratch, unbroken, luck, tally)
            progress("kills", min(tally.kills, config.kills), config.kills)
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
        "settings": {name: setting for name, setting in asdict(config).items() if name != "scratch"},
        "machine": describe_machine(),
    }


def _start(
    config: BenchKillsConfig, scratch: Path, out: Path, luck: random.Random | None = None
) -> subprocess.Popen[bytes]:
    """Preprocess into ``out``: with one thread and no cap, or as luck has it."""
    words = ["preprocess", str(scratch / "log.tsv"), "--out", str(out), "--hot-bytes", str(config.hot_bytes)]
    words += ["--workers", str(luck.randint(1, config.most_workers) if luck else 1)]
    if luck and config.memory is not None and luck.random() < 0.5:
        words += ["--memory", str(config.memory)]
    with open(scratch / "messages.txt", "wb") as messages:
        command = [sys.executable, "-m", "hotset.workflows.cli", *words]
        return subprocess.Popen(command, stdout=messages, stderr=messages)


def _run_unbroken(config: BenchKillsConfig, scratch: Path) -> _Unbroken:
    out = scratch / "unbroken"
    for _ in range(2):  # the first one may have to compile
        shutil.rmtree(out, ignore_errors=True)
        began = time.perf_counter()
        with _start(config, scratch, out) as process:
            started = _wait_for(out, process)
            ends = [_wait_for(out / name / MANIFEST, process) - started for name in FOLDERS.values()]
        if process.returncode:
            raise ConfigError(f"preprocess failed: {_last_line(scratch)}")
    return _Unbroken(tree_checksums(out), started - began, ends)


def _wait_for(path: Path, process: subprocess.Popen[bytes]) -> float:
    """When ``path`` was there, or the process had ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(_POLL_SECONDS)
    return time.perf_counter()


def _kill_and_resume(
    config: BenchKillsConfig, scratch: Path, unbroken: _Unbroken, luck: random.Random, tally: _Tally
) -> None:
    """One folder: killed a few times, then run to the end and compared."""
    out = scratch / "killed"
    for _ in range(luck.randint(1, _MOST_KILLS_A_FOLDER)):
        process = _start(config, scratch, out, luck)
        seconds = unbroken.start_seconds + _draw_moment(unbroken.end_seconds, _stage_hit(out), luck)
        status, stage = _kill_after(seconds, process), _stage_hit(out)
        tally.faults += _check_sealed(out, unbroken.tree)
        if status > 0:
            tally.faults.append(f"a resumed run ended with exit status {status}: {_last_line(scratch)}")
        tally.late += stage is None
        if stage is None or tally.kills == config.kills:
            break
        tally.kills += 1
        tally.stages[stage] += 1
    with _start(config, scratch, out, luck) as process:
        process.wait()
    is_identical = process.returncode == 0 and tree_checksums(out) == unbroken.tree
    tally.folders += 1
    tally.identical += is_identical
    if not is_identical:
        how = f"exit status {process.returncode}: {_last_line(scratch)}"
        tally.faults.append(f"folder {tally.folders} differs from an unbroken one ({how})")
    shutil.rmtree(out)


def _draw_moment(end_seconds: list[float], first: str | None, luck: random.Random) -> float:
    """Seconds after the start, for a run that goes on from the stage ``first``."""
    begins, first_number = [0.0, *end_seconds], list(FOLDERS).index(first or "ingest")
    number = luck.randrange(first_number, len(FOLDERS))
    return luck.uniform(begins[number], begins[number + 1]) - begins[first_number]


def _kill_after(seconds: float, process: subprocess.Popen[bytes]) -> int:
    """Exit status of the process; negative where the kill came before its end."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait()


def _stage_hit(out: Path) -> str | None:
    """The first stage without a manifest; None where the run had finished them all."""
    return next((stage for stage, name in FOLDERS.items() if not (out / name / MANIFEST).exists()), None)


def _check_sealed(out: Path, wanted: Tree) -> list[str]:
    """What has a manifest, or is listed in one, and has not the bytes of the unbroken run."""
    faults = []
    for name in FOLDERS.values():
        try:
            if not (out / name / MANIFEST).exists():
                continue
            listed = {f"{name}/{entry.path}" for entry in Manifest.read(out / name).files}
        except ManifestError as error:
            faults.append(str(error))
            continue
        for path in sorted({*listed, f"{name}/{MANIFEST}"}):
            if not (out / path).exists() or hash_file(out / path) != wanted.get(path):
                faults.append(f"{path} looks finished and is not")
    return faults


def tree_checksums(folder: Path) -> Tree:
    """Every file below ``folder``, hidden ones too."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hash_file(path) for path in paths}


def _last_line(scratch: Path) -> str:
    lines = (scratch / "messages.txt").read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it said nothing"


def print_bench_kills(result: dict[str, Any], console: Console) -> None:
    """Kills by stage as a table, and what became of them."""
    table = Table(box=None, pad_edge=False)
    table.add_column("killed in")
    table.add_column("kills", justify="right")
    for stage, kills in result["stages"].items():
        table.add_row(stage, str(kills))
    console.print(table, "")
    console.print(
        f"{result['kills']} kills, {result['settings']['samples']:,} samples: "
        f"[bold]{result['identical']} of {result['folders']}[/] folders became those of an unbroken run.",
        soft_wrap=True,
    )
    for fault in result["faults"]:
        console.print(fault, soft_wrap=True, markup=False)


CONFIG, measure, show = BenchKillsConfig, bench_kills, print_bench_kills
