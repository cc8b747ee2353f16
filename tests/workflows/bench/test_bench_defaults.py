"""The benchmark of defaults tries every rate it names and prints the best of each pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.workflows.bench import bench_defaults
from hotset.workflows.bench.bench_defaults import BenchDefaultsConfig, Ladder, show_defaults


def test_rates_of_rows_are_tried_at_the_best_dense_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(GenerateConfig(samples=600, scale=100), tmp_path / "log.tsv", workers=1)
    ladder = Ladder("adagrad", "adam", (0.04, 0.08), (0.001, 1e30))
    monkeypatch.setattr(bench_defaults, "LADDERS", (ladder,))
    config = BenchDefaultsConfig(
        data=tmp_path / "log.tsv", batch_sizes=(128,), default_batch_sizes=(256,), seeds=(3,)
    )
    result = bench_defaults.bench_defaults(config)
    tried = [
        (run["batch_size"], run["optimizers"], run["embedding_lr"], run["dense_lr"]) for run in result["runs"]
    ]
    assert tried == [
        (128, "defaults", None, None),
        (128, "adagrad + adam", 0.04, 0.001),
        (128, "adagrad + adam", 0.04, 1e30),
        (128, "adagrad + adam", 0.08, 0.001),
        (256, "defaults", None, None),
    ]
    diverged = result["runs"][2]
    assert diverged["auc"] is None and diverged["log_loss"] is None
    console = Console(record=True, width=80)
    show_defaults(result, console)
    lines = console.export_text().splitlines()
    assert [line.split()[:2] for line in lines[2:] if line.strip()] == [
        ["128", "defaults"],
        ["128", "adagrad"],
        ["256", "defaults"],
        ["Batches", "of"],
    ]


def test_the_distance_to_the_best_rates_is_of_one_seed() -> None:
    def run(optimizers: str, seed: int, log_loss: float, batch_size: int = 128) -> dict[str, Any]:
        settings = {"batch_size": batch_size, "optimizers": optimizers, "seed": seed}
        return settings | {"embedding_lr": 0.04, "dense_lr": 0.002, "auc": 0.7, "log_loss": log_loss}

    runs = [
        run("defaults", 3, 0.41), run("defaults", 4, 0.52), run("a + b", 4, 0.5), run("a + b", 4, 0.6),
        run("defaults", 3, 0.4, batch_size=512),
    ]  # fmt: skip
    console = Console(record=True, width=200)
    show_defaults({"data": "log", "runs": runs}, console)
    lines = [line for line in console.export_text().splitlines() if line.startswith("Batches of")]
    assert lines == [
        "Batches of 128: the defaults are +0.0200 in log loss from the best of 2 settings (a + b, rows 0.04, "
        "dense 0.002)."
    ]


def test_batch_sizes_from_128_to_16384_are_trained_by_default() -> None:
    config = BenchDefaultsConfig()
    sizes = {*config.batch_sizes, *config.default_batch_sizes}
    assert sizes == {128, 512, 2048, 8192, 16_384} and {128, 16_384} <= set(config.batch_sizes)


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="one batch size"):
        BenchDefaultsConfig(batch_sizes=(), default_batch_sizes=())
