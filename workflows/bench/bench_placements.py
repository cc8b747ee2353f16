"""``hotset bench placements``: bytes, speed and quality of every placement on one generated log.

Bytes are those of a whole epoch, computed from the step plans (a test compares them with what a run counts),
so even a large log is quick. Speed is measured on the first batches of the epoch, with all placements taking
turns, as CPU time and as wall time; a ratio is the median of the rounds' ratios. All placements start from
one seed, and those that train in the batch order of all-fast end with its exact weights, so with its AUC.
On a device each speed stands beside what the link allows at most: the bytes moved over its measured rates.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...pipeline.folders.stage_totals import ShardsTotals, VocabularyTotals
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.sizes import ByteSize
from ...pipeline.stages.preprocess import preprocess, remove_from
from ...stats.batches.epoch_order import epoch_order
from ...stats.ranking.row_bytes import row_bytes
from ...train.config import TrainConfig
from ...train.data.batch_order import RecordedOrder
from ...train.data.shards import Shards
from ...train.placements.simulate import simulate_epoch
from ...train.run_results.run_summary import summarize_transfers
from ...train.steps.queued_steps import QueuedSteps
from ...train.trainer import Trainer, run_steps
from ...train.trainer_building.build_trainer import build_trainer
from ...train.trainer_building.devices import set_threads
from ..console import say
from ..machine_facts import commit, describe_machine
from ..recipes import criteo_kaggle
from .measuring.link_rates import LinkRates, measure_link
from .measuring.rounds import median_ratio, take_turns

_BELADY = "belady, P = 0"
"""Look-ahead without transfers ahead, the optimal eviction: the lower bound of bytes."""
_WARM_UP_BATCHES = 3
_EVALUATED = 32_768
"""Most samples evaluated for the AUC."""


@dataclass(frozen=True, kw_only=True)
class BenchPlacementsConfig:
    """Settings of the benchmark of placements: the log, the share of hot rows, the length of training."""

    samples: int = 2_000_000
    """Samples of the generated log; its whole training part is planned."""

    seed: int = 0
    """Seed of the log, the model and the batch order."""

    embedding_dim: int = 16
    """Floats per row."""

    batch_size: int = 2048
    """Samples per batch."""

    order: Literal["grouped", "original"] = "grouped"
    """Order of the shards: hot-only and mixed batches, or all samples shuffled together."""

    hot_shares: tuple[float, ...] = (0.015,)
    """Shares of all rows that are hot; as many slots stage the other rows."""

    device: str = "cpu"
    """Device of the fast tier and the dense layers: cpu, cuda or late. On a device the rates of its link
    are measured, and what they allow stands beside the speed of each placement."""

    train_batches: int = 20
    """Batches to train in each round, behind three that only warm up; 0 only plans."""

    rounds: int = 3
    """Rounds in which each placement trains once."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.train_batches < 0 or self.rounds < 1:
            raise ConfigError("samples and rounds must be 1 or more, train_batches 0 or more")
        if not self.hot_shares or not all(0 < share < 1 for share in self.hot_shares):
            raise ConfigError("hot_shares must be between 0 and 1")


def candidates(staging_bytes: int, seed: int, device: str = "cpu") -> dict[str, TrainConfig]:
    """Return every placement with the same fast memory; the baselines first."""
    # SGD without state, as in the papers whose bytes are compared.
    # One training run that all are variants of: equal seeds, optimizers and slots.
    all_fast = TrainConfig(
        placement="all-fast",
        seed=seed,
        device=device,
        staging_bytes=ByteSize(staging_bytes),
        dense_optimizer="sgd",
        # On the host speeds are those of runs without options.
        dense_dtype="fp32" if device == "cpu" else "auto",
    )
    lookahead = replace(all_fast, placement="lookahead")
    cache = replace(all_fast, placement="cache")
    return {
        "all-fast": all_fast,
        "hybrid": replace(all_fast, placement="hybrid"),
        "hybrid-dedup": replace(all_fast, placement="hybrid-dedup"),
        "hybrid-uva": replace(all_fast, placement="hybrid-uva"),
        "fae": replace(all_fast, placement="fae", fae_variant="code"),
        "cache lfu": cache,
        "cache lru": replace(cache, cache_policy="lru"),
        "cache dataset": replace(cache, cache_policy="dataset"),
        "lookahead": lookahead,
        "lookahead online": replace(lookahead, plan="online"),
        _BELADY: replace(lookahead, prefetch=0),
    }


def bench_placements(config: BenchPlacementsConfig) -> dict[str, Any]:
    """Generate the log once, pack it for each share of hot rows, plan all and train the first batches.

    Returns:
        By share: bytes per sample each way by placement, ratios to Belady and the hybrids, training rounds.
    """
    recipe = criteo_kaggle()
    recipe = replace(recipe, pack=replace(recipe.pack, batch_size=config.batch_size, order=config.order))
    link = measure_link(config.device)
    result: dict[str, Any] = {
        "config": asdict(config),
        "link": None if link is None else asdict(link),
        "shares": [],
    }
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log.tsv"
        data = Path(scratch) / "data"
        # The order of rows depends on no budget, so one vocabulary serves all shares.
        generate(GenerateConfig(samples=config.samples, seed=config.seed), log)
        vocabulary = preprocess([log], recipe, data, until="rank")
        num_rows = VocabularyTotals.of(vocabulary).num_rows
        for share in config.hot_shares:
            say(f"{share:.1%} of {num_rows:,} rows hot, and as many slots for staging")
            hot_bytes = int(share * num_rows) * row_bytes(config.embedding_dim, "sgd")
            split = replace(
                recipe.split,
                hot_bytes=ByteSize(hot_bytes),
                embedding_dim=config.embedding_dim,
                embedding_optimizer="sgd",
            )
            # What comes before split does not depend on the share and stays.
            remove_from("split", data)
            preprocess([log], replace(recipe, split=split), data)
            shards = Shards.open(data)
            result["shares"].append(
                {"share": share, "num_rows": num_rows} | _share(config, shards, hot_bytes, link)
            )
    return result | {"machine": describe_machine(), "commit": commit()}


def _share(
    config: BenchPlacementsConfig, shards: Shards, hot_bytes: int, link: LinkRates | None
) -> dict[str, Any]:
    """Plan and train every candidate on shards with one share of hot rows."""
    every = candidates(hot_bytes, config.seed, config.device)
    order = epoch_order(shards.is_hot_only, config.seed, 0, spread=shards.is_grouped).tolist()
    # Belady is a lower bound of bytes: it is planned but not trained.
    moved = {name: _moved(shards, run, order) for name, run in every.items()}

    def turn(name: str) -> dict[str, Any]:
        say(f"training with {name}")
        return _trained(shards, every[name], order[: _WARM_UP_BATCHES + config.train_batches])

    turns = {name: partial(turn, name) for name in every if name != _BELADY}
    rounds = take_turns(turns, config.rounds if config.train_batches else 0)
    return {
        "bytes": moved,
        "ratios": _ratios(moved),
        "rounds": rounds,
        "cpu": _cpu_ratios(rounds),
        "link": {} if link is None else _link_bounds(every, moved, rounds, link),
    }


def _link_bounds(
    every: dict[str, TrainConfig],
    moved: dict[str, dict[str, float]],
    rounds: dict[str, list[dict[str, Any]]],
    link: LinkRates,
) -> dict[str, float]:
    """Return the samples per second that the link allows each placement at most."""
    found = {}
    for name, of_epoch in moved.items():
        # Batches go up besides the rows, where steps are trained that say how much they send.
        sent = rounds[name][-1]["sent_bytes_per_sample"] if rounds.get(name) else 0.0
        seconds = link.seconds(every[name].placement, of_epoch["to_fast"] + sent, of_epoch["to_slow"])
        if seconds:
            found[name] = 1 / seconds
    return found


def _moved(shards: Shards, run: TrainConfig, order: list[int]) -> dict[str, float]:
    """Return the bytes per training sample that one epoch transfers."""
    if run.placement == "fae":
        # All mixed batches, hot rows copied to the fast tier, all hot-only batches, hot rows copied back: the
        # least that FAE can transfer.
        mixed = ShardsTotals.of(shards.manifest).samples.mixed
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
    """Return the bytes of the others over look-ahead's, without and with first uses counted as fetches."""

    # A row of the baseline's that is initialized on the fast tier would be a transfer for the others.
    def both_ways(name: str, *, fetches_all: bool = False) -> float:
        found = moved[name]
        initialized = found.get("made", 0.0) if fetches_all else 0.0
        return max(found["to_fast"] + found["to_slow"] + initialized, 1e-9)

    # Belady's bound fetches every row, so it is compared with look-ahead that does so too.
    lookahead = both_ways("lookahead")
    fetching_all = both_ways("lookahead", fetches_all=True)
    return {
        "lookahead / belady": fetching_all / both_ways(_BELADY, fetches_all=True),
        "hybrid / lookahead, first uses fetched": both_ways("hybrid") / fetching_all,
        "hybrid / lookahead": both_ways("hybrid") / lookahead,
        "hybrid-dedup / lookahead": both_ways("hybrid-dedup") / lookahead,
    }


def _trained(shards: Shards, run: TrainConfig, order: list[int]) -> dict[str, Any]:
    """Train the first batches; return CPU and wall seconds, stalls, and the AUC afterwards.

    The clocks start behind the batches that only warm up, with the device at rest.
    """
    set_threads(run.threads)
    trainer = build_trainer(shards, run, RecordedOrder(np.array(order, np.int32)))
    # CPU of all threads: what runs ahead in the background costs, too.
    begin = (time.process_time(), time.perf_counter(), 0)

    def after_step(running: Trainer, *_: object) -> None:
        nonlocal begin
        if running.step == _WARM_UP_BATCHES:
            running.runner.synchronize()
            begin = (time.process_time(), time.perf_counter(), running.num_samples)

    run_steps(trainer, after_step)
    trainer.runner.synchronize()
    cpu, wall = time.process_time() - begin[0], time.perf_counter() - begin[1]
    transfer_thread = trainer.embeddings.transfers
    runner = trainer.runner
    sent = runner.sent_bytes / trainer.num_samples if isinstance(runner, QueuedSteps) else 0.0
    return {
        "cpu_seconds": cpu,
        "samples_per_second": (trainer.num_samples - begin[2]) / wall,
        "stalls": transfer_thread.num_stalls,
        "stall_seconds": transfer_thread.stall_seconds,
        "sent_bytes_per_sample": sent,
        "mover": summarize_transfers(trainer).mover,
        "auc": trainer.predictor.score(_EVALUATED).auc,
    }


def _cpu_ratios(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return the speed relative to all-fast by CPU time: the median of the rounds' ratios."""
    if not rounds["all-fast"]:
        return {}
    seconds = {name: [one["cpu_seconds"] for one in measured] for name, measured in rounds.items()}
    return {name: median_ratio(seconds["all-fast"], own) for name, own in seconds.items()}


def show_placements(result: dict[str, Any], console: Console) -> None:
    """Print one table for each share of hot rows."""
    for found in result["shares"]:
        dim = result["config"]["embedding_dim"]
        table = Table(box=None, pad_edge=False)
        table.add_column(f"{found['share']:.1%} hot, as much staging, dim {dim}")
        # What moves per sample is exact; speeds behind it are measured.
        per_sample = ("to fast, bytes/sample", "to slow", "initialized")
        of_link = ("link allows", "of it") if found["link"] else ()
        for column in (*per_sample, "speed / all-fast", "samples/s", *of_link, "stalls", "AUC"):
            table.add_column(column, justify="right")
        for name, moved in found["bytes"].items():
            table.add_row(name, *_cells(name, moved, found))
        console.print(table)
        console.print(", ".join(f"{name} {ratio:.2f}" for name, ratio in found["ratios"].items()))
    if link := result["link"]:
        console.print(f"link: {link['up'] / 1e9:.1f} GB/s up, {link['down'] / 1e9:.1f} GB/s down, pinned")


def _cells(name: str, moved: dict[str, float], found: dict[str, Any]) -> list[str]:
    cells = [f"{moved.get(way, 0.0):,.0f}" for way in ("to_fast", "to_slow", "made")]
    rounds = found["rounds"].get(name)
    # Belady's bound is planned and not trained, so it has bytes and no speed.
    if not rounds:
        return [*cells, "-", "-", *_link_cells(name, None, found), "-", "-"]
    speed = statistics.median(measured["samples_per_second"] for measured in rounds)
    auc = rounds[-1]["auc"]
    shown = "-" if auc is None else f"{auc:.4f}"
    speeds = [f"{found['cpu'][name]:.2f}", f"{speed:,.0f}", *_link_cells(name, speed, found)]
    return [*cells, *speeds, str(rounds[-1]["stalls"]), shown]


def _link_cells(name: str, speed: float | None, found: dict[str, Any]) -> list[str]:
    """Return the speed that the link allows, and the share of it that was reached; none on the host."""
    if not found["link"]:
        return []
    bound = found["link"].get(name)
    shown = "-" if bound is None else f"{bound:,.0f}"
    return [shown, "-" if bound is None or speed is None else f"{speed / bound:.1%}"]


CONFIG = BenchPlacementsConfig
measure = bench_placements
show = show_placements
