"""Fully hot samples under each budget by the order of rows, and by FAE's sampling.

Every order ranks the same counts; what is hot is counted exactly over the training part. FAE's published
points are printed beside a Criteo Kaggle log: its rows, threshold and split of the log are others, so they
say how far a curve is off, not who is better.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import Manifest
from ...pipeline.generate.generate import GenerateConfig, generate
from ...pipeline.hot_rows.fae_hot_rows import calibrate
from ...pipeline.hot_rows.hot_curve import hot_curves, levels_of_tables
from ...pipeline.hot_rows.hot_order import HotOrder
from ...pipeline.sizes import GIB, MIB, format_byte_size
from ...pipeline.stages.encode import EncodeConfig, encode
from ...pipeline.stages.preprocess import PreprocessConfig, preprocess
from ...pipeline.stages.rank import rank
from ...stats.ranking.row_bytes import row_bytes
from ..recipes import recipe_for
from .bench_harness import commit, describe_machine

BUDGETS = tuple(int(size) for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB))
PUBLISHED = {4_000_000: 0.51, 20_000_000: 0.65, 140_000_000: 0.76}
"""Fully hot samples by bytes of hot rows at dim 16: FAE on Criteo Kaggle, PVLDB 15(1), figure 5, read off."""
ORDERS = ("frequency", "peel", "fae-paper", "fae-code")


@dataclass(frozen=True, kw_only=True)
class BenchOrdersConfig:
    """Which log, and how rows are counted."""

    samples: int = 2_000_000
    """Of the generated log."""

    seed: int = 0
    """Of the generated log."""

    data: Path | None = None
    """A raw log to use in place of a generated one."""

    schema: str = "criteo-kaggle"
    """Of the log."""

    embedding_dim: int = 16
    """Floats of a row; no optimizer state is counted, as in FAE."""

    workers: int = 0
    """Threads; 0 takes every core."""

    def __post_init__(self) -> None:
        if self.samples < 2:
            raise ConfigError(f"samples must be 2 or more, got {self.samples}")


def bench_orders(config: BenchOrdersConfig) -> dict[str, Any]:
    """Rank a log in each order and count what is hot.

    Returns:
        ``budgets``: bytes, and per order hot_sample_share and hot_lookup_share in [0, 1], hot_bytes; None
        where the order refuses the budget; of fae-paper also estimated_bytes and is_covered. ``rank``: per
        order seconds of wall clock and of CPU, a second run in the same process.
    """
    recipe, budgets = recipe_for(config.schema), sorted({*BUDGETS, *PUBLISHED})
    width = row_bytes(config.embedding_dim, "sgd")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = config.data or _generated(config, folder / "log.tsv")
        counts = preprocess([log], recipe, folder, workers=config.workers, until="count")
        shares: dict[str, list[dict[str, Any] | None]] = {}
        ranking: dict[str, dict[str, float]] = {}
        for order in ORDERS:
            vocabulary, ranking[order] = _ranked(order, recipe, folder, config.workers)
            columns = Manifest.read(folder / "columns")
            samples = encode(EncodeConfig(), columns, vocabulary, folder / "samples", workers=config.workers)
            shares[order] = _shares(order, vocabulary, samples, budgets, width, config.workers)
            num_rows = vocabulary.totals["num_rows"]
            for part in ("samples", "vocabulary"):
                shutil.rmtree(folder / part)
    return {
        "data": config.data.name if config.data else {"generated": config.samples, "seed": config.seed},
        "num_train_samples": counts.totals["num_train_samples"],
        "num_rows": num_rows,
        "row_bytes": width,
        "budgets": [
            {"bytes": budget, "published": PUBLISHED.get(budget)}
            | {order: shares[order][number] for order in ORDERS}
            for number, budget in enumerate(budgets)
        ],
        "rank": ranking,
        "machine": describe_machine(),
        "commit": commit(),
    }


def _generated(config: BenchOrdersConfig, path: Path) -> Path:
    wanted = GenerateConfig(profile="criteo-kaggle", samples=config.samples, seed=config.seed)
    generate(wanted, path, workers=config.workers)
    return path


def _ranked(
    order: str, recipe: PreprocessConfig, folder: Path, workers: int
) -> tuple[Manifest, dict[str, float]]:
    """The vocabulary in an order, made twice: the second time nothing is compiled."""
    sampled = order not in ("frequency", "peel")
    rank_by: Any = "sampled" if sampled else order
    config = replace(recipe.rank, rank_by=rank_by, with_replacement=order == "fae-code")
    counts, columns = Manifest.read(folder / "counts"), Manifest.read(folder / "columns")
    for _ in range(2):
        shutil.rmtree(folder / "vocabulary", ignore_errors=True)
        wall, cpu = time.perf_counter(), time.process_time()
        made = rank(config, counts, folder / "vocabulary", columns=columns, workers=workers)
        seconds = {"wall_seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
    return made, seconds


def _shares(
    order: str, vocabulary: Manifest, samples: Manifest, budgets: list[int], width: int, workers: int
) -> list[dict[str, Any] | None]:
    """What each budget makes hot; None where it is refused."""
    widths, tables = [width] * len(vocabulary.totals["tables"]), samples.totals["tables"]
    choose: Callable[[int], tuple[list[int], dict[str, Any]]]
    if order.startswith("fae"):
        choose = lambda budget: _chosen_by_fae(order, vocabulary, widths, budget)  # noqa: E731
    else:
        by_place = HotOrder(vocabulary, widths)
        choose = lambda budget: (by_place.num_hot(budget)[0], {})  # noqa: E731
    found: list[dict[str, Any] | None] = []
    num_train = max(1, vocabulary.totals["num_train_samples"])
    for budget in budgets:
        try:
            num_hot, facts = choose(budget)
        except ConfigError:
            found.append(None)
            continue
        levels = levels_of_tables(np.array([num_hot]), tables)
        (curve,) = hot_curves(samples, [levels], 1, num_train, workers=workers)
        shares = {
            "hot_sample_share": int(curve.samples[0]) / num_train,
            "hot_lookup_share": int(curve.lookups[0]) / max(1, curve.num_lookups),
            "hot_bytes": width * sum(num_hot),
        }
        found.append(shares | facts)
    return found


def _chosen_by_fae(
    mode: str, vocabulary: Manifest, widths: list[int], budget: int
) -> tuple[list[int], dict[str, Any]]:
    calibrated = calibrate(mode, vocabulary, widths, budget)
    kept = ("estimated_bytes", "is_covered", "num_covered_tables", "num_large_tables")
    return calibrated.num_hot, {key: calibrated.facts[key] for key in kept if key in calibrated.facts}


def show_orders(result: dict[str, Any], console: Console) -> None:
    """Fully hot samples, a row for each budget; what rank took."""
    of = f"{result['num_train_samples']:,} training samples, {result['row_bytes']} bytes a row"
    table = Table(
        title=f"Fully hot of {of}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("hot bytes", *ORDERS, "FAE, published", "cold look-ups of peel / frequency"):
        table.add_column(name, justify="right")
    for budget in result["budgets"]:
        shares = [f"{budget[name]['hot_sample_share']:.1%}" if budget[name] else "-" for name in ORDERS]
        cold = {name: 1 - budget[name]["hot_lookup_share"] for name in ("frequency", "peel")}
        ratio = f"{cold['peel'] / cold['frequency']:.3f}" if cold["frequency"] > 0 else "-"
        published = f"{budget['published']:.0%}" if budget["published"] else ""
        table.add_row(format_byte_size(budget["bytes"]), *shares, published, ratio)
    console.print(table)
    for name, seconds in result["rank"].items():
        console.print(
            f"rank for {name}: {seconds['wall_seconds']:.1f} s, {seconds['cpu_seconds']:.1f} s of CPU"
        )


CONFIG, measure, show = BenchOrdersConfig, bench_orders, show_orders
