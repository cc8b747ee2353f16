"""``hotset bench schedule``: plan an epoch by `hotset schedule`, and count its bytes and its CPU seconds.

A log of the Kaggle shape is generated and packed; a fresh process then writes its schedule, and with
``--train`` another one trains an epoch by it. The bytes are those of the plans, beside those of `hybrid`.
Each job tells how many of its CPU seconds are hashing and checks of what it reads, timed call by call.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.folders.manifest import Manifest
from ....pipeline.folders.stage_totals import ScheduleTotals, ShardsTotals, VocabularyTotals
from ....pipeline.formats import arrow_files
from ....pipeline.formats.stage_settings import ScheduleSettings
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, Resources, silent
from ....pipeline.sizes import ByteSize
from ....pipeline.stages import schedule as schedule_stage
from ....pipeline.stages.preprocess import preprocess
from ....pipeline.stages.schedule import ScheduleConfig, schedule
from ....stats.ranking.row_bytes import row_bytes
from ....stats.staging.plan_checks import PlanChecker
from ....train.config import TrainConfig
from ....train.data import shard_file, shards
from ....train.data.shards import Shards
from ....train.placements import schedule_file
from ....train.run import train
from ...machine_facts import describe_machine
from ...recipes import criteo_kaggle
from ..measuring.fresh_process import Candidate, Measurement, measure_in_fresh_process
from ..measuring.recorded_settings import recorded_settings
from .call_times import CallTimes

_OPTIMIZER: Literal["sgd"] = "sgd"
_WARM_UP_SAMPLES = 20_000


@dataclass(frozen=True, kw_only=True)
class BenchScheduleConfig:
    """Settings of the benchmark of schedules: the log, the share of fast rows, whether to train."""

    samples: int = 1_000_000
    """Samples of the generated log."""

    seed: int = 0
    """Seed of the log and the batch order."""

    embedding_dim: int = 16
    """Floats per row."""

    batch_size: int = 2048
    """Samples per batch."""

    fast_share: float = 0.015
    """Share of all rows that have a place on the fast tier: half of them hot, half staging slots."""

    train: bool = False
    """Also train an epoch by the schedule, and measure its checks."""

    workers: int = 0
    """Workers of the schedule; 0 takes every core the run may use."""

    scratch: Path | None = None
    """Folder for temporary files; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        for name in ("samples", "embedding_dim", "batch_size"):
            require_at_least(name, getattr(self, name), 1)
        require_at_least("workers", self.workers, 0)
        if not 0 < self.fast_share < 1:
            raise ConfigError(f"fast_share must be between 0 and 1, got {self.fast_share}")


def bench_schedule(config: BenchScheduleConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Measure; return plain data, ready for JSON.

    ``schedule`` and ``train`` have CPU and wall seconds, the CPU seconds of each kind of check, and the share
    of all checks; ``bytes`` are those of the epoch's plans, both ways together.
    """
    with tempfile.TemporaryDirectory(prefix="hotset-schedule-", dir=config.scratch) as name:
        scratch = Path(name)
        small = replace(config, samples=min(config.samples, _WARM_UP_SAMPLES))
        # Imports and compiled kernels are out of the way before the clock starts.
        # A small log first, so that nothing is compiled in the measured process.
        _pack(small, scratch / "small")
        _pack(config, scratch / "data")
        progress("bench", 1, 3)
        warm_up = (scratch / "small", small)
        arguments = (scratch / "data", config)
        job = Candidate("schedule", "hotset schedule", schedule_job, warm_up, arguments)
        planned = measure_in_fresh_process(job, scratch, workers=config.workers)
        progress("bench", 2, 3)
        # Bytes come from the plans alone, so no training is needed for them.
        facts = _facts(scratch / "data")
        if config.train:
            job = Candidate("train", "hotset train by the schedule", train_job, warm_up, arguments)
            facts["train"] = _described(measure_in_fresh_process(job, scratch, workers=1))
        progress("bench", 3, 3)
    settings = recorded_settings(config)
    return {
        "benchmark": "schedule",
        "settings": settings,
        **facts,
        "schedule": _described(planned),
        "machine": describe_machine(),
    }


def _pack(config: BenchScheduleConfig, data: Path) -> None:
    """Generate and pack a log, half of whose fast rows are hot."""
    data.mkdir()
    recipe = criteo_kaggle()
    generate(GenerateConfig(samples=config.samples, seed=config.seed), data / "log.tsv")
    vocabulary = preprocess([data / "log.tsv"], recipe, data, until="rank")
    # Half of the fast memory is for hot rows, the other half for staging.
    split = replace(
        recipe.split,
        hot_bytes=ByteSize(_fast_bytes(config, VocabularyTotals.of(vocabulary).num_rows)),
        embedding_dim=config.embedding_dim,
        embedding_optimizer=_OPTIMIZER,
    )
    pack = replace(recipe.pack, batch_size=config.batch_size)
    preprocess([data / "log.tsv"], replace(recipe, split=split, pack=pack), data)


def _fast_bytes(config: BenchScheduleConfig, num_rows: int) -> int:
    """Return the bytes of the hot rows, and of the staging slots."""
    return int(config.fast_share / 2 * num_rows) * row_bytes(config.embedding_dim, _OPTIMIZER)


def _schedule_config(config: BenchScheduleConfig, data: Path) -> ScheduleConfig:
    num_rows = ShardsTotals.of(Manifest.read(data / "shards")).num_rows
    # On small logs a batch has more cold rows than such an area has slots, and runs in passes.
    num_bytes = ByteSize(_fast_bytes(config, num_rows))
    return ScheduleConfig(staging_bytes=num_bytes, seed=config.seed, split_batches=True)


def schedule_job(out: Path, data: Path, config: BenchScheduleConfig) -> dict[str, Any]:
    """Write the schedule of ``data`` beside its shards; return the CPU seconds of its checks."""
    # Checks are timed by wrapping the functions that make them.
    times = CallTimes()
    targets = [
        ("hashing", arrow_files, "hash_bytes"),
        ("manifest", schedule_stage, "refuse_other_shards"),
    ]
    with times.timing(targets):
        schedule(
            _schedule_config(config, data),
            Manifest.read(data / "shards"),
            data / "schedule",
            Resources(workers=config.workers),
        )
    return _times_of(times)


def train_job(out: Path, data: Path, config: BenchScheduleConfig) -> dict[str, Any]:
    """Train an epoch by the schedule of ``data``; return the CPU seconds of its checks."""
    # Train by the settings that the schedule was made for; it is refused otherwise.
    planned = ScheduleSettings.of(Manifest.read(data / "schedule"))
    run = TrainConfig(
        staging_bytes=None if planned.staging_bytes is None else ByteSize(planned.staging_bytes),
        prefetch=planned.prefetch,
        seed=config.seed,
        dense_optimizer="sgd",
        threads=1,
    )
    # Checks of files, ids and plans by the functions that make them, each counted once.
    times = CallTimes()
    targets = [
        ("hashing", shards, "hash_file"),
        ("hashing", schedule_file, "hash_file"),
        ("hashing", arrow_files, "hash_bytes"),
        ("ids", Shards, "_refuse_strays"),
        ("values", shard_file, "refuse_wild_values"),
        ("plans", PlanChecker, "check"),
        ("plans", PlanChecker, "check_step"),
    ]
    with times.timing(targets):
        train(data / "shards", run, out / "run")
    return _times_of(times)


def _times_of(times: CallTimes) -> dict[str, Any]:
    """Return the seconds of each kind of check as plain data."""
    return {"seconds": times.seconds, "calls": times.calls}


def _described(measured: Measurement) -> dict[str, Any]:
    checks = {name: round(seconds, 6) for name, seconds in measured.facts["seconds"].items()}
    return {
        "cpu_seconds": measured.cpu_seconds,
        "wall_seconds": measured.wall_seconds,
        "check_cpu_seconds": checks,
        "calls": measured.facts["calls"],
        "share_of_checks": sum(checks.values()) / measured.cpu_seconds,
    }


def _facts(data: Path) -> dict[str, Any]:
    """Return what the plans move, beside what `hybrid` would."""
    packed = ShardsTotals.of(Manifest.read(data / "shards"))
    planned = ScheduleTotals.of(Manifest.read(data / "schedule"))
    training_samples = packed.samples.hot_only + packed.samples.mixed
    # Hybrid moves a vector for each lookup of a mixed batch up, and its gradient down.
    vectors = training_samples * sum(4 * dim for dim in packed.embedding_dims)
    moved = planned.bytes_to_fast + planned.bytes_to_slow
    made = planned.rows_made * row_bytes(packed.embedding_dim, _OPTIMIZER)
    # Bytes with and without first uses, because other systems fetch these rows, too.
    return {
        "num_rows": packed.num_rows,
        "num_hot_rows": packed.num_hot_rows,
        "staging_slots": sum(width.num_slots for width in planned.widths),
        "training_samples": training_samples,
        "samples": packed.samples.to_json(),
        "batches": packed.batches.to_json(),
        "rows_to_fast": planned.rows_to_fast,
        "rows_made_at_first_use": planned.rows_made,
        "rows_to_slow": planned.rows_to_slow,
        "shortened": planned.shortened,
        "bytes": {
            "lookahead": moved,
            "lookahead, first uses fetched": moved + made,
            "hybrid": 2 * vectors,
        },
        "hybrid_over_lookahead": 2 * vectors / max(moved, 1),
        "hybrid_over_lookahead_first_uses_fetched": 2 * vectors / max(moved + made, 1),
    }


def print_bench_schedule(result: dict[str, Any], console: Console) -> None:
    """Print what the plans move, and a row for each job with its checks."""
    console.print(
        f"{result['training_samples']:,} training samples, {result['num_hot_rows']:,} hot rows and "
        f"{result['staging_slots']:,} slots of {result['num_rows']:,} rows: lookahead "
        f"moves {result['bytes']['lookahead'] / 2**20:,.0f} MiB, hybrid "
        f"{result['hybrid_over_lookahead']:.1f}x as much",
        soft_wrap=True,
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("job")
    for column in ("CPU s", "wall s", "checks CPU s", "share"):
        table.add_column(column, justify="right")
    for name in ("schedule", "train"):
        if name in result:
            job = result[name]
            spent = sum(job["check_cpu_seconds"].values())
            table.add_row(
                name,
                f"{job['cpu_seconds']:.2f}",
                f"{job['wall_seconds']:.2f}",
                f"{spent:.3f}",
                f"{job['share_of_checks']:.1%}",
            )
    console.print(table)


CONFIG = BenchScheduleConfig
measure = bench_schedule
show = print_bench_schedule
