"""The growth benchmark runs and describes every size, and refuses sizes that are no numbers."""

from __future__ import annotations

import io
import itertools
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.stage_order import FOLDERS
from hotset.workflows.bench import bench_growth
from hotset.workflows.bench.bench_growth import (
    BenchGrowthConfig,
    measure,
    measure_write_rate,
    preprocess_by_stage,
    show,
)
from hotset.workflows.bench.measuring import fresh_process as bench
from hotset.workflows.recipes import criteo_kaggle


def run_in_process(candidate: bench.Candidate, scratch: Path, *, workers: int) -> bench.Measurement:
    return bench.measure(candidate, scratch)


def test_each_size_is_described_by_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_growth, "measure_in_fresh_process", run_in_process)
    monkeypatch.setattr(bench_growth, "_RATE_BYTES", 1)
    monkeypatch.setattr(bench_growth, "_WARM_UP_SAMPLES", 50)
    touched: list[int] = []
    monkeypatch.setattr(bench, "touch_memory", touched.append)
    config = BenchGrowthConfig(
        samples="90, 300",
        workers=1,
        hot_bytes=ByteSize(64 * 1000),
        scratch=tmp_path,
        memory=ByteSize(1 << 30),
    )
    result: dict[str, Any] = json.loads(json.dumps(measure(config)))
    assert [run["num_samples"] for run in result["runs"]] == [90, 300]
    for run in result["runs"]:
        assert list(run["stages"]) == list(FOLDERS)
        assert run["written_bytes"] == sum(stage["written_bytes"] for stage in run["stages"].values())
        assert sum(run["result"]["samples"].values()) == run["num_samples"]
        assert run["polars"]["samples_per_second"] > 0
        for mode in ("user_seconds", "system_seconds"):
            assert run[mode] == pytest.approx(sum(stage[mode] for stage in run["stages"].values()))
        for stage in run["stages"].values():
            assert stage["cpu_seconds"] == stage["user_seconds"] + stage["system_seconds"]
        assert run["result"]["hot_bytes"] == 64 * 1000 and run["peak_anonymous_bytes"] > 0
    assert result["settings"]["memory_bytes"] == 1 << 30
    assert result["user_seconds_per_sample_of_largest_over_smallest"] > 0
    # Room for what each run writes, on top of the cap of hotset's.
    assert touched == [90 * 450 + (1 << 30), 90 * 450, 300 * 450 + (1 << 30), 300 * 450]
    assert list(tmp_path.iterdir()) == []
    text = io.StringIO()
    show(result, Console(file=text, width=120))
    assert "Raw log to shards within 1 GiB" in text.getvalue() and "300" in text.getvalue()


def test_polars_is_left_out_where_its_memory_would_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [{"num_samples": 10, "polars": {"peak_anonymous_bytes": 1 << 60}}]
    found = bench_growth._run_polars(before, 20, (tmp_path, tmp_path), tmp_path, 1, criteo_kaggle())
    assert found["needed_bytes"] == 1 << 61 and found["free_bytes"] > 0


@pytest.mark.parametrize("samples", ["", "0", "-1", "1e6", "10,", "many"])
def test_sizes_that_are_none_are_refused(samples: str) -> None:
    with pytest.raises(ConfigError, match="samples must be whole numbers above 0, separated by commas, got"):
        BenchGrowthConfig(samples=samples)


def test_the_file_written_for_the_rate_is_removed(tmp_path: Path) -> None:
    assert measure_write_rate(tmp_path / "rate", 1) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_stage_costs_what_the_process_spent_since_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate(GenerateConfig(samples=200), tmp_path / "log.tsv", workers=1)
    # The clock of user mode reads 0, 2, 6, 12, … seconds, that of the system half as much.
    looks = itertools.count()
    seconds = (look * (look + 1) for look in looks)
    times = (SimpleNamespace(user=float(user), system=user / 2) for user in seconds)
    monkeypatch.setattr(os, "times", lambda: next(times))
    found = preprocess_by_stage(tmp_path, tmp_path / "log.tsv", 1, criteo_kaggle(), 1 << 30)
    stages = found["stages"]
    assert list(stages) == list(FOLDERS) and found["num_samples"] == 200
    for number, stage in enumerate(stages.values(), 1):
        assert (stage["user_seconds"], stage["system_seconds"]) == (2 * number, number)
        assert stage["cpu_seconds"] == 3 * number
        assert stage["written_bytes"] > 0 and stage["num_files"] > 0
