"""``hotset bench growth``: raw log to shards at growing sizes: speed, memory and disk of every stage.

A run of each size in a fresh process, warmed up. The question is whether anything grows faster than the log:
anonymous memory should not grow at all beyond the cap, and samples a second should not fall, unless what is
written is more than the device takes. So its sustained rate is measured too, on a file that is synced.

Beside it runs the same job in Polars, all in memory, as far as it gets: a size is left out where the memory
it took for the one before, in proportion, is more than what is free.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.runtime.memory import default_memory_bytes
from ...pipeline.runtime.tasks import num_workers
from ...pipeline.sizes import GIB, MIB, ByteSize, format_byte_size
from ...pipeline.stages.preprocess import PreprocessConfig, StageReport, preprocess
from ..recipes import criteo_kaggle
from .bench_harness import (
    AnonymousMemory,
    Contestant,
    Measurement,
    describe_machine,
    measure_in_fresh_process,
    memory_bytes,
)
from .polars_baseline import polars_program

_PROFILE = "criteo-kaggle"
_WARM_UP_SAMPLES = 2000
_RATE_BYTES = 4 * GIB
_MOST_OF_FREE = 0.8


@dataclass(frozen=True, kw_only=True)
class BenchGrowthConfig:
    """What the growth benchmark may vary."""

    samples: str = "1000000,4000000,20000000"
    """Sizes of the generated logs, in samples, with commas between."""

    memory: ByteSize | None = None
    """Cap on anonymous resident memory (bytes); a quarter of the machine's by default."""

    seed: int = 0
    """Of the generated logs."""

    workers: int = 0
    """Threads; 0 takes every core."""

    hot_bytes: ByteSize | None = None
    """Fast memory for hot rows (bytes); the recipe's by default."""

    polars: bool = True
    """Run the same job in Polars too, as far as memory goes."""

    scratch: Path | None = None
    """Folder for what comes and goes, three times the largest log; the system's own by default."""

    def __post_init__(self) -> None:
        self.sizes()

    def sizes(self) -> list[int]:
        """The sizes as numbers; raises ConfigError where they are none."""
        words = self.samples.split(",")
        if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
            raise ConfigError(f"samples must be numbers with commas between, got {self.samples!r}")
        return [int(word) for word in words]


CONFIG = BenchGrowthConfig


def measure(config: BenchGrowthConfig) -> dict[str, Any]:
    """Preprocess a log of each size; plain data, ready for JSON."""
    machine, workers, recipe = describe_machine(), num_workers(config.workers), _recipe(config)
    cap_bytes = config.memory or default_memory_bytes()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as name:
        scratch = Path(name)
        rate = measure_write_rate(scratch / "rate", _RATE_BYTES)
        warm_up = scratch / "warm_up.tsv"
        generate(GenerateConfig(profile=_PROFILE, samples=_WARM_UP_SAMPLES), warm_up, workers=workers)
        for num_samples in config.sizes():
            log, wanted = (
                scratch / "log.tsv",
                GenerateConfig(profile=_PROFILE, samples=num_samples, seed=config.seed),
            )
            generate(wanted, log, workers=workers)
            os.sync()
            arguments = (workers, recipe, cap_bytes)
            contestant = Contestant(
                "hotset", "raw TSV to shards", preprocess_by_stage, (warm_up, *arguments), (log, *arguments)
            )
            measured = measure_in_fresh_process(contestant, scratch, workers=workers)
            run = _run(measured, log.stat().st_size, rate)
            if config.polars:
                run["polars"] = _run_polars(runs, num_samples, (warm_up, log), scratch, workers, recipe)
            runs.append(run)
            log.unlink()
    return {
        "benchmark": "growth",
        "samples_per_second_of_largest_over_smallest": runs[-1]["samples_per_second"]
        / runs[0]["samples_per_second"],
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
    """Speed and memory of the Polars program, or the memory it would need."""
    before = [run for run in runs if run["polars"].get("peak_anonymous_bytes")]
    free = memory_bytes("MemAvailable", "/proc/meminfo")
    if before:
        last = before[-1]
        needed = last["polars"]["peak_anonymous_bytes"] * num_samples / last["num_samples"]
        if needed > _MOST_OF_FREE * free:
            return {"needed_bytes": int(needed), "free_bytes": free}
    warm_up, log = logs
    contestant = Contestant(
        "polars", "the same in Polars", polars_program, (warm_up, workers, recipe), (log, workers, recipe)
    )
    measured = measure_in_fresh_process(contestant, scratch, workers=workers)
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
    """Bytes a second at which a new file of ``num_bytes`` reaches the device; the file is removed."""
    block, started = os.urandom(16 * MIB), time.perf_counter()
    try:
        with path.open("wb", buffering=0) as file:
            for _ in range(max(num_bytes // len(block), 1)):
                file.write(block)
            os.fsync(file.fileno())
            written = file.tell()
    finally:
        path.unlink(missing_ok=True)
    return written / (time.perf_counter() - started)


def preprocess_by_stage(
    folder: Path, log: Path, workers: int, recipe: PreprocessConfig, memory_bytes: int
) -> dict[str, Any]:
    """Raw log to shards in ``folder``: what each stage took, and what came of it."""
    stages: dict[str, dict[str, float]] = {}
    with AnonymousMemory() as memory:
        cpu_before = time.process_time()

        def end_stage(report: StageReport) -> None:
            nonlocal cpu_before
            cpu_before, cpu_seconds = time.process_time(), time.process_time() - cpu_before
            files = report.manifest.files
            stages[report.stage] = {
                "wall_seconds": report.seconds,
                "cpu_seconds": cpu_seconds,
                "peak_anonymous_bytes": memory.take_peak(),
                "written_bytes": sum(entry.num_bytes for entry in files),
                "num_files": len(files),
            }

        out = folder / "dir"
        made = preprocess([log], recipe, out, workers=workers, memory_bytes=memory_bytes, on_stage=end_stage)
    kept = ("samples", "batches", "num_rows", "num_hot_rows", "hot_bytes", "row_bytes", "embedding_dim")
    return {"num_samples": made.num_samples, "stages": stages} | {key: made.totals[key] for key in kept}


def _run(measured: Measurement, log_bytes: int, rate: float) -> dict[str, Any]:
    facts, seconds = dict(measured.facts), measured.wall_seconds
    stages = facts.pop("stages")
    written = sum(stage["written_bytes"] for stage in stages.values())
    return {
        "num_samples": facts.pop("num_samples"),
        "log_bytes": log_bytes,
        "wall_seconds": seconds,
        "cpu_seconds": measured.cpu_seconds,
        "samples_per_second": measured.facts["num_samples"] / seconds,
        "peak_anonymous_bytes": max(stage["peak_anonymous_bytes"] for stage in stages.values()),
        "peak_rss_bytes": measured.peak_rss_bytes,
        "written_bytes": written,
        "share_of_disk_write_rate": written / seconds / rate,
        "stages": stages,
        "result": facts,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """A row for each size, and one for each of its stages."""
    rate, cap = result["disk_write_bytes_per_second"], result["settings"]["memory_bytes"]
    title = f"Raw log to shards within {format_byte_size(cap)}; the disk takes {format_byte_size(rate)}/s"
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("samples", "stage"):
        table.add_column(column, justify="left")
    for column in ("wall s", "samples/s", "peak anonymous", "written"):
        table.add_column(column, justify="right")
    for run in result["runs"]:
        for name, stage in [("all", run), *run["stages"].items()]:
            table.add_row(
                f"{run['num_samples']:,}" if name == "all" else "",
                name,
                f"{stage['wall_seconds']:.2f}",
                f"{run['num_samples'] / stage['wall_seconds']:,.0f}",
                format_byte_size(stage["peak_anonymous_bytes"]),
                format_byte_size(stage["written_bytes"]),
            )
        table.add_row("", "polars", *_cells_of_polars(run))
    console.print(table)


def _cells_of_polars(run: dict[str, Any]) -> tuple[str, ...]:
    polars = run.get("polars")
    if polars is None:
        return ("not run", "", "", "")
    if "needed_bytes" in polars:
        return ("", "", f"would need {format_byte_size(polars['needed_bytes'])}", "")
    return (
        f"{polars['wall_seconds']:.2f}",
        f"{polars['samples_per_second']:,.0f}",
        format_byte_size(polars["peak_anonymous_bytes"]),
        "",
    )
