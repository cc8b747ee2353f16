"""``hotset bench larger-than-memory``: training on tables four times the memory, beside memory-mapped ones.

Every run has a process of its own, and all but the one in memory run in a control group whose limit of memory
the system enforces, page cache included. They train the same drawn samples with SGD and must end with the
same weights. Runs take turns, and a ratio compares runs of one round. The clock is that of the training
steps: to fill a mapped table, or to plan the run, comes before and is given apart as ``setup_seconds``.

Every share of cold lookups has as many of them in an epoch. With as many batches instead, a small share would
touch fewer pages than the memory holds, and the page cache would serve a mapped table of which most is never
read. The run in memory makes the steps of `lookahead` and waits for no disk, so its ratio to a mapped table
is the most that `lookahead` can reach.
"""

from __future__ import annotations

import math
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.sizes import MIB, ByteSize, format_byte_size
from ....stats.ranking.row_bytes import row_bytes
from ...console import say
from ...drawn_shards import DrawnShards
from ...machine_facts import describe_machine
from ..measuring.fresh_process import Candidate, Measurement, measure_in_fresh_process
from ..measuring.recorded_settings import recorded_settings
from ..measuring.rounds import median_ratio, take_turns
from .limited_training import CONTESTANTS, IN_MEMORY, LOOKAHEAD, LimitedRun, train_limited
from .memory_limit import memory_limit

_NUM_TABLES = 26
_WARM_UP_ROWS = 4000
_MEMORY = ByteSize(640 * MIB)
_SLOW = ByteSize(8 * MIB)
_HOT = ByteSize(64 * MIB)
_STAGING = ByteSize(4 * MIB)
_PAGE_BYTES = 4096
_COLD_SHARE = 0.1
"""Share of cold lookups of which the number of batches is given."""


@dataclass(frozen=True, kw_only=True)
class BenchLargerThanMemoryConfig:
    """Settings of the benchmark of tables larger than memory."""

    memory: ByteSize = _MEMORY
    """Memory that the system allows a run: rows, everything else of the process, and page cache."""

    times: float = 4.0
    """Size of the tables as a multiple of that memory."""

    slow_bytes: ByteSize = _SLOW
    """Memory that lookahead may use for cold rows."""

    hot_bytes: ByteSize = _HOT
    """Memory for hot rows."""

    staging_bytes: ByteSize = _STAGING
    """Memory of the slots that stage cold rows."""

    cold_shares: tuple[float, ...] = (0.1, 0.02)
    """Shares of the lookups that fall on cold rows; each cold row is looked up equally often."""

    batch_size: int = 2048
    """Samples per batch."""

    embedding_dim: int = 16
    """Floats per row."""

    batches: int = 100
    """Batches of an epoch at 10 % cold lookups; other shares have as many batches as make as many of them."""

    epochs: int = 2
    """Epochs; from the second on all rows are read that the first has written."""

    rounds: int = 3
    """Rounds in which each contestant runs once; ratios are medians over rounds."""

    threads: int = 0
    """Threads of the dense layers; 0 uses every core."""

    seed: int = 0
    """Seed of the samples and the models."""

    scratch: Path | None = None
    """Folder on the disk that takes the rows; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        for name in ("batches", "epochs", "rounds", "batch_size", "embedding_dim"):
            require_at_least(name, getattr(self, name), 1)
        # Without cold lookups no contestant would need a disk.
        if not self.cold_shares or not all(0 < share <= 1 for share in self.cold_shares):
            raise ConfigError("cold_shares must be above 0, and at most 1")
        if self.rows_of_table <= self.hot_rows_of_table or not self.hot_rows_of_table:
            raise ConfigError(
                f"{format_byte_size(self.hot_bytes)} of hot rows in tables of "
                f"{format_byte_size(self.memory * self.times)}",
                hint="lower --hot-bytes, or raise --memory or --times",
            )

    @property
    def rows_of_table(self) -> int:
        """Rows of each table."""
        return int(self.memory * self.times) // row_bytes(self.embedding_dim, "sgd") // _NUM_TABLES

    @property
    def hot_rows_of_table(self) -> int:
        """Hot rows of each."""
        return self.hot_bytes // row_bytes(self.embedding_dim, "sgd") // _NUM_TABLES

    def num_batches(self, cold_share: float) -> int:
        """Return the batches of an epoch with this share of cold lookups."""
        return max(round(self.batches * _COLD_SHARE / cold_share), 1)

    def touched_bytes(self, cold_share: float) -> int:
        """Return the bytes of the pages of a mapped table with a cold row of an epoch, expected."""
        num_pages = _NUM_TABLES * self.rows_of_table * row_bytes(self.embedding_dim, "sgd") / _PAGE_BYTES
        lookups = cold_share * self.num_batches(cold_share) * self.batch_size * _NUM_TABLES
        # Of so many pages each lookup takes any: what is never drawn falls off as e to the minus mean.
        return round(-math.expm1(-lookups / num_pages) * num_pages) * _PAGE_BYTES

    def shards(self, cold_share: float) -> DrawnShards:
        """Describe the log with this share of cold lookups."""
        return DrawnShards(
            num_tables=_NUM_TABLES,
            rows_of_table=self.rows_of_table,
            hot_rows_of_table=self.hot_rows_of_table,
            cold_share=cold_share,
            batch_size=self.batch_size,
            num_batches=self.num_batches(cold_share),
            embedding_dim=self.embedding_dim,
            seed=self.seed,
        )


def bench_larger_than_memory(config: BenchLargerThanMemoryConfig) -> dict[str, Any]:
    """Draw the samples of each share of cold lookups, and let every contestant train on them in turn.

    Returns:
        ``shares``: of each share the ``contestants`` with samples per second, bytes and requests of the
        device and peak memory, the ``ratios`` of lookahead to the others, their ``bounds``, which are the
        ratios of training in memory, and whether all weights are equal.
    """
    machine = describe_machine()
    shares = []
    is_limited = True
    with tempfile.TemporaryDirectory(prefix="hotset-bench-", dir=config.scratch) as name:
        scratch = Path(name)
        warm_up = _warm_up_shards(config, scratch / "warm-up")
        for share in config.cold_shares:
            drawn = scratch / f"cold-{share}"
            config.shards(share).write(drawn)
            say(f"{share:.0%} cold lookups")
            # All contestants of a share in turn, so that a slow minute hits each of them.
            turns = {one: partial(_measure, config, one, drawn, warm_up, scratch) for one in CONTESTANTS}
            found = take_turns(turns, config.rounds)
            # The contestant in memory runs without a limit, and says nothing of whether limits work here.
            is_limited &= all(one[1] for name, own in found.items() if name != IN_MEMORY for one in own)
            rounds = {name: [one[0] for one in own] for name, own in found.items()}
            shares.append(
                {
                    "cold_share": share,
                    "num_batches": config.num_batches(share),
                    "touched_bytes": config.touched_bytes(share),
                    **_share(rounds),
                }
            )
    return {
        "benchmark": "larger-than-memory",
        "shares": shares,
        "is_limited": is_limited,
        "table_bytes": _NUM_TABLES * config.rows_of_table * row_bytes(config.embedding_dim, "sgd"),
        "settings": recorded_settings(config),
        "machine": machine,
    }


def _measure(
    config: BenchLargerThanMemoryConfig, contestant: str, shards: Path, warm_up: Path, scratch: Path
) -> tuple[Measurement, bool]:
    """Run one contestant in a new process; also return whether its memory was limited."""
    say(f"training with {contestant}")

    def run(folder: Path, slow_bytes: int, limit: Any) -> LimitedRun:
        return LimitedRun(
            contestant=contestant,
            shards=folder,
            slow_bytes=slow_bytes,
            staging_bytes=config.staging_bytes,
            epochs=config.epochs,
            seed=config.seed,
            threads=config.threads or describe_machine()["cores"],
            limit=limit,
        )

    # The limit is a group of the system for the measured process alone.
    with memory_limit(config.memory) as limit:
        candidate = Candidate(
            contestant,
            "",
            train_limited,
            (run(warm_up, config.staging_bytes, None),),
            (run(shards, config.slow_bytes, None if contestant == IN_MEMORY else limit),),
        )
        return measure_in_fresh_process(candidate, scratch, workers=config.threads), limit is not None


def _warm_up_shards(config: BenchLargerThanMemoryConfig, folder: Path) -> Path:
    """Write small shards, for a run that compiles everything before the one that is measured."""
    DrawnShards(
        num_tables=_NUM_TABLES,
        rows_of_table=_WARM_UP_ROWS,
        hot_rows_of_table=100,
        cold_share=0.5,
        batch_size=config.batch_size,
        num_batches=3,
        embedding_dim=config.embedding_dim,
    ).write(folder)
    return folder


def _share(rounds: dict[str, list[Measurement]]) -> dict[str, Any]:
    def speeds(contestant: str) -> list[float]:
        return [one.facts["num_samples"] / one.facts["training_seconds"] for one in rounds[contestant]]

    def ratios_of(contestant: str) -> dict[str, float]:
        others = [name for name in rounds if name != contestant]
        return {f"{contestant} / {name}": median_ratio(speeds(contestant), speeds(name)) for name in others}

    # Equal weights show that memory limits change no bit.
    digests = {one.facts["digest"] for measured in rounds.values() for one in measured}
    return {
        "contestants": [
            {"name": name, "samples_per_second": statistics.median(speeds(name))} | _costs(measured)
            for name, measured in rounds.items()
        ],
        "ratios": ratios_of(LOOKAHEAD),
        "bounds": ratios_of(IN_MEMORY),
        "equal_bits": len(digests) == 1,
    }


def _costs(measured: list[Measurement]) -> dict[str, Any]:
    """Return medians over rounds, the greatest peaks, and every round as it was."""
    names = ("setup_seconds", "training_cpu_seconds", "bytes_read", "bytes_written", "requests")
    peaks = [one.facts["peak_bytes"] for one in measured if one.facts["peak_bytes"] is not None]
    return {
        **{name: statistics.median(one.facts[name] for one in measured) for name in names},
        "peak_anonymous_bytes": max(one.peak_anonymous_bytes for one in measured),
        "peak_limited_bytes": max(peaks, default=None),
        "rounds": [one.facts for one in measured],
    }


def show_larger_than_memory(result: dict[str, Any], console: Console) -> None:
    """Print a table for each share of cold lookups."""
    settings = result["settings"]
    memory = format_byte_size(settings["memory"]) if result["is_limited"] else "no limit of memory"
    # What each contestant reads and writes stands beside its speed, since the disk explains it.
    console.print(f"tables of {format_byte_size(result['table_bytes'])}, {memory}")
    for share in result["shares"]:
        console.print(
            f"{share['cold_share']:.0%} cold lookups, {share['num_batches']:,} batches: an epoch touches "
            f"{format_byte_size(share['touched_bytes'])} of pages"
        )
        table = Table(box=None, pad_edge=False)
        table.add_column("")
        for column in ("samples/s", "read", "written", "requests", "anonymous memory", "setup s"):
            table.add_column(column, justify="right")
        for one in share["contestants"]:
            table.add_row(
                one["name"],
                f"{one['samples_per_second']:,.0f}",
                format_byte_size(one["bytes_read"]),
                format_byte_size(one["bytes_written"]),
                f"{one['requests']:,.0f}",
                format_byte_size(one["peak_anonymous_bytes"]),
                f"{one['setup_seconds']:.1f}",
            )
        console.print(table)
        for ratios in (share["ratios"], share["bounds"]):
            console.print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
        console.print("equal bits" if share["equal_bits"] else "the weights DIFFER")


CONFIG = BenchLargerThanMemoryConfig
measure = bench_larger_than_memory
show = show_larger_than_memory
