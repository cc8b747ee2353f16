"""``hotset bench exchange``: the rows that cross between ranks in an epoch, by the scheme of homes.

A log of the Kaggle shape is generated and packed in batches of so many samples a rank; then the messages of
each scheme are counted from the lookups, beside the least that any exact scheme needs and beside the number
that `hotset.stats.prediction.communication` expects. Nothing is trained and nothing is sent.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.stages.preprocess import preprocess, remove_from
from ....stats.batches.epoch_order import epoch_order
from ....stats.exchange.count_exchange import ExchangeCounts, count_exchange
from ....stats.exchange.home_moves import move_costs
from ....stats.exchange.home_plan import RowUses, users_of_rows
from ....stats.exchange.rank_masks import MOST_RANKS
from ....stats.exchange.ranked_epoch import RankedEpoch
from ....stats.exchange.volume import Crossings
from ....stats.prediction.access_rates import AccessRates
from ....stats.prediction.communication import ParallelStep, sharded_deduplicated
from ....stats.prediction.moving_homes import expected_moving
from ....stats.ranking.row_bytes import OPTIMIZERS, state_width
from ....train.data.shards import Shards
from ....train.exchange.rank_reader import RankReader, read_epoch
from ...machine_facts import commit, describe_machine
from ...recipes import recipe_for
from ..measuring.recorded_settings import recorded_settings
from .bench_links import BenchLinksConfig, bench_links, refuse_unknown_links, show_links

_FLOAT_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class BenchExchangeConfig:
    """Settings of the benchmark of exchanges: the log, the ranks, the batch of a rank."""

    samples: int = 2_000_000
    """Samples of the generated log; its whole training part is counted."""

    seed: int = 0
    """Seed of the log and of the batch order."""

    data: Path | None = None
    """A raw log to use instead of a generated one."""

    schema: str = "criteo-kaggle"
    """Schema of the log."""

    ranks: tuple[int, ...] = (2, 4, 8)
    """Numbers of ranks to count for."""

    rank_batch_size: int = 2048
    """Samples of a batch that each rank computes."""

    embedding_dim: int = 16
    """Floats per row."""

    order: Literal["grouped", "original"] = "grouped"
    """Order of the shards: hot-only and mixed batches, or all samples shuffled together."""

    link: tuple[str, ...] = ()
    """Links behind which two ranks then train in turns, as `hotset bench links` does, which names them; by
    default none."""

    def __post_init__(self) -> None:
        refuse_unknown_links("link", self.link)
        for name in ("samples", "rank_batch_size", "embedding_dim"):
            require_at_least(name, getattr(self, name), 1)
        if not self.ranks or not all(2 <= ranks <= MOST_RANKS for ranks in self.ranks):
            raise ConfigError(f"ranks must be from 2 to {MOST_RANKS}")


def bench_exchange(config: BenchExchangeConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Count; return plain data, ready for JSON.

    Returns:
        By number of ranks: vectors and gradients per training sample between all ranks for each scheme, the
        moves and the bytes with the state of each optimizer, what the theory expects, and CPU seconds.
    """
    found = []
    with tempfile.TemporaryDirectory(prefix="hotset-exchange-") as name:
        log = config.data or Path(name) / "log.tsv"
        data = Path(name) / "data"
        if config.data is None:
            generate(GenerateConfig(samples=config.samples, seed=config.seed), log)
        for number, ranks in enumerate(config.ranks):
            progress("bench", number, len(config.ranks))
            recipe = recipe_for(config.schema)
            # Each rank has batches of the same size, so more ranks have larger batches together.
            pack = replace(recipe.pack, batch_size=ranks * config.rank_batch_size, order=config.order)
            split = replace(recipe.split, embedding_dim=config.embedding_dim)
            # What comes before the batches does not depend on their size and stays.
            remove_from("pack", data)
            preprocess([log], replace(recipe, pack=pack, split=split), data)
            found.append(_count(Shards.open(data), config, ranks))
    progress("bench", len(config.ranks), len(config.ranks))
    timed = bench_links(BenchLinksConfig(links=config.link, seed=config.seed)) if config.link else None
    return {
        "benchmark": "exchange",
        "settings": recorded_settings(config),
        "ranks": found,
        "timed": timed,
        "machine": describe_machine(),
        "commit": commit(),
    }


def _count(shards: Shards, config: BenchExchangeConfig, num_ranks: int) -> dict[str, Any]:
    reader = RankReader(shards, range(len(shards.tables)), num_ranks)
    order = epoch_order(shards.is_hot_only, config.seed, 0, spread=shards.is_grouped)
    begin = time.thread_time()
    epoch = read_epoch(reader, order.tolist())
    reading_seconds = time.thread_time() - begin
    # How many bytes a move costs depends on the optimizer, whose state moves along.
    widths = {name: state_width(config.embedding_dim, name) for name in OPTIMIZERS}
    counts = {name: count_exchange(epoch, config.embedding_dim, width) for name, width in widths.items()}
    samples = epoch.num_samples
    return {
        "ranks": num_ranks,
        "num_samples": samples,
        "num_rows": epoch.num_rows,
        "rows_per_sample": _rows(epoch, counts["sgd"]),
        "expected_deduplicated": _expected(epoch, shards.batch_size),
        "moving": {
            name: _moving(count.moving, config.embedding_dim, width, samples)
            | {
                "expected": _expected_moving(epoch, shards.batch_size, config.embedding_dim, width),
                "most_rows_over_mean": float(count.rows_of_ranks.max() / count.rows_of_ranks.mean()),
                "plan_cpu_seconds": count.planning_seconds,
            }
            for (name, count), width in zip(counts.items(), widths.values(), strict=True)
        },
        "by_use_bytes_per_sample": _FLOAT_BYTES * config.embedding_dim * counts["sgd"].by_use.rows / samples,
        "places_over_rows": _num_places(epoch) / max(epoch.num_rows, 1),
        "read_cpu_seconds": reading_seconds,
    }


def _rows(epoch: RankedEpoch, counts: ExchangeCounts) -> dict[str, float]:
    """Vectors and gradients per sample of each scheme, homes moving as they would without optimizer state."""
    messages = {
        # From the plainest scheme to the least that any could send.
        "every lookup": 2 * epoch.remote_lookups,
        "deduplicated": counts.deduplicated,
        "first uses computed": counts.striped.rows,
        "homes by use": counts.by_use.rows,
        "homes move": counts.moving.rows,
        "least possible": counts.least,
    }
    return {name: count / epoch.num_samples for name, count in messages.items()}


def _moving(found: Crossings, embedding_dim: int, width: int, num_samples: int) -> dict[str, float]:
    return {
        "rows_per_sample": found.rows / num_samples,
        "moves_per_sample": found.moves / num_samples,
        "bytes_per_sample": _FLOAT_BYTES * found.num_numbers(embedding_dim, width) / num_samples,
        "early_share": found.early / max(found.vectors, 1),
    }


def _expected_moving(epoch: RankedEpoch, batch_size: int, embedding_dim: int, width: int) -> dict[str, float]:
    """Rows and moves per sample that are expected from nothing but how often each row is looked up."""
    costs = move_costs(embedding_dim, width)
    found = expected_moving(epoch.lookups_of_rows, epoch.num_samples, batch_size, epoch.num_ranks, costs)
    samples = epoch.num_samples
    return {"rows_per_sample": found.rows / samples, "moves_per_sample": found.moves / samples}


def _num_places(epoch: RankedEpoch) -> int:
    """Places for rows on all ranks where homes move: one at each rank that ever looks a row up."""
    uses = RowUses(epoch.offsets, epoch.keys, epoch.masks, epoch.num_rows, epoch.num_ranks)
    users_K = users_of_rows(uses).astype(np.uint64)
    num_users_K = np.zeros(users_K.size, np.int64)
    for rank in range(epoch.num_ranks):
        num_users_K += (users_K >> np.uint64(rank) & np.uint64(1)).astype(np.int64)
    # A row that nobody looks up has one, too.
    return int(np.maximum(num_users_K, 1).sum())


def _expected(epoch: RankedEpoch, batch_size: int) -> float:
    """Vectors and gradients per sample that the theory of independent lookups expects, deduplicated."""
    rates = AccessRates.of_counts([epoch.lookups_of_rows], epoch.num_samples)
    step = ParallelStep(batch_size // epoch.num_ranks, epoch.num_ranks)
    return sharded_deduplicated(rates, step).total / step.samples


def show_exchange(result: dict[str, Any], console: Console) -> None:
    """Print the rows that each scheme sends per sample, a column for each number of ranks."""
    ranks: list[dict[str, Any]] = result["ranks"]
    table = _table("Vectors and gradients sent between all ranks, per training sample", ranks)
    for name in ranks[0]["rows_per_sample"]:
        table.add_row(name, *(f"{each['rows_per_sample'][name]:.2f}" for each in ranks))
    table.add_row("deduplicated, as expected", *(f"{each['expected_deduplicated']:.2f}" for each in ranks))
    console.print(table)
    table = _table(
        "Bytes sent between all ranks per training sample; where homes move, optimizer states are sent too",
        ranks,
    )
    table.add_row("homes by use", *(f"{each['by_use_bytes_per_sample']:.0f}" for each in ranks))
    for name in ranks[0]["moving"]:
        table.add_row(name, *(f"{each['moving'][name]['bytes_per_sample']:.0f}" for each in ranks))
    console.print(table)
    places = ", ".join(f"{each['places_over_rows']:.2f} at {each['ranks']}" for each in ranks)
    console.print(f"places of all ranks for rows that move, by rows of the tables: {places}")
    # Planning must keep up with training, so its speed stands below what it saves.
    speeds = [each["num_samples"] / each["moving"]["sgd"]["plan_cpu_seconds"] / 1e6 for each in ranks]
    planned = ", ".join(
        f"{speed:.1f} M at {each['ranks']}" for speed, each in zip(speeds, ranks, strict=True)
    )
    console.print(f"homes planned for samples per CPU second, by ranks: {planned}")
    if result.get("timed") is not None:
        show_links(result["timed"], console)


def _table(title: str, ranks: Iterable[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for each in ranks:
        table.add_column(f"{each['ranks']} ranks", justify="right")
    return table


CONFIG = BenchExchangeConfig
measure = bench_exchange
show = show_exchange
