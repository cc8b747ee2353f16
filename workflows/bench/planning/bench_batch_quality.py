"""``hotset bench batch-quality``: the price of a larger batch in AUC, and in which learning rate it is least.

A log is packed in batches of several sizes, and each is trained with every seed: with the learning rates
kept, scaled by the root of the batch, and linearly. AUC is told at equal samples, one epoch of each, and at
equal time, the seconds in which the fastest size is through its epoch. The batch that is fastest has a price:
what its AUC lacks to the best of all.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ....pipeline.errors import ConfigError, require_at_least
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.runtime.resources import ProgressCallback, silent
from ....pipeline.stages.preprocess import preprocess
from ....train.config import DENSE_LR, EMBEDDING_LR, DenseOptimizer, EmbeddingOptimizer, TrainConfig
from ....train.data.shards import Shards
from ....train.run import train
from ...console import plain_table, print_line, print_table, say
from ...machine_facts import commit, describe_machine
from ...recipes import recipe_for
from ..measuring.recorded_settings import recorded_settings

RULES = {"kept": 0.0, "root": 0.5, "linear": 1.0}
"""Learning rates are multiplied by this power of the batch over the base one."""
_DENSE: DenseOptimizer = "adam"


@dataclass(frozen=True, kw_only=True)
class BenchBatchQualityConfig:
    """Settings of the benchmark of batch sizes: the log, the sizes, the seeds."""

    data: Path | None = None
    """A raw Criteo log. Default: a generated one."""

    samples: int = 150_000
    """Number of samples of the generated log."""

    batch_sizes: tuple[int, ...] = (512, 2048, 8192)
    """Samples per batch that are tried."""

    base: int = 512
    """Batch size for which the learning rates are the default ones."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the runs."""

    optimizer: EmbeddingOptimizer = "adagrad"
    """Optimizer of the embedding rows; the dense layers have Adam."""

    threads: int | None = None
    """Number of threads of a run. Default: the cores this process may use."""

    def __post_init__(self) -> None:
        require_at_least("samples", self.samples, 100)
        require_at_least("base", self.base, 1)
        if not self.seeds or not self.batch_sizes or min(self.batch_sizes) < 1:
            raise ConfigError("name at least one seed and one batch size from 1 up")


def bench_batch_quality(
    config: BenchBatchQualityConfig, progress: ProgressCallback = silent
) -> dict[str, Any]:
    """Train every size by every rule with every seed; return plain data, ready for JSON.

    Returns:
        ``batches``: by size and rule the AUC of each seed at equal samples and at equal time, and the seconds
        of a step; ``fastest``: the size with the most samples per second, and its price in AUC.
    """
    with tempfile.TemporaryDirectory(prefix="hotset-batches-") as name:
        folder = Path(name)
        log = config.data or folder / "log.tsv"
        if config.data is None:
            say("generating the log")
            generate(GenerateConfig(samples=config.samples), log)
        trials = {size: _packed(log, folder, size, config) for size in config.batch_sizes}
        whole = _epochs(trials, config, progress)
        seconds = {size: statistics.median(one.step_seconds for one in whole[size]) for size in trials}
        speeds = {size: size / each for size, each in seconds.items()}
        batches = []
        for size, num_steps in steps_at_equal_time(
            {size: trial.num_steps for size, trial in trials.items()}, speeds
        ).items():
            trial = trials[size]
            for rule in RULES:
                own = [one for one in whole[size] if one.rule == rule]
                timed = own
                if num_steps < trial.num_steps:
                    timed = [trial.run(rule, seed, config, num_steps) for seed in config.seeds]
                batches.append(
                    {
                        "batch_size": size,
                        "rule": rule,
                        "step_seconds": seconds[size],
                        "auc_at_equal_samples": [one.auc for one in own],
                        "auc_at_equal_time": [one.auc for one in timed],
                        "steps_at_equal_time": num_steps,
                        "steps": trial.num_steps,
                    }
                )
    return {
        "benchmark": "batch-quality",
        "settings": recorded_settings(config),
        "batches": batches,
        "fastest": price_of(batches, speeds),
        "machine": describe_machine(),
        "commit": commit(),
    }


def steps_at_equal_time(num_steps: Mapping[int, int], speeds: Mapping[int, float]) -> dict[int, int]:
    """Return the steps that each size takes until the first one is through its epoch; one at least.

    Args:
        num_steps: of an epoch, by size.
        speeds: samples per second, by size.
    """
    seconds = {size: size / speeds[size] for size in num_steps}
    limit = min(count * seconds[size] for size, count in num_steps.items())
    # The size that sets the limit takes all of its steps, whatever rounding makes of them.
    return {
        size: min(max(int(limit / seconds[size] * (1 + 1e-12)), 1), count)
        for size, count in num_steps.items()
    }


def price_of(batches: list[dict[str, Any]], speeds: Mapping[int, float]) -> dict[str, Any]:
    """Return the size with the most samples per second, and what its AUC lacks to the best of all.

    Args:
        batches: by size and rule, as `bench_batch_quality` returns them.
        speeds: samples per second of each size.
    """
    size = max(speeds, key=lambda each: speeds[each])
    found: dict[str, Any] = {"batch_size": size}
    for at in ("auc_at_equal_samples", "auc_at_equal_time"):
        means = {(one["batch_size"], one["rule"]): mean_auc(one[at]) for one in batches}
        known = {key: auc for key, auc in means.items() if auc is not None}
        best = max(known.values(), default=None)
        own = {rule: auc for (batch, rule), auc in known.items() if batch == size}
        # Runs that diverged have no AUC, and a size of which all did has no price.
        prices = {rule: (best or 0.0) - auc for rule, auc in own.items()}
        found[at.replace("auc", "price")] = prices
        found[at.replace("auc", "rule")] = min(prices, key=lambda rule: prices[rule], default=None)
    return found


def mean_auc(scores: list[float | None]) -> float | None:
    """Return the mean over seeds; None where a run has no score."""
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known and len(known) == len(scores) else None


@dataclass(frozen=True, slots=True)
class _Run:
    rule: str
    auc: float | None
    step_seconds: float


@dataclass(frozen=True, slots=True)
class _Trial:
    """The log in batches of one size."""

    data: Path
    batch_size: int
    num_steps: int

    def run(
        self, rule: str, seed: int, config: BenchBatchQualityConfig, most_steps: int | None = None
    ) -> _Run:
        """Train one epoch, or so many steps of it."""
        factor = (self.batch_size / config.base) ** RULES[rule]
        chosen = TrainConfig(
            placement="all-fast",
            embedding_optimizer=config.optimizer,
            embedding_lr=factor * EMBEDDING_LR[config.optimizer],
            dense_optimizer=_DENSE,
            dense_lr=factor * DENSE_LR[_DENSE],
            seed=seed,
            threads=config.threads,
        )
        if most_steps is not None:
            chosen = replace(chosen, recipe=replace(chosen.recipe, max_steps=most_steps))
        with tempfile.TemporaryDirectory() as out:
            summary = train(self.data, chosen, Path(out) / "run")
        return _Run(rule, summary.auc, self.batch_size / summary.samples_per_second)


def _packed(log: Path, folder: Path, size: int, config: BenchBatchQualityConfig) -> _Trial:
    recipe = recipe_for("criteo-kaggle")
    recipe = replace(recipe, pack=replace(recipe.pack, batch_size=size))
    data = folder / f"data-{size}"
    preprocess([log], recipe, data)
    return _Trial(data, size, Shards.open(data).num_training_batches)


def _epochs(
    trials: Mapping[int, _Trial], config: BenchBatchQualityConfig, progress: ProgressCallback
) -> dict[int, list[_Run]]:
    """Train an epoch of every size by every rule, seed by seed, so that what drifts hits all alike."""
    found: dict[int, list[_Run]] = {size: [] for size in trials}
    for number, seed in enumerate(config.seeds):
        progress("bench", number, len(config.seeds))
        for size, trial in trials.items():
            found[size] += [trial.run(rule, seed, config) for rule in RULES]
    return found


def show_batch_quality(result: dict[str, Any], console: Console) -> None:
    """Print the mean AUC by size and rule, and the price of the fastest size."""
    columns = ("batch", "learning rate", "step", "AUC, equal samples", "AUC, equal time", "steps of")
    table = plain_table("AUC by batch size, mean over seeds", columns, texts=("learning rate",))
    for one in result["batches"]:
        scores = [mean_auc(one[at]) for at in ("auc_at_equal_samples", "auc_at_equal_time")]
        table.add_row(
            f"{one['batch_size']:,}",
            one["rule"],
            f"{1e3 * one['step_seconds']:.3g} ms",
            *("diverged" if score is None else f"{score:.4f}" for score in scores),
            f"{one['steps_at_equal_time']:,} / {one['steps']:,}",
        )
    print_table(console, table, num_keys=2)
    fastest = result["fastest"]
    told = []
    for at in ("equal_samples", "equal_time"):
        rule = fastest[f"rule_at_{at}"]
        if rule is not None:
            price = fastest[f"price_at_{at}"][rule]
            told.append(f"{price:.4f} of AUC at {at.replace('_', ' ')} (rate {rule})")
    print_line(console, f"The fastest batch is {fastest['batch_size']:,}: it costs {' and '.join(told)}.")


CONFIG = BenchBatchQualityConfig
measure = bench_batch_quality
show = show_batch_quality
