"""``hotset bench placements``: bytes, speed and quality of every placement on one generated log.

Bytes are those of a whole epoch, from the step plans (a test holds them against what a run counts), so a log
of any size is quick. Speed is measured on the first batches of the epoch, round by round with every placement
in turn, as CPU time and as wall time; a ratio is the median of the rounds' ratios. All start from one seed,
and those on the batch order of all-fast end with its bits: their AUC is shown because equal is equal.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.sizes import ByteSize
from ...pipeline.stages.preprocess import preprocess, remove_from
from ...stats.batches.row_slots import epoch_order
from ...stats.ranking.row_bytes import row_bytes
from ...train.config import TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.placements.simulate import simulate_epoch
from ...train.trainer import build_trainer, run_steps, set_threads
from ..console import say
from ..recipes import criteo_kaggle
from .bench_harness import commit, describe_machine

_BELADY = "belady, P = 0"
_EVALUATED = 32_768


@dataclass(frozen=True, kw_only=True)
class BenchPlacementsConfig:
    """How large a log, which share of it is on the fast tier, how long to train."""

    samples: int = 2_000_000
    """Generated samples, all of whose training part is planned."""

    seed: int = 0
    """Of the log, the model and the order of batches."""

    embedding_dim: int = 16
    """Columns of a row."""

    batch_size: int = 2048
    """Samples of a batch."""

    order: Literal["grouped", "original"] = "grouped"
    """Of the shards: hot-only batches and mixed ones, or samples shuffled all together."""

    hot_shares: tuple[float, ...] = (0.015,)
    """Hot rows as shares of all rows; as many slots again stage the others."""

    train_batches: int = 20
    """Batches trained in each round; 0 plans only."""

    rounds: int = 3
    """Rounds of training."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.train_batches < 0 or self.rounds < 1:
            raise ConfigError("samples and rounds must be 1 or more, train_batches 0 or more")
        if not self.hot_shares or not all(0 < share < 1 for share in self.hot_shares):
            raise ConfigError("hot_shares must be between 0 and 1")


def contestants(staging_bytes: int, seed: int) -> dict[str, TrainConfig]:
    """Every placement with the same fast memory; the yardsticks first."""
    plain = TrainConfig(placement="all-fast", seed=seed, staging_bytes=ByteSize(staging_bytes))
    lookahead, cache = replace(plain, placement="lookahead"), replace(plain, placement="cache")
    return {
        "all-fast": plain,
        "hybrid": replace(plain, placement="hybrid"),
        "hybrid-dedup": replace(plain, placement="hybrid-dedup"),
        "fae": replace(plain, placement="fae", fae_variant="code"),
        "cache lfu": cache,
        "cache lru": replace(cache, cache_policy="lru"),
        "cache dataset": replace(cache, cache_policy="dataset"),
        "lookahead": lookahead,
        "lookahead online": replace(lookahead, plan="online"),
        _BELADY: replace(lookahead, prefetch=0),
    }


def bench_placements(config: BenchPlacementsConfig) -> dict[str, Any]:
    """Make the log once, and for each share of hot rows the shards; plan all, train the first batches.

    Returns:
        By share: bytes a sample each way by placement, ratios to Belady and the hybrids, rounds of training.
    """
    recipe = criteo_kaggle()
    recipe = replace(recipe, pack=replace(recipe.pack, batch_size=config.batch_size, order=config.order))
    result: dict[str, Any] = {"config": asdict(config), "shares": []}
    with tempfile.TemporaryDirectory() as scratch:
        log, data = Path(scratch) / "log.tsv", Path(scratch) / "data"
        generate(GenerateConfig(samples=config.samples, seed=config.seed), log)
        vocabulary = preprocess([log], recipe, data, until="rank")
        num_rows = sum(table["num_rows"] for table in vocabulary.totals["tables"])
        for share in config.hot_shares:
            say(f"{share:.1%} of {num_rows:,} rows hot, as many slots beside them")
            hot_bytes = int(share * num_rows) * row_bytes(config.embedding_dim, "sgd")
            split = replace(recipe.split, hot_bytes=ByteSize(hot_bytes), embedding_dim=config.embedding_dim)
            remove_from("split", data)
            preprocess([log], replace(recipe, split=split), data)
            shards = Shards.open(data)
            result["shares"].append(
                {"share": share, "num_rows": num_rows} | _share(config, shards, hot_bytes)
            )
    return result | {"machine": describe_machine(), "commit": commit()}


def _share(config: BenchPlacementsConfig, shards: Shards, hot_bytes: int) -> dict[str, Any]:
    every = contestants(hot_bytes, config.seed)
    kinds = shards.is_hot_only
    order = epoch_order(kinds, config.seed, 0, spread=shards.is_grouped).tolist()
    moved = {name: _moved(shards, run, order) for name, run in every.items()}
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in every if name != _BELADY}
    for number in range(config.rounds if config.train_batches else 0):
        for name, measured in rounds.items():
            say(f"round {number + 1}, {name}")
            measured.append(_trained(shards, every[name], order[: config.train_batches]))
    return {"bytes": moved, "ratios": _ratios(moved), "rounds": rounds, "cpu": _cpu_ratios(rounds)}


def _moved(shards: Shards, run: TrainConfig, order: list[int]) -> dict[str, float]:
    """Bytes a training sample of one epoch."""
    if run.placement == "fae":
        # All mixed batches, a copy of the hot rows, all hot-only ones, a copy back: the least FAE can move.
        mixed = shards.manifest.totals["samples"]["mixed"]
        vectors = mixed * sum(4 * table.embedding_dim for table in shards.tables)
        hot = sum(t.num_hot * row_bytes(t.embedding_dim, "sgd") for t in shards.tables)
        found: dict[str, int] = {"bytes_to_fast": vectors + hot, "bytes_to_slow": vectors + hot}
    else:
        found = asdict(simulate_epoch(shards, run, order))
    return {
        name.replace("bytes_", ""): count / shards.num_training_samples
        for name, count in found.items()
        if name.startswith("bytes_")
    }


def _ratios(moved: dict[str, dict[str, float]]) -> dict[str, float]:
    """What look-ahead moves against the others, with and without its first uses as fetches."""

    def both_ways(name: str, *, fetches_all: bool = False) -> float:
        found = moved[name]
        made = found.get("made", 0.0) if fetches_all else 0.0
        return max(found["to_fast"] + found["to_slow"] + made, 1e-9)

    real, without = both_ways("lookahead"), both_ways("lookahead", fetches_all=True)
    return {
        "lookahead / belady": without / both_ways(_BELADY, fetches_all=True),
        "hybrid / lookahead, first uses fetched": both_ways("hybrid") / without,
        "hybrid / lookahead": both_ways("hybrid") / real,
        "hybrid-dedup / lookahead": both_ways("hybrid-dedup") / real,
    }


def _trained(shards: Shards, run: TrainConfig, order: list[int]) -> dict[str, Any]:
    """CPU and wall seconds of the first batches, stalls, and AUC after them."""
    set_threads(run.threads)
    trainer = build_trainer(shards, run, RecordedOrder(np.array(order, np.int32)))
    before = resource.getrusage(resource.RUSAGE_SELF)
    run_steps(trainer, lambda *_: None)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    conveyor = trainer.embeddings.conveyor
    return {
        "cpu_seconds": cpu,
        "samples_per_second": trainer.num_samples / trainer.meter.training_seconds,
        "stalls": conveyor.num_stalls,
        "stall_seconds": conveyor.stall_seconds,
        "auc": trainer.predictor.predict(_EVALUATED).scores.auc,
    }


def _cpu_ratios(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Speed against all-fast by CPU time: the median of the rounds' ratios."""
    if not rounds["all-fast"]:
        return {}
    fast = [measured["cpu_seconds"] for measured in rounds["all-fast"]]
    return {
        name: statistics.median(f / m["cpu_seconds"] for f, m in zip(fast, measured, strict=True))
        for name, measured in rounds.items()
    }


def show_placements(result: dict[str, Any], console: Console) -> None:
    """One table for each share of hot rows."""
    for found in result["shares"]:
        dim = result["config"]["embedding_dim"]
        table = Table(box=None, pad_edge=False)
        table.add_column(f"{found['share']:.1%} hot, as much staging, dim {dim}")
        for column in ("bytes up a sample", "down", "made", "speed / all-fast", "samples/s", "stalls", "AUC"):
            table.add_column(column, justify="right")
        for name, moved in found["bytes"].items():
            table.add_row(name, *_cells(name, moved, found))
        console.print(table)
        console.print(", ".join(f"{name} {ratio:.2f}" for name, ratio in found["ratios"].items()))


def _cells(name: str, moved: dict[str, float], found: dict[str, Any]) -> list[str]:
    cells = [f"{moved.get(way, 0.0):,.0f}" for way in ("to_fast", "to_slow", "made")]
    rounds = found["rounds"].get(name)
    if not rounds:
        return cells + ["-"] * 4
    speed = statistics.median(measured["samples_per_second"] for measured in rounds)
    auc = rounds[-1]["auc"]
    shown = "-" if auc is None else f"{auc:.4f}"
    return [*cells, f"{found['cpu'][name]:.2f}", f"{speed:,.0f}", str(rounds[-1]["stalls"]), shown]


CONFIG, measure, show = BenchPlacementsConfig, bench_placements, show_placements
