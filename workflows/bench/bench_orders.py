"""``hotset bench orders``: fully hot samples under each budget, by the order of rows and by FAE's sampling.

Every order ranks the same counts; what is hot is counted exactly over the training part. FAE's published
points are printed beside a Criteo Kaggle log. Its rows, threshold and split of the log differ, so they tell
how far a curve is off, not which is better.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, require_at_least
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.stage_totals import CountsTotals, SamplesTotals, VocabularyTotals
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.hot_rows.fae_hot_rows import calibrate
from ...pipeline.hot_rows.hot_curve import hot_curves, levels_of_tables
from ...pipeline.hot_rows.hot_order import HotOrder
from ...pipeline.runtime.resources import Resources
from ...pipeline.sizes import GIB, MIB, format_byte_size
from ...pipeline.stages.encode import EncodeConfig, encode
from ...pipeline.stages.preprocess import PreprocessConfig, preprocess
from ...pipeline.stages.rank import rank
from ...stats.ranking.row_bytes import row_bytes
from ..machine_facts import commit, describe_machine
from ..recipes import recipe_for

BUDGETS = tuple(int(size) for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB))
PUBLISHED = {4_000_000: 0.51, 20_000_000: 0.65, 140_000_000: 0.76}
"""Fully hot samples by bytes of hot rows at dim 16: FAE on Criteo Kaggle, read off PVLDB 15(1), figure 5."""
ORDERS = ("frequency", "peel", "fae-paper", "fae-code")


@dataclass(frozen=True, kw_only=True)
class BenchOrdersConfig:
    """Settings of the benchmark of orders: the log, and the size of rows."""

    samples: int = 2_000_000
    """Samples of the generated log."""

    seed: int = 0
    """Seed of the generated log."""

    data: Path | None = None
    """A raw log to use instead of a generated one."""

    schema: str = "criteo-kaggle"
    """Schema of the log."""

    embedding_dim: int = 16
    """Floats per row; optimizer state is not counted, as in FAE."""

    workers: int = 0
    """Threads; 0 uses every core."""

    def __post_init__(self) -> None:
        require_at_least("samples", self.samples, 2)


def bench_orders(config: BenchOrdersConfig) -> dict[str, Any]:
    """Rank a log in each order and count the hot samples and lookups.

    Returns:
        ``budgets``: bytes, and per order hot_sample_share and hot_lookup_share in [0, 1], hot_bytes; None
        where the order refuses the budget; for fae-paper also estimated_bytes and is_covered. ``rank``: per
        order wall and CPU seconds of the second run in the same process.
    """
    recipe = recipe_for(config.schema)
    budgets = sorted({*BUDGETS, *PUBLISHED})
    width = row_bytes(config.embedding_dim, "sgd")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = config.data or _generated(config, folder / "log.tsv")
        counts = preprocess([log], recipe, folder, Resources(workers=config.workers), until="count")
        shares: dict[str, list[dict[str, Any] | None]] = {}
        ranking: dict[str, dict[str, float]] = {}
        # Counts are shared; the vocabulary and what depends on it are rebuilt for each order.
        for order in ORDERS:
            vocabulary, ranking[order] = _ranked(order, recipe, folder, config.workers)
            columns = Manifest.read(folder / "columns")
            samples = encode(
                EncodeConfig(), columns, vocabulary, folder / "samples", Resources(workers=config.workers)
            )
            shares[order] = _shares(order, vocabulary, samples, budgets, width, config.workers)
            num_rows = VocabularyTotals.of(vocabulary).num_rows
            for part in ("samples", "vocabulary"):
                shutil.rmtree(folder / part)
    # What was published stands beside each budget that it was published for.
    return {
        "data": config.data.name if config.data else {"generated": config.samples, "seed": config.seed},
        "num_train_samples": CountsTotals.of(counts).num_train_samples,
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
    """Return the vocabulary in an order, and the time it took the second time, when all is compiled."""
    rank_by: Literal["frequency", "peel", "sampled"]
    rank_by = "frequency" if order == "frequency" else "peel" if order == "peel" else "sampled"
    # The two modes of FAE differ in how they draw their sample.
    config = replace(recipe.rank, rank_by=rank_by, with_replacement=order == "fae-code")
    counts = Manifest.read(folder / "counts")
    columns = Manifest.read(folder / "columns")
    # Twice, because the first run may compile; the second one is timed.
    for _ in range(2):
        shutil.rmtree(folder / "vocabulary", ignore_errors=True)
        wall_start = time.perf_counter()
        cpu_start = time.process_time()
        vocabulary = rank(config, counts, folder / "vocabulary", Resources(workers=workers), columns=columns)
        seconds = {
            "wall_seconds": time.perf_counter() - wall_start,
            "cpu_seconds": time.process_time() - cpu_start,
        }
    return vocabulary, seconds


def _shares(
    order: str, vocabulary: Manifest, samples: Manifest, budgets: list[int], width: int, workers: int
) -> list[dict[str, Any] | None]:
    """Return what each budget makes hot; None where the order refuses it."""
    # Every table has rows of one width, so that budgets compare.
    tables = SamplesTotals.of(samples).tables
    widths = [width] * len(tables)
    choose: Callable[[int], tuple[list[int], dict[str, Any]]]
    if order.startswith("fae"):
        choose = partial(_chosen_by_fae, order, vocabulary, widths)
    else:
        choose = partial(_chosen_by_rank, HotOrder(vocabulary, widths))
    found: list[dict[str, Any] | None] = []
    num_train = max(1, VocabularyTotals.of(vocabulary).num_train_samples)
    for budget in budgets:
        try:
            num_hot, facts = choose(budget)
        except ConfigError:
            found.append(None)
            continue
        # Exact: every training sample is checked against the hot rows.
        levels = levels_of_tables(np.array([num_hot]), tables)
        (curve,) = hot_curves(samples, [levels], 1, num_train, Resources(workers=workers))
        shares = {
            "hot_sample_share": int(curve.samples[0]) / num_train,
            "hot_lookup_share": int(curve.lookups[0]) / max(1, curve.num_lookups),
            "hot_bytes": width * sum(num_hot),
        }
        found.append(shares | facts)
    return found


def _chosen_by_rank(order: HotOrder, budget: int) -> tuple[list[int], dict[str, Any]]:
    """Return the hot rows of each table under a budget (bytes)."""
    return order.num_hot(budget)[0], {}


def _chosen_by_fae(
    mode: str, vocabulary: Manifest, widths: list[int], budget: int
) -> tuple[list[int], dict[str, Any]]:
    """Return the hot rows of each table that FAE chooses under a budget, and facts of its estimate."""
    calibrated = calibrate(mode, vocabulary, widths, budget)
    found = calibrated.threshold
    if found is None:
        return calibrated.num_hot, {}
    kept = ("estimated_bytes", "is_covered", "num_covered_tables", "num_large_tables")
    return calibrated.num_hot, {key: getattr(found, key) for key in kept}


def show_orders(result: dict[str, Any], console: Console) -> None:
    """Print the fully hot samples, a row for each budget, and the time that ranking took."""
    log = f"{result['num_train_samples']:,} training samples, {result['row_bytes']} bytes per row"
    table = Table(
        title=f"Fully hot share of {log}",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("hot bytes", *ORDERS, "FAE, published", "cold lookups of peel / frequency"):
        table.add_column(name, justify="right")
    for budget in result["budgets"]:
        # An order without a curve at a budget has a dash.
        shares = [f"{budget[name]['hot_sample_share']:.1%}" if budget[name] else "-" for name in ORDERS]
        # Peeling pays with colder lookups for more hot samples: the last column is that price.
        cold = {name: 1 - budget[name]["hot_lookup_share"] for name in ("frequency", "peel")}
        ratio = f"{cold['peel'] / cold['frequency']:.3f}" if cold["frequency"] > 0 else "-"
        published = f"{budget['published']:.0%}" if budget["published"] else ""
        table.add_row(format_byte_size(budget["bytes"]), *shares, published, ratio)
    console.print(table)
    for name, seconds in result["rank"].items():
        console.print(
            f"rank for {name}: {seconds['wall_seconds']:.1f} s, {seconds['cpu_seconds']:.1f} s of CPU"
        )


CONFIG = BenchOrdersConfig
measure = bench_orders
show = show_orders
