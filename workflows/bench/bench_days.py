"""``hotset bench days``: a model that is continued every day beside models trained from scratch.

Each day's model is scored on the day after it. Three ways to make it are compared: going on from the model of
the day before with the new day alone (``preprocess --extend --map-ids --train-last 1`` and ``train
--init-from``), a model trained from scratch on all days so far, and one from scratch on the last day.

The generated log drifts: each day a share of all categories gets new values, as advertisements end and others
begin, while what they say of a click stays as it was.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, require_at_least
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.runtime.resources import ProgressCallback, Resources, silent
from ...pipeline.stages.count import CountConfig
from ...pipeline.stages.map_ids import ID_MAP
from ...pipeline.stages.pack import PackConfig
from ...pipeline.stages.preprocess import PreprocessConfig, preprocess
from ...train.checkpoints.checkpoint_settings import CheckpointSettings
from ...train.config import TrainConfig
from ...train.options.interval import Interval
from ...train.run import train
from ...train.run_results.run_summary import TrainSummary
from ..machine_facts import commit, describe_machine
from ..recipes import criteo_kaggle
from .measuring.recorded_settings import recorded_settings

_NUM_DENSE = 13
_HEX_DIGITS = 8
_NO_CHECKPOINTS = CheckpointSettings(checkpoint_every=Interval())
WAYS = ("going on", "scratch, all days", "scratch, last day")
"""How the model of a day is made."""


@dataclass(frozen=True, kw_only=True)
class BenchDaysConfig:
    """Settings of the benchmark of days."""

    days: int = 7
    """Number of days that are trained on, one after the other; one more is scored."""

    samples: int = 200_000
    """Number of samples of a day."""

    renewed: float = 0.05
    """Share of all categories, in [0, 1], that get a new value every day."""

    batch_size: int = 2048
    """Number of samples per batch."""

    seed: int = 0
    """Seed of the log and of the runs."""

    threads: int = 1
    """Number of threads of each run."""

    scratch: Path | None = None
    """Folder for temporary files; the system's temporary folder by default."""

    def __post_init__(self) -> None:
        require_at_least("days", self.days, 2)
        require_at_least("samples", self.samples, 1)
        if not 0 <= self.renewed <= 1:
            raise ConfigError(f"renewed must be in [0, 1], got {self.renewed}")


def bench_days(config: BenchDaysConfig, progress: ProgressCallback = silent) -> dict[str, Any]:
    """Make the models of all days in each way; return plain data, ready for JSON.

    ``auc`` has a list by way: the AUC of each day's model on the day after it.
    """
    auc: dict[str, list[float | None]] = {way: [] for way in WAYS}
    samples: dict[str, list[int]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="hotset-days-", dir=config.scratch) as name:
        folder = Path(name)
        logs = [write_day(config, day, folder / f"day_{day}") for day in range(config.days + 1)]
        before: Path | None = None
        # Day by day: the folder of all days is extended, and that of the last day likewise.
        for day in range(config.days):
            data = folder / "all"
            preprocess(
                logs[: day + 2], _recipe(config), data, _resources(config), extend=day > 0, maps_ids=day > 0
            )
            runs = {"scratch, all days": train_on(config, data, folder / f"all-{day}")}
            last = folder / "last"
            recipe = _recipe(config, train_last=1)
            preprocess(logs[: day + 2], recipe, last, _resources(config), extend=day > 0, maps_ids=day > 0)
            runs["scratch, last day"] = train_on(config, last, folder / f"last-{day}")
            # The model goes on from that of the day before, whose rows are found by the map of ids.
            out = folder / f"on-{day}"
            runs["going on"] = train_on(config, last, out, before, None if before is None else last / ID_MAP)
            before = out
            for way, summary in runs.items():
                auc[way].append(summary.auc)
                samples[way].append(summary.num_training_samples)
            progress("days", day + 1, config.days)
    return {
        "benchmark": "days",
        "auc": auc,
        "trained_samples": samples,
        "settings": recorded_settings(config),
        "machine": describe_machine(),
        "commit": commit(),
    }


def write_day(config: BenchDaysConfig, day: int, path: Path) -> Path:
    """Write the log of a day, which continues those before it, and return its path."""
    # Days are parts of one generated log; only their categories are made to drift.
    generated = path.with_suffix(".generated")
    generate(
        GenerateConfig(samples=config.samples, seed=config.seed, start=day * config.samples),
        generated,
        workers=config.threads,
    )
    log = pl.read_csv(generated, has_header=False, separator="\t", infer_schema=False)
    names = log.columns
    features = [_renew(pl.col(name), config.renewed, day) for name in names[1 + _NUM_DENSE :]]
    log.with_columns(features).write_csv(path, include_header=False, separator="\t")
    generated.unlink()
    return path


def _renew(category: pl.Expr, renewed: float, day: int) -> pl.Expr:
    """Return the values that categories have on a day: each day a share of them gets new ones.

    A value has eight hexadecimal digits. A category that was renewed n times has them turned by n places,
    which is another value, but for the few whose digits repeat.
    """
    # How often each category was renewed so far, drawn by its hash for each day.
    times = pl.lit(0)
    for earlier in range(day):
        is_renewed = category.hash(seed=earlier) < int(renewed * (2**64 - 1))
        times = times + is_renewed.fill_null(value=False).cast(pl.Int32)
    place = times % _HEX_DIGITS
    return category.str.slice(place) + category.str.slice(0, place)


def _recipe(config: BenchDaysConfig, train_last: int | None = None) -> PreprocessConfig:
    return replace(
        criteo_kaggle(),
        count=CountConfig(eval_files=1),
        pack=PackConfig(batch_size=config.batch_size, seed=config.seed, train_last=train_last),
    )


def _resources(config: BenchDaysConfig) -> Resources:
    return Resources(workers=config.threads)


def train_on(
    config: BenchDaysConfig, data: Path, out: Path, init_from: Path | None = None, id_map: Path | None = None
) -> TrainSummary:
    """Train a day's model, with the defaults; every placement ends with the same weights."""
    settings = TrainConfig(placement="all-fast", seed=config.seed, threads=config.threads)
    return train(data, settings, out, init_from=init_from, id_map=id_map, checkpoints=_NO_CHECKPOINTS)


def show_days(result: dict[str, Any], console: Console) -> None:
    """Print the AUC of each day's models on the day after, and the means behind the first day."""
    table = Table(box=None, pad_edge=False)
    for column in ("trained up to", *result["auc"]):
        table.add_column(column, justify="right")
    for day in range(result["settings"]["days"]):
        found = (scores[day] for scores in result["auc"].values())
        table.add_row(f"day {day + 1}", *("-" if auc is None else f"{auc:.4f}" for auc in found))
    console.print(table, "")
    # On the first day there is nothing to go on from, so the means leave it out.
    means = {way: mean(auc for auc in scores[1:] if auc) for way, scores in result["auc"].items()}
    own, whole, last = (means[way] for way in WAYS)
    trained = [sum(result["trained_samples"][way]) for way in WAYS]
    console.print(
        f"From day 2 on, going on is {own - whole:+.4f} in AUC from a model of all days, trained on "
        f"{trained[1] / trained[0]:.1f} times the samples, and {own - last:+.4f} from one of the last day.",
        soft_wrap=True,
    )


CONFIG = BenchDaysConfig
measure = bench_days
show = show_days
