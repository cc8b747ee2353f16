"""``hotset bench preprocess``: raw TSV to shards, and parsing alone, against Polars and pyarrow.

Every contestant reads a log that is in the page cache and writes to the same file system. hotset's parser is
measured in three forms: columns handed on block by block (how `ingest` uses it; ``ratio_parse``), all kept
in memory as Polars keeps them, and written to checked files (the stage itself). What each stage takes is
shown against its floor, the bytes it reads and writes at the rate that memory copies at.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, InputError
from ...pipeline.folders.output import hash_file
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.runtime.tasks import ProgressCallback, num_workers, silent
from ...pipeline.sizes import MIB, ByteSize, format_byte_size
from ...pipeline.stages.preprocess import PreprocessConfig
from ..recipes import criteo_kaggle
from .bench_harness import (
    Contestant,
    Measurement,
    describe_machine,
    median_ratio,
    median_stages,
    run_rounds,
    summarise,
)
from .hotset_contestants import hotset_ingest, hotset_parse, hotset_parse_kept, hotset_preprocess
from .polars_baseline import polars_program, polars_read_csv, polars_scan_csv, pyarrow_read_csv
from .stage_floors import against_floor, measure_rates

_PROFILE = "criteo-kaggle"
_WARM_UP_LINES = 2000
_HOT_BYTES = ByteSize(4 * MIB)
_ROOM_LOGS = 6
"""Memory and page cache the hungriest contestant needs, in sizes of the log (Polars: four and its output)."""
_TEXT_COLUMNS = ("contestant", "contestants", "stage", "what it does")
_PAIRS = (
    ("polars", "hotset"),
    ("polars read_csv", "hotset parse"),
    ("polars scan_csv", "hotset parse"),
    ("pyarrow read_csv", "hotset parse"),
    ("polars read_csv", "hotset parse, kept"),
    ("polars scan_csv", "hotset parse, kept"),
)
"""Slow and fast contestant of each ratio."""


@dataclass(frozen=True, kw_only=True)
class BenchPreprocessConfig:
    """What the preprocess benchmark may vary."""

    samples: int = 1_000_000
    """Samples of the generated log."""

    rounds: int = 3
    """Times each contestant runs; ratios are medians over them."""

    seed: int = 0
    """Of the generated log."""

    data: Path | None = None
    """A raw Criteo log to use in place of a generated one."""

    workers: int = 0
    """Threads of every contestant; 0 takes every core."""

    hot_bytes: ByteSize = _HOT_BYTES
    """Fast memory for hot rows, small enough here that both kinds of batches occur (bytes)."""

    scratch: Path | None = None
    """Folder for what comes and goes, 2.5 times the log; the system's own by default."""

    def __post_init__(self) -> None:
        for name in ("samples", "rounds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be 1 or more, got {getattr(self, name)}")


def bench_preprocess(
    config: BenchPreprocessConfig, progress: ProgressCallback | None = None
) -> dict[str, Any]:
    """Measure every contestant ``config.rounds`` times; plain data, ready for JSON.

    The keys ``ratio_total`` and ``ratio_parse`` are how many times as long Polars takes (wall clock),
    ``samples_per_second`` and ``peak_rss_bytes`` are hotset's from raw log to shards.

    Raises:
        HotsetError: the log given cannot be read or is not Criteo's format.
    """
    machine, workers, recipe = describe_machine(), num_workers(config.workers), _recipe(config)
    with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as name:
        scratch = Path(name)
        log, data = _prepare_log(config, scratch / "log.tsv")
        warm_up = _write_head(log, scratch / "warm_up.tsv")
        contestants = _contestants(warm_up, log, workers, recipe)
        measured = run_rounds(
            contestants, config.rounds, scratch, workers=workers, progress=progress or silent
        )
        rates = measure_rates(scratch, workers, data["bytes"])
    _check_agreement(measured)
    summaries = {each.name: summarise(each, measured[each.name]) for each in contestants}
    ratios = {f"{slow} / {fast}": _ratio(measured[slow], measured[fast]) for slow, fast in _PAIRS}
    return {
        "benchmark": "preprocess",
        "ratio_total": ratios["polars / hotset"]["wall"],
        "ratio_parse": ratios["polars read_csv / hotset parse"]["wall"],
        "samples_per_second": summaries["hotset"]["samples_per_second"],
        "peak_rss_bytes": summaries["hotset"]["peak_rss_bytes"],
        "ratios": ratios,
        "stages": against_floor(median_stages(measured["hotset"]), rates),
        "polars_stages": median_stages(measured["polars"]),
        "bytes_per_second": rates,
        "contestants": summaries,
        "data": data | {key: measured["hotset"][0].facts[key] for key in ("num_samples", "samples")},
        "settings": {"rounds": config.rounds, "workers": workers, "recipe": asdict(recipe)},
        "machine": machine,
    }


def _recipe(config: BenchPreprocessConfig) -> PreprocessConfig:
    recipe = criteo_kaggle()
    return replace(recipe, split=replace(recipe.split, hot_bytes=config.hot_bytes))


def _prepare_log(config: BenchPreprocessConfig, generated: Path) -> tuple[Path, dict[str, Any]]:
    """The log to measure on, in the page cache and on the device, and what it is."""
    about: dict[str, Any]
    if config.data is not None:
        log, about = config.data, {"source": "file", "name": config.data.name}
    else:
        log, about = generated, {"source": "generated", "profile": _PROFILE, "seed": config.seed}
        wanted = GenerateConfig(profile=_PROFILE, samples=config.samples, seed=config.seed)
        generate(wanted, generated, workers=config.workers)
    num_bytes, checksum = _hash_file(log)
    os.sync()
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


def _contestants(warm_up: Path, log: Path, workers: int, recipe: PreprocessConfig) -> list[Contestant]:
    whole: dict[str, tuple[str, Callable[..., Any]]] = {
        "hotset": ("raw TSV to shards", hotset_preprocess),
        "polars": ("the same in Polars, all in memory", polars_program),
    }
    parsing: dict[str, tuple[str, Callable[..., Any]]] = {
        "hotset parse": ("Arrow columns, handed on block by block", hotset_parse),
        "polars read_csv": ("read_csv, hex to integers, all in memory", polars_read_csv),
        "hotset parse, kept": ("Arrow columns, all in memory", hotset_parse_kept),
        "polars scan_csv": ("scan_csv with hex to integers, streaming, all in memory", polars_scan_csv),
        "hotset ingest": ("Arrow columns, written, hashed and sealed", hotset_ingest),
        "pyarrow read_csv": ("read_csv, categories left as text, all in memory", pyarrow_read_csv),
    }
    short, long, room = (warm_up, workers), (log, workers), _ROOM_LOGS * log.stat().st_size
    return [
        Contestant(name, *job, (*short, recipe), (*long, recipe), room) for name, job in whole.items()
    ] + [Contestant(name, *job, short, long, room) for name, job in parsing.items()]


def _check_agreement(measured: dict[str, list[Measurement]]) -> None:
    facts = {name: rounds[0].facts for name, rounds in measured.items()}
    num_samples = {name: fact["num_samples"] for name, fact in facts.items()}
    assert len(set(num_samples.values())) == 1, f"contestants found other samples: {num_samples}"
    for key in ("samples", "num_hot"):
        assert facts["hotset"][key] == facts["polars"][key], f"hotset and Polars differ in {key}"


def _ratio(slow: list[Measurement], fast: list[Measurement]) -> dict[str, float]:
    clocks = {"wall": "wall_seconds", "cpu": "cpu_seconds", "peak_rss": "peak_rss_bytes"}
    return {name: median_ratio(slow, fast, field) for name, field in clocks.items()}


def print_bench_preprocess(result: dict[str, Any], console: Console) -> None:
    """Contestants, hotset's stages and the ratios as tables people read."""
    data = result["data"]
    kind = f"generated log ({data['profile']})" if data["source"] == "generated" else data["name"]
    console.print(_contestants_table(result, f"{data['num_samples']:,} samples, {kind}"), "")
    console.print(_floors_table(result))
    rates = {name: format_byte_size(int(rate)) for name, rate in result["bytes_per_second"].items()}
    console.print(
        f"Memory copies at {rates['memory']}/s (read and written), the page cache takes "
        f"{rates['page_cache']}/s, the disk {rates['disk']}/s.\n",
        soft_wrap=True,
    )
    console.print(_polars_table(result), "")
    console.print(_ratios_table(result), "")
    console.print(
        f"Raw log to shards: [bold]{result['ratio_total']:.2f}x[/] Polars. "
        f"Parsing: [bold]{result['ratio_parse']:.2f}x[/] polars.read_csv with hex to integers.",
        soft_wrap=True,
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in _TEXT_COLUMNS else "right")
    return table


def _contestants_table(result: dict[str, Any], title: str) -> Table:
    rounds, workers = result["settings"]["rounds"], result["settings"]["workers"]
    title = f"{title}; medians of {rounds} rounds, {workers} threads"
    table = _table(title, "contestant", "wall s", "CPU s", "samples/s", "peak memory", "what it does")
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


def _floors_table(result: dict[str, Any]) -> Table:
    title = "hotset's stages against their floors: bytes moved at the rate of memory"
    columns = ("wall s", "CPU s", "read", "written", "floor s", "times floor", "floor s, page cache")
    table = _table(title, "stage", *columns)
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
    table = _table("Ratios, round by round, medians", "contestants", "wall", "CPU", "peak memory")
    for pair, ratio in result["ratios"].items():
        table.add_row(pair, *(f"{ratio[clock]:.2f}" for clock in ("wall", "cpu", "peak_rss")))
    return table


CONFIG, measure, show = BenchPreprocessConfig, bench_preprocess, print_bench_preprocess
