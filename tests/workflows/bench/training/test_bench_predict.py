"""Predictions and training take turns on the same samples."""

from __future__ import annotations

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench.training.bench_predict import BenchPredictConfig, bench_predict, show_predict


def test_every_contestant_passes_the_log_in_every_round() -> None:
    result = bench_predict(BenchPredictConfig(samples=600, batch_size=128, rounds=2, threads=1))
    assert list(result["results"]) == ["train", "predict", "reader", "dataset"]
    for found in result["results"].values():
        assert len(found["seconds"]) == len(found["cpu_seconds"]) == 2 and found["samples_per_second"] > 0
    assert set(result["ratios"]) == {"predict / train", "dataset / reader"}
    console = Console(record=True, width=80)
    show_predict(result, console)
    assert "by CPU seconds" in console.export_text()


def test_a_benchmark_without_rounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="rounds must be 1 or more"):
        BenchPredictConfig(rounds=0)
