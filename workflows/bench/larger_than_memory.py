"""Training on tables four times a limit of memory that the system enforces, next to memory-mapped ones.

The contestants train the same batches to the same bits and differ in where cold rows are: in memory without
any limit; in files by their next use (`lookahead`); and in a memory-mapped table with random advice
(`hybrid`). The run in memory waits for no disk, so its ratio to a mapped table is the most that any placement
could gain.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ...pipeline.errors import MIB, ByteSize, ConfigError, parse_byte_size
from ...pipeline.runtime.limits import numbers_in
from ...pipeline.runtime.tasks import num_workers
from ...stats.row_bytes import row_bytes
from ...train.build import build_trainer
from ...train.build_embeddings import set_threads
from ...train.config import TrainConfig
from ...train.data.shards import Shards
from ...train.loop import Trainer, run_steps
from ..drawn_shards import DrawnShards
from . import harness
from .harness import Facts, Measurement, MemoryLimit, Options, clock, seconds_since, tell

IN_MEMORY = "in memory, no limit"
LOOKAHEAD = "lookahead"
MAPPED = "mapped, random advice"
_NUM_TABLES = 26
_WARM_UP_ROWS = 4000
_DIM, _BATCH_SIZE, _BATCHES, _EPOCHS = 16, 2048, 100, 2
"""Batches of an epoch are those at 10 % cold lookups; other shares make as many of these lookups."""

PARSER = harness.new_parser(__spec__, __doc__)
PARSER.add_argument("--memory", type=parse_byte_size, default=ByteSize(640 * MIB), help="limit of a run")
PARSER.add_argument("--times", type=float, default=4.0, help="size of the tables over that memory")
PARSER.add_argument("--cold-shares", type=float, nargs="+", default=[0.1, 0.02])
PARSER.add_argument("--batches", type=int, default=_BATCHES, help="batches of an epoch at 10%% cold")
PARSER.add_argument("--rounds", type=int, default=3, help="rounds in which each contestant runs once")


def measure(options: Options, scratch: Path) -> Facts:
    """Draw the samples of each share of cold lookups, and let every contestant train on them in turn."""
    if not all(0 < share <= 1 for share in options.cold_shares):
        raise ConfigError("cold_shares must be above 0, and at most 1")
    bytes_of_rows = _NUM_TABLES * row_bytes(_DIM, "sgd")
    rows_of_table = int(options.memory * options.times) // bytes_of_rows
    # Hot rows take a tenth of the memory.
    hot_rows_of_table = options.memory // 10 // bytes_of_rows
    shares = []
    warm_up = _draw(scratch / "warm-up", _WARM_UP_ROWS, 100, 0.5, 3)
    for share in options.cold_shares:
        num_batches = max(round(options.batches * 0.1 / share), 1)
        drawn = _draw(scratch / f"cold-{share}", rows_of_table, hot_rows_of_table, share, num_batches)
        tell(f"{share:.0%} cold lookups, {num_batches} batches")
        turns = {
            name: partial(_measure, name, config, options.memory, drawn, warm_up, scratch)
            for name, config in _configs(options.memory).items()
        }
        rounds = harness.take_turns(turns, options.rounds)
        shares.append({"cold_share": share, "num_batches": num_batches, **_share(rounds)})
    return {"shares": shares, "table_bytes": rows_of_table * bytes_of_rows}


def _configs(memory: int) -> dict[str, TrainConfig]:
    """Return the settings of each contestant: lookahead may use an eightieth of the memory for cold rows."""
    lookahead = TrainConfig(
        placement="lookahead",
        slow_bytes=ByteSize(memory // 80),
        staging_bytes=ByteSize(memory // 160),
        epochs=_EPOCHS,
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        threads=num_workers(0),
    )
    # A limit of one byte puts all rows in the file.
    mapped = replace(lookahead, placement="hybrid", slow_bytes=ByteSize(1))
    in_memory = replace(lookahead, slow_bytes=None)
    return {IN_MEMORY: in_memory, LOOKAHEAD: lookahead, MAPPED: mapped}


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdShards(DrawnShards):
    """A drawn log whose cold lookups are spread evenly over the cold rows."""

    num_tables: int = _NUM_TABLES
    skew: float = 0.0
    cold_share: float
    """Share of the lookups that are of cold rows."""

    def _draw_ids(self, shape: tuple[int, int], num_rows: int, rng: np.random.Generator) -> NDArray[np.int32]:
        cold = rng.integers(self.hot_rows_of_table, num_rows, shape)
        # Hot rows are looked up as a power of a uniform number: 1 % of them get a fifth of their lookups.
        hot = (self.hot_rows_of_table * rng.random(shape) ** 3).astype(np.int64)
        return np.where(rng.random(shape) < self.cold_share, cold, hot).astype(np.int32)


def _draw(folder: Path, rows: int, hot_rows: int, cold_share: float, num_batches: int) -> Path:
    sizes: Any = {"rows_of_table": rows, "hot_rows_of_table": hot_rows, "num_batches": num_batches}
    ColdShards(**sizes, cold_share=cold_share, batch_size=_BATCH_SIZE, embedding_dim=_DIM).write(folder)
    return folder


def _measure(
    contestant: str, config: TrainConfig, memory: int, shards: Path, warm_up: Path, scratch: Path
) -> Measurement:
    """Run one contestant in a new process."""
    # The warm-up fits in no fewer slots than a batch of it needs.
    small = replace(config, slow_bytes=config.staging_bytes) if contestant == LOOKAHEAD else config
    with harness.memory_limit(memory) as limit:
        job = (shards, config, None if contestant == IN_MEMORY else limit)
        return harness.measure_in_fresh_process(scratch, train_limited, (warm_up, small, None), job)


def _share(rounds: dict[str, list[Measurement]]) -> Facts:
    def speeds(contestant: str) -> list[float]:
        return [one.facts["num_samples"] / one.facts["training_seconds"] for one in rounds[contestant]]

    def ratios_of(contestant: str) -> dict[str, float]:
        others = [name for name in rounds if name != contestant]
        return {
            f"{contestant} / {name}": harness.median_ratio(speeds(contestant), speeds(name))
            for name in others
        }

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


def _costs(measured: list[Measurement]) -> Facts:
    """Return medians over rounds, the greatest peak, and every round as it was."""
    names = ("setup_seconds", "training_cpu_seconds", "bytes_read", "bytes_written")
    return {
        **{name: statistics.median(one.facts[name] for one in measured) for name in names},
        "peak_anonymous_bytes": max(one.peak_anonymous_bytes for one in measured),
        "rounds": [one.facts for one in measured],
    }


def train_limited(folder: Path, job: tuple[Path, TrainConfig, MemoryLimit | None]) -> Facts:
    """Train with the files of rows in ``folder``; return its times, disk traffic and peak memory.

    Args:
        job: the shards, the settings, and the group of processes to join; None for no limit.
    """
    path, config, limit = job
    # The limit holds from here on, after everything that every contestant loads.
    if limit is not None:
        limit.join()
    set_threads(config.threads)
    start = time.perf_counter()
    trainer = build_trainer(Shards.open(path), config, spill_folder=folder)
    # Setting up is measured apart from training, as are the bytes it reads.
    setup_seconds = time.perf_counter() - start
    before, begin = _disk_traffic(), clock()
    run_steps(trainer, lambda *_: None)
    (_, cpu_seconds), after = seconds_since(begin), _disk_traffic()
    return {
        "num_samples": trainer.num_samples,
        "training_seconds": trainer.meter.training_seconds,
        "training_cpu_seconds": cpu_seconds,
        "setup_seconds": setup_seconds,
        **{name: after[name] - count for name, count in before.items()},
        "peak_bytes": limit.peak_bytes() if limit else None,
        "digest": digest_of(trainer),
    }


def digest_of(trainer: Trainer) -> str:
    """Return the xxh3-128 of all weights, read in parts."""
    digest = xxhash.xxh3_128()
    weights = trainer.weights()
    for name in sorted(weights):
        for part in weights.parts(name):
            digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


def _disk_traffic() -> dict[str, int]:
    """Return the bytes read from the device and written to it so far."""
    counted = numbers_in(Path("/proc/self/io"))
    return {"bytes_read": counted["read_bytes"], "bytes_written": counted["write_bytes"]}


if __name__ == "__main__":
    harness.main(PARSER, measure)
