"""What training reaches on a small real sample, over seeds and placements.

Quality is judged by the difference from the all-fast run at equal seeds; the mean over seeds says
whether the recipe is any good.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError
from ...pipeline.stages.preprocess import preprocess
from ...train.config import Placement
from ...train.run import train
from ..recipes import small_real_sample, small_real_sample_training
from .bench_harness import commit, describe_machine


@dataclass(frozen=True, kw_only=True)
class BenchQualityConfig:
    """Which log, and how often."""

    data: Path
    """A small raw Criteo log."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the models and the order of batches."""

    placements: tuple[Placement, ...] = ("all-fast", "fae")
    """To train with each seed."""

    order: Literal["grouped", "original"] = "grouped"
    """Of the shards: hot-only batches and mixed ones, or samples shuffled all together."""

    def __post_init__(self) -> None:
        if not self.seeds or not self.placements:
            raise ConfigError("name at least one seed and one placement")


def bench_quality(config: BenchQualityConfig) -> dict[str, Any]:
    """Preprocess the log once by the recipe for small samples and train every placement with every seed.

    Returns:
        ``auc`` and ``log_loss`` by placement, one a seed; their means; the recipe and the machine.
    """
    runs: dict[str, list[dict[str, Any]]] = {placement: [] for placement in config.placements}
    recipe, training = small_real_sample(), small_real_sample_training()
    recipe = replace(recipe, pack=replace(recipe.pack, order=config.order))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        shards = preprocess([config.data], recipe, data)
        for seed in config.seeds:
            for placement in config.placements:
                run = replace(training, placement=placement, seed=seed)
                runs[placement].append(train(data, run, Path(folder) / f"{placement}-{seed}").to_dict())
    result: dict[str, Any] = {
        "data": config.data.name,
        "samples": shards.totals["samples"],
        "seeds": list(config.seeds),
    }
    for score in ("auc", "log_loss"):
        result[score] = {name: [run[score] for run in runs[name]] for name in config.placements}
        result[f"mean_{score}"] = {name: fmean(result[score][name]) for name in config.placements}
    settings = {"preprocess": asdict(recipe), "train": asdict(training)}
    return result | settings | {"machine": describe_machine(), "commit": commit()}


def show_quality(result: dict[str, Any], console: Console) -> None:
    """A table of AUC, one row a seed."""
    table = Table(box=None, pad_edge=False)
    table.add_column("AUC, seed")
    for placement in result["auc"]:
        table.add_column(placement, justify="right")
    for row, seed in enumerate(result["seeds"]):
        table.add_row(str(seed), *(f"{scores[row]:.4f}" for scores in result["auc"].values()))
    table.add_row("mean", *(f"{mean:.4f}" for mean in result["mean_auc"].values()), style="bold")
    console.print(table)


CONFIG, measure, show = BenchQualityConfig, bench_quality, show_quality
