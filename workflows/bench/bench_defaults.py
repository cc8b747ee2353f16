"""``hotset bench defaults``: which optimizers and learning rates train best without being chosen by a user.

102 runs by default; each takes 3 to 8 s of one core on a log of 110,000 samples, so the whole takes some 9
minutes. `--batch-sizes` with fewer sizes, or none, makes the grid smaller.

For each batch size, every pair of optimizers is tried over a ladder of learning rates: first those of the
dense layers, then, at the best of them, those of the rows. Beside them stands a run that sets nothing. The
defaults are good where its loss is near the least one for every batch size and log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ...pipeline.errors import ConfigError, HotsetError, require_at_least
from ...pipeline.folders.stage_totals import ShardsTotals
from ...pipeline.generate.generate_log import GenerateConfig, generate
from ...pipeline.runtime.resources import Resources
from ...pipeline.stages.count import CountConfig
from ...pipeline.stages.pack import PackConfig
from ...pipeline.stages.preprocess import preprocess
from ...train.config import DenseOptimizer, EmbeddingOptimizer, TrainConfig
from ...train.run import train
from ..machine_facts import commit, describe_machine
from ..recipes import criteo_kaggle

_EVAL_FRACTION = 0.2


@dataclass(frozen=True, slots=True)
class Ladder:
    """A pair of optimizers and the learning rates to try; the first of each is where the search starts."""

    embedding_optimizer: EmbeddingOptimizer
    dense_optimizer: DenseOptimizer
    embedding_lrs: tuple[float, ...]
    dense_lrs: tuple[float, ...]

    @property
    def name(self) -> str:
        """The pair as tables show it."""
        return f"{self.embedding_optimizer} + {self.dense_optimizer}"


_ADAM_LRS = (0.00025, 0.0005, 0.001, 0.002, 0.004)
LADDERS = (
    Ladder("adagrad", "adam", (0.04, 0.02, 0.08), _ADAM_LRS),
    Ladder("rowwise-adagrad", "adam", (0.04, 0.02, 0.08), _ADAM_LRS),
    Ladder("adam", "adam", (0.001, 0.002, 0.004), _ADAM_LRS),
    Ladder("adagrad", "adagrad", (0.04, 0.02, 0.08), (0.01, 0.02, 0.04)),
    Ladder("sgd", "sgd", (10.0, 20.0), (0.1, 0.2)),
)
"""The pairs that are compared."""


@dataclass(frozen=True, kw_only=True)
class BenchDefaultsConfig:
    """Settings of the benchmark of defaults: the log and the batch sizes."""

    data: Path | None = None
    """A raw Criteo log. Default: a generated one."""

    samples: int = 150_000
    """Number of samples of the generated log."""

    batch_sizes: tuple[int, ...] = (128, 2048, 16_384)
    """Batch sizes at which every learning rate is tried."""

    default_batch_sizes: tuple[int, ...] = (512, 8192)
    """Further batch sizes at which the defaults alone are trained."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the runs with the defaults; the others have the first."""

    threads: int = 1
    """Number of threads of each run."""

    def __post_init__(self) -> None:
        require_at_least("samples", self.samples, 100)
        if not self.seeds or not (self.batch_sizes or self.default_batch_sizes):
            raise ConfigError("name at least one seed and one batch size")


def bench_defaults(config: BenchDefaultsConfig) -> dict[str, Any]:
    """Train every batch size with the defaults, and with each pair of optimizers over its learning rates.

    Returns:
        ``runs``: one per training, with its settings, AUC and log loss, None where it diverged.
    """
    runs: list[dict[str, Any]] = []
    resources = Resources(workers=config.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = config.data or folder / "log.tsv"
        if config.data is None:
            generate(GenerateConfig(samples=config.samples), log, workers=config.threads)
        samples: dict[str, Any] = {}
        for batch_size in sorted({*config.batch_sizes, *config.default_batch_sizes}):
            # The shards depend on the batch size alone: each is packed once for all runs.
            recipe = replace(
                criteo_kaggle(),
                count=CountConfig(eval_fraction=_EVAL_FRACTION),
                pack=PackConfig(batch_size=batch_size),
            )
            data = folder / f"data-{batch_size}"
            shards = preprocess([log], recipe, data, resources)
            samples = ShardsTotals.of(shards).samples.to_json()
            trial = _Trial(data, batch_size, config.threads)
            # The defaults with every seed; the ladders of rates with one.
            runs += [trial.run("defaults", TrainConfig(seed=seed)) for seed in config.seeds]
            if batch_size in config.batch_sizes:
                for ladder in LADDERS:
                    runs += _climb(ladder, trial, config.seeds[0])
    # The seed and sizes are settings; a user's log is named without its folder.
    return {
        "data": config.data.name if config.data else f"generated, {config.samples:,} samples",
        "samples": samples,
        "settings": asdict(config) | {"data": None},
        "runs": runs,
        "machine": describe_machine(),
        "commit": commit(),
    }


@dataclass(frozen=True, slots=True)
class _Trial:
    """Trains on one folder of shards."""

    data: Path
    batch_size: int
    threads: int

    def run(self, name: str, config: TrainConfig) -> dict[str, Any]:
        """Train once in a folder that is removed at the end; return what was set and what was reached."""
        # Every placement ends with the same weights, and this one needs no schedule.
        config = replace(config, placement="all-fast", threads=self.threads)
        auc: float | None = None
        log_loss: float | None = None
        # Weights and checkpoints of a run are of no interest here.
        with tempfile.TemporaryDirectory() as folder:
            try:
                summary = train(self.data, config, Path(folder) / "run")
                auc = summary.auc
                log_loss = summary.log_loss
            except HotsetError:  # it diverged
                pass
        return {
            "batch_size": self.batch_size,
            "optimizers": name,
            "embedding_lr": config.embedding_lr,
            "dense_lr": config.dense_lr,
            "seed": config.seed,
            "auc": auc,
            "log_loss": log_loss,
        }


def _climb(ladder: Ladder, trial: _Trial, seed: int) -> Iterator[dict[str, Any]]:
    """Try the dense rates at the first rate of the rows, then the other rates of the rows at the best one."""

    def run(embedding_lr: float, dense_lr: float) -> dict[str, Any]:
        config = TrainConfig(
            embedding_optimizer=ladder.embedding_optimizer,
            dense_optimizer=ladder.dense_optimizer,
            embedding_lr=embedding_lr,
            dense_lr=dense_lr,
            seed=seed,
        )
        return trial.run(ladder.name, config)

    # The first rung of the rows' rates tries all dense rates; the others run at the best of those.
    first = [run(ladder.embedding_lrs[0], rate) for rate in ladder.dense_lrs]
    yield from first
    best_dense_lr = min(first, key=_loss)["dense_lr"]
    yield from (run(rate, best_dense_lr) for rate in ladder.embedding_lrs[1:])


def _loss(run: dict[str, Any]) -> float:
    return float("inf") if run["log_loss"] is None else float(run["log_loss"])


def show_defaults(result: dict[str, Any], console: Console) -> None:
    """Print the best run of each pair of optimizers by batch size, the defaults as a mean over seeds."""
    table = Table(title=result["data"], title_justify="left", box=None, pad_edge=False)
    for column in ("batch size", "optimizers", "row rate", "dense rate", "AUC", "log loss"):
        table.add_column(column, justify="left" if column == "optimizers" else "right")
    # A run that diverged has no score.
    runs = [run for run in result["runs"] if run["auc"] is not None]
    for batch_size in sorted({run["batch_size"] for run in runs}):
        of_size = [run for run in runs if run["batch_size"] == batch_size]
        for name in dict.fromkeys(run["optimizers"] for run in of_size):
            chosen = [run for run in of_size if run["optimizers"] == name]
            # Of a ladder the best rung stands for it.
            if name != "defaults":
                chosen = [min(chosen, key=_loss)]
            rates = [chosen[0][rate] for rate in ("embedding_lr", "dense_lr")]
            means = [sum(run[score] for run in chosen) / len(chosen) for score in ("auc", "log_loss")]
            table.add_row(
                f"{batch_size:,}",
                name,
                *("" if rate is None else f"{rate:g}" for rate in rates),
                *(f"{mean:.4f}" for mean in means),
            )
        table.add_section()
    console.print(table)
    for line in _behind_best(runs):
        console.print(line, soft_wrap=True)


def _behind_best(runs: list[dict[str, Any]]) -> Iterator[str]:
    """Yield, for each batch size with a grid, how far the defaults are behind its best rates."""
    for batch_size in sorted({run["batch_size"] for run in runs}):
        of_size = [run for run in runs if run["batch_size"] == batch_size]
        defaults = [run for run in of_size if run["optimizers"] == "defaults"]
        tried = [run for run in of_size if run["optimizers"] != "defaults"]
        if not defaults or not tried:
            # Without a grid at this batch size there is nothing to compare with.
            continue
        best = min(tried, key=_loss)
        # Of the same seed: the grid has one, and seeds differ by more than good rates do.
        of_seed = next((run for run in defaults if run["seed"] == best["seed"]), defaults[0])
        yield (
            f"Batches of {batch_size:,}: the defaults are {_loss(of_seed) - _loss(best):+.4f} in log loss "
            f"from the best of {len(tried)} settings ({best['optimizers']}, rows {best['embedding_lr']:g}, "
            f"dense {best['dense_lr']:g})."
        )


CONFIG = BenchDefaultsConfig
measure = bench_defaults
show = show_defaults
