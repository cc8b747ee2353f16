"""``hotset bench growth``: raw log to shards at growing sizes: speed, memory and disk use of every stage.

Each size runs in a fresh process after a warm-up. The question is whether anything grows faster than the log:
anonymous memory should never exceed the cap, and samples per second should not fall, unless more is written
than the disk can sustain. So the disk's sustained rate is measured too, on a file that is synced.

CPU seconds are told apart by the mode they were spent in. Those of user mode are hotset's own work. Those of
the system are mostly pages: each of the files that are written and of the memory that is filled has to be
found and cleared, and in a virtual machine that gave its free memory back to the host, to be asked for again.
A page of 4 KiB took 0.7 us where the machine had it and 4 to 8 us where the host did, so a large log, whose
pages the runs before it have not used, looks slower for each sample. Memory is touched before each run for
that reason, as far as half of what is available goes.

The same job in Polars, all in memory, runs beside it as far as it gets: a size is skipped if the memory that
the previous size took, scaled in proportion, exceeds what is free.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ...pipeline.errors import ConfigError
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.runtime.memory import default_memory_bytes
from ...pipeline.runtime.resources import Resources
from ...pipeline.runtime.tasks import num_workers
from ...pipeline.sizes import GIB, MIB, ByteSize, format_byte_size
from ...pipeline.stages.preprocess import PreprocessConfig, StageReport, preprocess
from ..console import plain_table
from ..machine_facts import describe_machine
from ..recipes import criteo_kaggle
from .measuring.fresh_process import (
    AnonymousMemory,
    Candidate,
    Measurement,
    measure_in_fresh_process,
    memory_bytes,
)
from .polars_baseline import polars_program

_PROFILE = "criteo-kaggle"
_WARM_UP_SAMPLES = 2000
_RATE_BYTES = 4 * GIB
"""Size of the file on which the disk's rate is measured."""
_ROOM_PER_SAMPLE = 450
"""Bytes that all stages write for each sample."""
_MOST_OF_FREE = 0.8
"""Share of the free memory that Polars may be expected to need."""


@dataclass(frozen=True, kw_only=True)
class BenchGrowthConfig:
    """Settings of the growth benchmark."""

    samples: str = "1000000,4000000,20000000"
    """Sizes of the generated logs in samples, separated by commas."""

    memory: ByteSize | None = None
    """Cap on anonymous resident memory (bytes); a quarter of the machine's memory by default."""

    seed: int = 0
    """Seed of the generated logs."""

    workers: int = 0
    """Threads; 0 uses every core."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows (bytes); the recipe's by default."""

    polars: bool = field(default=True, metadata={"help": "Do not run the same job in Polars."})
    """Run the same job in Polars too, as far as the memory allows."""

    scratch: Path | None = None
    """Folder for temporary files, three times the largest log; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        self.sizes()

    def sizes(self) -> list[int]:
        """Return the sizes as numbers; raises ConfigError where one is no positive number."""
        sizes = self.samples.split(",")
        if not all(size.strip().isdecimal() and int(size) > 0 for size in sizes):
            raise ConfigError(
                f"samples must be whole numbers above 0, separated by commas, got {self.samples!r}"
            )
        return [int(size) for size in sizes]


CONFIG = BenchGrowthConfig


def measure(config: BenchGrowthConfig) -> dict[str, Any]:
    """Preprocess a log of each size; return plain data, ready for JSON."""
    machine = describe_machine()
    workers = num_workers(config.workers)
    recipe = _recipe(config)
    cap_bytes = config.memory or default_memory_bytes()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as name:
        scratch = Path(name)
        # The disk comes first, while nothing else writes.
        rate = measure_write_rate(scratch / "rate", _RATE_BYTES)
        warm_up = scratch / "warm_up.tsv"
        generate(GenerateConfig(profile=_PROFILE, samples=_WARM_UP_SAMPLES), warm_up, workers=workers)
        for num_samples in config.sizes():
            log = scratch / "log.tsv"
            wanted = GenerateConfig(profile=_PROFILE, samples=num_samples, seed=config.seed)
            generate(wanted, log, workers=workers)
            os.sync()  # else the log's own pages compete with the run for the disk
            # Each size runs in a fresh process, whose peak memory is its own.
            arguments = (workers, recipe, cap_bytes)
            # What the run may need is touched before the clock starts: fresh pages cost time.
            room_bytes = num_samples * _ROOM_PER_SAMPLE + cap_bytes
            candidate = Candidate(
                "hotset",
                "raw TSV to shards",
                preprocess_by_stage,
                (warm_up, *arguments),
                (log, *arguments),
                room_bytes,
            )
            measured = measure_in_fresh_process(candidate, scratch, workers=workers)
            run = _run(measured, log.stat().st_size, rate)
            if config.polars:
                run["polars"] = _run_polars(runs, num_samples, (warm_up, log), scratch, workers, recipe)
            runs.append(run)
            log.unlink()  # so that only one log takes space at a time
    return {
        "benchmark": "growth",
        "samples_per_second_of_largest_over_smallest": runs[-1]["samples_per_second"]
        / runs[0]["samples_per_second"],
        "user_seconds_per_sample_of_largest_over_smallest": _user_seconds_per_sample(runs[-1])
        / _user_seconds_per_sample(runs[0]),
        "disk_write_bytes_per_second": rate,
        "runs": runs,
        "data": {"source": "generated", "profile": _PROFILE, "seed": config.seed},
        "settings": {"memory_bytes": cap_bytes, "workers": workers, "recipe": asdict(recipe)},
        "machine": machine,
    }


def _run_polars(
    runs: list[dict[str, Any]],
    num_samples: int,
    logs: tuple[Path, Path],
    scratch: Path,
    workers: int,
    recipe: PreprocessConfig,
) -> dict[str, Any]:
    """Return speed and memory of the Polars program, or the memory it would need."""
    measured_runs = [run for run in runs if run["polars"].get("peak_anonymous_bytes")]
    free_bytes = memory_bytes("MemAvailable", "/proc/meminfo")
    # Its memory grows with the log, so the last size that ran predicts the next one.
    if measured_runs:
        last = measured_runs[-1]
        needed_bytes = last["polars"]["peak_anonymous_bytes"] * num_samples / last["num_samples"]
        if needed_bytes > _MOST_OF_FREE * free_bytes:
            return {"needed_bytes": int(needed_bytes), "free_bytes": free_bytes}
    warm_up, log = logs
    candidate = Candidate(
        "polars",
        "the same in Polars",
        polars_program,
        (warm_up, workers, recipe),
        (log, workers, recipe),
        num_samples * _ROOM_PER_SAMPLE,
    )
    measured = measure_in_fresh_process(candidate, scratch, workers=workers)
    # The same figures as for hotset, beside the same log.
    return {
        "wall_seconds": measured.wall_seconds,
        "cpu_seconds": measured.cpu_seconds,
        "samples_per_second": num_samples / measured.wall_seconds,
        "peak_anonymous_bytes": measured.peak_anonymous_bytes,
    }


def _recipe(config: BenchGrowthConfig) -> PreprocessConfig:
    recipe = criteo_kaggle()
    hot_bytes = config.hot_bytes or recipe.split.hot_bytes
    return replace(recipe, split=replace(recipe.split, hot_bytes=hot_bytes))


def measure_write_rate(path: Path, num_bytes: int) -> float:
    """Return the bytes per second at which a new file reaches the disk; the file is deleted."""
    block = os.urandom(16 * MIB)  # random, because a disk may compress
    start = time.perf_counter()
    # Unbuffered writes and one sync: what the device takes, not the page cache.
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(max(num_bytes // len(block), 1)):
                file.write(block)
            os.fsync(file.fileno())
            written = file.tell()
    finally:
        path.unlink(missing_ok=True)
    return written / (time.perf_counter() - start)


def preprocess_by_stage(
    folder: Path, log: Path, workers: int, recipe: PreprocessConfig, memory_bytes: int
) -> dict[str, Any]:
    """Preprocess a raw log to shards in ``folder``; return the cost of each stage, and some totals."""
    stages: dict[str, dict[str, float]] = {}
    with AnonymousMemory() as memory:
        # A stage ends where the next one starts, so each gets the CPU time and the peak since the last call.
        before = os.times()

        def end_stage(report: StageReport) -> None:
            nonlocal before
            # CPU time is that of this process since the stage before.
            now = os.times()
            user_seconds = now.user - before.user
            system_seconds = now.system - before.system
            files = report.manifest.files
            stages[report.stage] = {
                "wall_seconds": report.seconds,
                "cpu_seconds": user_seconds + system_seconds,
                "user_seconds": user_seconds,
                "system_seconds": system_seconds,
                "peak_anonymous_bytes": memory.take_peak(),
                "written_bytes": sum(entry.num_bytes for entry in files),
                "num_files": len(files),
            }
            before = now

        out = folder / "dir"
        shards = preprocess(
            [log], recipe, out, Resources(workers=workers, memory_bytes=memory_bytes), on_stage=end_stage
        )
    kept = ("samples", "batches", "num_rows", "num_hot_rows", "hot_bytes", "row_bytes", "embedding_dim")
    return {"num_samples": shards.num_samples, "stages": stages} | {key: shards.totals[key] for key in kept}


def _run(measured: Measurement, log_bytes: int, rate: float) -> dict[str, Any]:
    """Return one run as plain data; ``rate`` is the disk's (bytes per second)."""
    facts = dict(measured.facts)
    # Stages report for themselves; the run's figures are sums and peaks over them.
    seconds = measured.wall_seconds
    stages = facts.pop("stages")
    written = sum(stage["written_bytes"] for stage in stages.values())
    return {
        "num_samples": facts.pop("num_samples"),
        "log_bytes": log_bytes,
        "wall_seconds": seconds,
        "cpu_seconds": measured.cpu_seconds,
        "user_seconds": sum(stage["user_seconds"] for stage in stages.values()),
        "system_seconds": sum(stage["system_seconds"] for stage in stages.values()),
        "samples_per_second": measured.facts["num_samples"] / seconds,
        "peak_anonymous_bytes": max(stage["peak_anonymous_bytes"] for stage in stages.values()),
        "peak_rss_bytes": measured.peak_rss_bytes,
        "written_bytes": written,
        "share_of_disk_write_rate": written / seconds / rate,
        "stages": stages,
        "result": facts,
    }


def _user_seconds_per_sample(run: dict[str, Any]) -> float:
    """Return the CPU seconds of user mode for each sample; clocks tick 100 times per second."""
    return max(0.01, float(run["user_seconds"])) / int(run["num_samples"])


def show(result: dict[str, Any], console: Console) -> None:
    """Print a row for each size, and one for each of its stages."""
    rate = format_byte_size(result["disk_write_bytes_per_second"])
    # The title says what the run was held to.
    cap = format_byte_size(result["settings"]["memory_bytes"])
    title = f"Raw log to shards within {cap}; the disk sustains {rate}/s"
    texts = ("samples", "stage")
    numbers = ("wall s", "samples/s", "user us", "system us", "peak anonymous", "written")
    table = plain_table(title, (*texts, *numbers), texts=texts)
    for run in result["runs"]:
        # The whole run, then each of its stages, in time per sample: it should not grow with the log.
        for name, stage in [("all", run), *run["stages"].items()]:
            table.add_row(
                f"{run['num_samples']:,}" if name == "all" else "",
                name,
                f"{stage['wall_seconds']:.2f}",
                f"{run['num_samples'] / stage['wall_seconds']:,.0f}",
                *(
                    f"{stage[f'{mode}_seconds'] / run['num_samples'] * 1e6:.2f}"
                    for mode in ("user", "system")
                ),
                format_byte_size(stage["peak_anonymous_bytes"]),
                format_byte_size(stage["written_bytes"]),
            )
        table.add_row("", "polars", *_cells_of_polars(run))
    console.print(table)


def _cells_of_polars(run: dict[str, Any]) -> tuple[str, ...]:
    polars = run.get("polars")
    # A size that the machine cannot hold is not run, and its cells say what it would take.
    if polars is None:
        return ("not run",)
    if "needed_bytes" in polars:
        return ("", "", "", "", f"would need {format_byte_size(polars['needed_bytes'])}")
    return (
        f"{polars['wall_seconds']:.2f}",
        f"{polars['samples_per_second']:,.0f}",
        "",
        "",
        format_byte_size(polars["peak_anonymous_bytes"]),
    )
