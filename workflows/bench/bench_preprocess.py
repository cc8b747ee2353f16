"""``hotset bench preprocess``: raw TSV to shards, and parsing alone, against Polars and pyarrow.

Every candidate reads a log that is in the page cache and writes to the same file system. hotset's parser is
measured in three forms: columns passed on block by block (as `ingest` uses it; ``ratio_parse``), columns all
kept in memory as in Polars, and columns written to checksummed files (the stage itself). The time of each
stage is compared with a lower bound: the bytes it reads and writes at the rate at which memory copies. Then
parsing and packing run on one core, where each of their parts is compared with what bounds it. Last, the
command and the Polars program run as whole processes, whose start is on the clock.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import InputError, require_at_least
from ...pipeline.folders.checksum import hash_file
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.runtime.resources import ProgressCallback, silent
from ...pipeline.runtime.tasks import num_workers
from ...pipeline.sizes import MIB, ByteSize, format_byte_size
from ...pipeline.stages.preprocess import PreprocessConfig
from ..console import plain_table
from ..machine_facts import describe_machine
from ..recipes import criteo_kaggle
from .hotset_candidates import hotset_ingest, hotset_parse, hotset_parse_kept, hotset_preprocess
from .measuring.fresh_process import Candidate, Measurement, median_stages, run_rounds, summarize
from .measuring.rounds import median_ratio, take_turns
from .measuring.stage_parts import measure_stage_parts, print_stage_parts
from .measuring.whole_process import ProcessSeconds, time_module
from .polars_baseline import (
    polars_program,
    polars_read_csv,
    polars_scan_csv,
    polars_settings,
    pyarrow_read_csv,
)
from .roofline import against_roofline, measure_rates

_PACKAGE = __package__.split(".", 1)[0]
_PROFILE = "criteo-kaggle"
_WARM_UP_LINES = 2000
_HOT_BYTES = ByteSize(4 * MIB)
_ROOM_LOGS = 6
"""Memory and page cache that the largest candidate needs, in multiples of the log (Polars: 4 and output)."""
_TEXT_COLUMNS = ("candidate", "candidates", "stage", "what it does")
_PAIRS = (
    ("polars", "hotset"),
    ("polars read_csv", "hotset parse"),
    ("polars scan_csv", "hotset parse"),
    ("pyarrow read_csv", "hotset parse"),
    ("polars read_csv", "hotset parse, kept"),
    ("polars scan_csv", "hotset parse, kept"),
)
"""The slow and the fast candidate of each ratio."""


@dataclass(frozen=True, kw_only=True)
class BenchPreprocessConfig:
    """Settings of the preprocessing benchmark."""

    samples: int = 1_000_000
    """Samples of the generated log."""

    rounds: int = 3
    """Rounds in which each candidate runs once; ratios are medians over rounds."""

    seed: int = 0
    """Seed of the generated log."""

    data: Path | None = None
    """A raw Criteo log to use instead of a generated one."""

    workers: int = 0
    """Threads of every candidate; 0 uses every core."""

    hot_bytes: ByteSize = _HOT_BYTES
    """Fast memory for hot rows (bytes); the default is small so that both kinds of batches occur."""

    scratch: Path | None = None
    """Folder for temporary files, 2.5 times the log; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        for name in ("samples", "rounds"):
            require_at_least(name, getattr(self, name), 1)


def bench_preprocess(
    config: BenchPreprocessConfig, progress: ProgressCallback | None = None
) -> dict[str, Any]:
    """Measure every candidate ``config.rounds`` times; return plain data, ready for JSON.

    ``ratio_total`` and ``ratio_parse`` are Polars's wall-clock time over hotset's; ``samples_per_second`` and
    ``peak_rss_bytes`` are hotset's from raw log to shards.

    Raises:
        HotsetError: the log given cannot be read or is not in Criteo's format.
    """
    machine = describe_machine()
    workers = num_workers(config.workers)
    recipe = _recipe(config)
    with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as name:
        scratch = Path(name)
        # One log for all candidates, in the page cache before the first of them reads it.
        log, data = _prepare_log(config, scratch / "log.tsv")
        # Warming up on a part of the log compiles all kernels.
        warm_up = _write_head(log, scratch / "warm_up.tsv")
        candidates = _candidates(warm_up, log, workers, recipe)
        measured = run_rounds(
            candidates, config.rounds, scratch, workers=workers, progress=progress or silent
        )
        rates = measure_rates(scratch, workers, data["bytes"])
        parts = measure_stage_parts(log, recipe, scratch, config.rounds)
        processes = _measure_processes(log, recipe, scratch, config.rounds, workers)
    # Speeds mean nothing unless both wrote the same samples.
    _check_agreement(measured)
    summaries = {each.name: summarize(each, measured[each.name]) for each in candidates}
    ratios = {f"{slow} / {fast}": _ratio(measured[slow], measured[fast]) for slow, fast in _PAIRS}
    return {
        "benchmark": "preprocess",
        "ratio_total": ratios["polars / hotset"]["wall"],
        "ratio_parse": ratios["polars read_csv / hotset parse"]["wall"],
        "samples_per_second": summaries["hotset"]["samples_per_second"],
        "peak_rss_bytes": summaries["hotset"]["peak_rss_bytes"],
        "ratios": ratios,
        "stages": against_roofline(median_stages(measured["hotset"]), rates),
        "polars_stages": median_stages(measured["polars"]),
        "bytes_per_second": rates,
        "one_core": parts,
        "processes": processes,
        "contestants": summaries,
        "data": data | {key: measured["hotset"][0].facts[key] for key in ("num_samples", "samples")},
        "settings": {"rounds": config.rounds, "workers": workers, "recipe": asdict(recipe)},
        "machine": machine,
    }


def _measure_processes(
    log: Path, recipe: PreprocessConfig, scratch: Path, rounds: int, workers: int
) -> dict[str, Any]:
    """Time the command and the Polars program as whole processes, in turns; return medians and ratios.

    The kernels of the command were compiled before, as they are from its second start on.
    """
    split = recipe.split
    options = [f"--hot-bytes={split.hot_bytes}", f"--embedding-optimizer={split.embedding_optimizer}"]
    options += [f"--workers={workers}", f"--schema={recipe.ingest.schema}"]
    settings = json.dumps(polars_settings(recipe))

    def hotset() -> ProcessSeconds:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            return time_module(_PACKAGE, ["preprocess", str(log), *options, f"--out={folder}/out"])

    def polars() -> ProcessSeconds:
        threads = {"POLARS_MAX_THREADS": str(workers)}
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            return time_module(polars_program.__module__, [str(log), f"{folder}/out", settings], threads)

    measured = take_turns({"hotset": hotset, "polars": polars}, rounds)
    clocks = ("wall_seconds", "cpu_seconds")
    taken = {
        name: {clock: [getattr(each, clock) for each in found] for clock in clocks}
        for name, found in measured.items()
    }
    return {
        "seconds": {
            name: {clock: statistics.median(found[clock]) for clock in clocks} | {"rounds": found}
            for name, found in taken.items()
        },
        "ratio": {
            clock.removesuffix("_seconds"): median_ratio(taken["polars"][clock], taken["hotset"][clock])
            for clock in clocks
        },
    }


def _recipe(config: BenchPreprocessConfig) -> PreprocessConfig:
    recipe = criteo_kaggle()
    return replace(recipe, split=replace(recipe.split, hot_bytes=config.hot_bytes))


def _prepare_log(config: BenchPreprocessConfig, generated: Path) -> tuple[Path, dict[str, Any]]:
    """Return the log to measure on and a description of it; the log is in the page cache and on the disk."""
    # The result names the log, so that figures of different logs are never compared.
    about: dict[str, Any]
    if config.data is not None:
        log = config.data
        about = {"source": "file", "name": config.data.name}
    else:
        log = generated
        about = {"source": "generated", "profile": _PROFILE, "seed": config.seed}
        wanted = GenerateConfig(profile=_PROFILE, samples=config.samples, seed=config.seed)
        generate(wanted, generated, workers=config.workers)
    num_bytes, checksum = _hash_file(log)  # reads it all, which brings it into the page cache
    os.sync()  # no write-back of the log while candidates run
    return log, about | {"bytes": num_bytes, "xxh3_128": checksum}


def _hash_file(log: Path) -> tuple[int, str]:
    try:
        return hash_file(log)
    except OSError as error:
        raise InputError(f"{log} cannot be read: {error.strerror}") from error


def _write_head(log: Path, head: Path) -> Path:
    with log.open("rb") as lines:
        head.write_bytes(b"".join(islice(lines, _WARM_UP_LINES)))
    return head


def _candidates(warm_up: Path, log: Path, workers: int, recipe: PreprocessConfig) -> list[Candidate]:
    whole: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
        "hotset": ("raw TSV to shards", hotset_preprocess),
        "polars": ("the same job in Polars, all in memory", polars_program),
    }
    # Parsing alone: what each reader ends with is in its description.
    parsing: dict[str, tuple[str, Callable[..., dict[str, Any]]]] = {
        "hotset parse": ("Arrow columns, passed on block by block", hotset_parse),
        "polars read_csv": ("read_csv, hex to integers, all in memory", polars_read_csv),
        "hotset parse, kept": ("Arrow columns, all in memory", hotset_parse_kept),
        "polars scan_csv": ("scan_csv with hex to integers, streaming, all in memory", polars_scan_csv),
        "hotset ingest": ("Arrow columns, written, hashed and sealed", hotset_ingest),
        "pyarrow read_csv": ("read_csv, categories left as text, all in memory", pyarrow_read_csv),
    }
    # Each first takes a short log, so that neither compiling nor imports are timed.
    short = (warm_up, workers)
    long = (log, workers)
    room = _ROOM_LOGS * log.stat().st_size
    return [Candidate(name, *job, (*short, recipe), (*long, recipe), room) for name, job in whole.items()] + [
        Candidate(name, *job, short, long, room) for name, job in parsing.items()
    ]


def _check_agreement(measured: dict[str, list[Measurement]]) -> None:
    """Assert that all candidates did the same job: the same samples, as many of them hot."""
    facts = {name: rounds[0].facts for name, rounds in measured.items()}
    num_samples = {name: fact["num_samples"] for name, fact in facts.items()}
    assert len(set(num_samples.values())) == 1, (
        f"candidates found different numbers of samples: {num_samples}"
    )
    # Only these two do the whole job; all others end with the columns of the log.
    for key in ("samples", "num_hot"):
        assert facts["hotset"][key] == facts["polars"][key], f"hotset and Polars differ in {key}"


def _ratio(slow: list[Measurement], fast: list[Measurement]) -> dict[str, float]:
    clocks = {"wall": "wall_seconds", "cpu": "cpu_seconds", "peak_rss": "peak_rss_bytes"}
    return {
        name: median_ratio([getattr(one, field) for one in slow], [getattr(one, field) for one in fast])
        for name, field in clocks.items()
    }


def print_bench_preprocess(result: dict[str, Any], console: Console) -> None:
    """Print the candidates, hotset's stages and the ratios as tables."""
    data = result["data"]
    kind = f"generated log ({data['profile']})" if data["source"] == "generated" else data["name"]
    console.print(_candidates_table(result, f"{data['num_samples']:,} samples, {kind}"), "")
    console.print(_roofline_table(result))
    # What memory, page cache and disk can do at most, beside which stages are judged.
    rates = {name: format_byte_size(int(rate)) for name, rate in result["bytes_per_second"].items()}
    console.print(
        f"Memory copies at {rates['memory']}/s (read and written); the page cache accepts "
        f"{rates['page_cache']}/s, the disk {rates['disk']}/s.\n",
        soft_wrap=True,
    )
    print_stage_parts(result["one_core"], console)
    console.print()
    # Then the other library, stage by stage, and what divides the two.
    console.print(_polars_table(result), "")
    console.print(_ratios_table(result), "")
    console.print(
        f"Raw log to shards: [bold]{result['ratio_total']:.2f}x[/] Polars. "
        f"Parsing: [bold]{result['ratio_parse']:.2f}x[/] polars.read_csv with hex to integers.",
        soft_wrap=True,
    )
    processes = result["processes"]
    seconds = {name: each["wall_seconds"] for name, each in processes["seconds"].items()}
    console.print(
        f"As whole processes: {seconds['hotset']:.2f} s against {seconds['polars']:.2f} s, "
        f"[bold]{processes['ratio']['wall']:.2f}x[/] ({processes['ratio']['cpu']:.2f}x by CPU time).",
        soft_wrap=True,
    )


def _table(title: str, *columns: str) -> Table:
    return plain_table(title, columns, texts=_TEXT_COLUMNS)


def _candidates_table(result: dict[str, Any], title: str) -> Table:
    # Medians, since a single round may be disturbed.
    settings = result["settings"]
    title = f"{title}; medians of {settings['rounds']} rounds, {settings['workers']} threads"
    # Medians, because a shared machine makes single rounds slow.
    table = _table(title, "candidate", "wall s", "CPU s", "samples/s", "peak memory", "what it does")
    for name, each in result["contestants"].items():
        table.add_row(
            name,
            f"{each['wall_seconds']:.3f}",
            f"{each['cpu_seconds']:.3f}",
            f"{each['samples_per_second']:,.0f}",
            format_byte_size(each["peak_rss_bytes"]),
            each["about"],
        )
    return table


def _roofline_table(result: dict[str, Any]) -> Table:
    title = "hotset's stages and their lower bounds: bytes moved at the rate of memory"
    columns = ("wall s", "CPU s", "read", "written", "bound s", "wall / bound", "bound s, page cache")
    table = _table(title, "stage", *columns)
    # The distance of each stage from what its bytes alone would cost.
    for stage in result["stages"]:
        table.add_row(
            stage["stage"],
            f"{stage['seconds']:.3f}",
            f"{stage['cpu_seconds']:.3f}",
            format_byte_size(int(stage["bytes_read"])),
            format_byte_size(int(stage["bytes_written"])),
            f"{stage['floor_seconds']:.4f}",
            f"{stage['times_floor']:.1f}",
            f"{stage['page_cache_floor_seconds']:.4f}",
        )
    return table


def _polars_table(result: dict[str, Any]) -> Table:
    table = _table("Polars's steps", "stage", "wall s", "CPU s")
    for stage, seconds in result["polars_stages"].items():
        table.add_row(stage, f"{seconds['wall_seconds']:.3f}", f"{seconds['cpu_seconds']:.3f}")
    return table


def _ratios_table(result: dict[str, Any]) -> Table:
    table = _table("Ratios, medians over rounds", "candidates", "wall", "CPU", "peak memory")
    for pair, ratio in result["ratios"].items():
        table.add_row(pair, *(f"{ratio[clock]:.2f}" for clock in ("wall", "cpu", "peak_rss")))
    return table


CONFIG = BenchPreprocessConfig
measure = bench_preprocess
show = print_bench_preprocess
