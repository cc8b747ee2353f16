"""``hotset bench predict``: predictions of a log beside training, and the dataset beside training's reader.

All take turns in one process on one generated log. `predict` parses and encodes lines, training reads shards;
both pass the same model. The dataset makes tensors by feature of the batches that training reads as they are
stored. CPU seconds of all threads stand beside the wall clock, because other programs disturb them least.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ....pipeline.errors import require_at_least
from ....pipeline.generate.generate_log import GenerateConfig, generate
from ....pipeline.stages.preprocess import preprocess
from ....stats.batches.epoch_order import epoch_order
from ....train.config import TrainConfig
from ....train.data.shard_dataset import ShardDataset
from ....train.data.shards import Shards
from ....train.options.predict_config import PredictConfig
from ....train.run import train
from ....train.scoring.predict_log import RunPredictor, predict_file
from ....train.trainer import run_steps
from ....train.trainer_building.build_trainer import build_trainer
from ...console import say
from ...machine_facts import describe_machine
from ...recipes import criteo_kaggle
from ..measuring.rounds import median_ratio, take_turns

RATIOS = {"predict": "train", "dataset": "reader"}
"""Each contestant and what its speed is compared with."""


@dataclass(frozen=True, kw_only=True)
class BenchPredictConfig:
    """Settings of the benchmark of predictions."""

    samples: int = 200_000
    """Samples of the generated log, all of the training part."""

    batch_size: int = 2048
    """Samples per batch."""

    threads: int = 2
    """Number of threads of training and predictions."""

    rounds: int = 5
    """Rounds in which each contestant runs once; ratios are medians over rounds."""

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size", "threads", "rounds"):
            require_at_least(name, getattr(self, name), 1)


def bench_predict(config: BenchPredictConfig) -> dict[str, Any]:
    """Time one pass over the log of each contestant, in turns.

    Returns:
        Seconds and CPU seconds of each by round, the median of its samples per second, the median ratio over
        rounds of the speeds of each pair of `RATIOS`, and the machine.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "log.tsv"
        data = folder / "data"
        run = folder / "run"
        generate(GenerateConfig(samples=config.samples), log)
        recipe = criteo_kaggle()
        # All samples are trained on, so that every contestant passes the same ones.
        recipe = replace(recipe, count=replace(recipe.count, eval_fraction=0.0))
        recipe = replace(recipe, pack=replace(recipe.pack, batch_size=config.batch_size))
        preprocess([log], recipe, data)
        training = TrainConfig(placement="all-fast", threads=config.threads)
        train(data, training, run)
        shards = Shards.open(data)
        predictor = RunPredictor(run, PredictConfig(threads=config.threads))
        dataset = ShardDataset(data)

        # A trainer trains once, so each turn builds one of its own before its clock starts.
        def train_epoch() -> Callable[[], object]:
            trainer = build_trainer(shards, training)
            return lambda: run_steps(trainer, lambda *_: None)

        def predict() -> None:
            predict_file(predictor, log, folder / "scores.parquet", overwrite=True)

        def read_epoch() -> None:
            for number in epoch_order(shards.is_hot_only, 0, 0, spread=shards.is_grouped).tolist():
                shards.training_batch(number)

        def iterate() -> None:
            for _ in dataset:
                pass

        # What is built before the clock starts, and what is timed.
        contestants: dict[str, Callable[[], Callable[[], object]]] = {
            "train": train_epoch,
            "predict": lambda: predict,
            "reader": lambda: read_epoch,
            "dataset": lambda: iterate,
        }
        rounds = take_turns(
            {name: _timed(prepare) for name, prepare in contestants.items()},
            config.rounds,
            lambda name, done: say(f"{name}: {done} of {config.rounds * len(contestants)} turns"),
        )
    results: dict[str, Any] = {}
    for name, times in rounds.items():
        seconds = [wall for wall, _ in times]
        results[name] = {
            "seconds": seconds,
            "cpu_seconds": [cpu for _, cpu in times],
            "samples_per_second": config.samples / statistics.median(seconds),
        }
    ratios = {
        f"{name} / {other}": {
            clock: median_ratio(results[other][clock], results[name][clock])
            for clock in ("seconds", "cpu_seconds")
        }
        for name, other in RATIOS.items()
    }
    return asdict(config) | {"results": results, "ratios": ratios, "machine": describe_machine()}


def _timed(prepare: Callable[[], Callable[[], object]]) -> Callable[[], tuple[float, float]]:
    """Return a call that prepares a pass, makes it, and returns its seconds and CPU seconds."""

    def turn() -> tuple[float, float]:
        work = prepare()
        wall = time.perf_counter()
        cpu = time.process_time()
        work()
        return time.perf_counter() - wall, time.process_time() - cpu

    return turn


def show_predict(result: dict[str, Any], console: Console) -> None:
    """Print the speed of each contestant, and the ratios by the clock and by CPU seconds."""
    table = Table(box=None, pad_edge=False)
    for name in ("one pass", "samples/s", "CPU us/sample"):
        table.add_column(name, justify="left" if name == "one pass" else "right")
    for name, found in result["results"].items():
        cpu = statistics.median(found["cpu_seconds"]) / result["samples"] * 1e6
        table.add_row(name, f"{found['samples_per_second']:,.0f}", f"{cpu:.2f}")
    console.print(table)
    for name, ratio in result["ratios"].items():
        console.print(
            f"{name}: {ratio['seconds']:.2f}x by the clock, {ratio['cpu_seconds']:.2f}x by CPU seconds"
        )


CONFIG = BenchPredictConfig
measure = bench_predict
show = show_predict
