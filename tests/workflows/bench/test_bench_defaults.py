"""The benchmark of defaults tries every rate it names and prints the best of each pair."""

from __future__ import annotations

from pathlib import Path

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
    ]


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="one batch size"):
        BenchDefaultsConfig(batch_sizes=(), default_batch_sizes=())
