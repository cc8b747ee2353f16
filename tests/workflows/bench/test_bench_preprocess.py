"""The benchmark of preprocessing, against bounds of the machine; its result is plain data.

Tests `hotset_candidates` and `roofline`, too.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError, InputError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.stages.preprocess import preprocess
from hotset.pipeline.stages.stage_order import FOLDERS
from hotset.workflows.bench.bench_preprocess import (
    BenchPreprocessConfig,
    bench_preprocess,
    print_bench_preprocess,
)
from hotset.workflows.bench.measuring import fresh_process
from hotset.workflows.bench.measuring.fresh_process import (
    Candidate,
    Measurement,
    measure,
)
from hotset.workflows.bench.roofline import against_roofline, bytes_of_stages, measure_rates
from hotset.workflows.recipes import criteo_kaggle


def measure_in_this_process(candidate: Candidate, scratch: Path, *, workers: int) -> Measurement:
    return measure(candidate, scratch)


def test_preprocess_is_measured_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eight processes would import for longer than all they measure; another test starts some.
    monkeypatch.setattr(fresh_process, "measure_in_fresh_process", measure_in_this_process)
    config = BenchPreprocessConfig(samples=700, rounds=1, scratch=tmp_path)
    steps: list[tuple[str, int, int]] = []
    result = bench_preprocess(config, lambda *step: steps.append(step))
    json.dumps(result)
    for key in ("ratio_total", "ratio_parse", "samples_per_second", "peak_rss_bytes"):
        assert result[key] > 0
    assert result["data"]["num_samples"] == 700
    assert sum(result["data"]["samples"].values()) == 700
    assert [stage["stage"] for stage in result["stages"]] == list(FOLDERS)
    assert all(stage["floor_seconds"] > 0 and stage["bytes_written"] > 0 for stage in result["stages"])
    assert min(result["bytes_per_second"].values()) > 0
    assert all(job["times_bound"] > 0 for job in result["one_core"]["jobs"].values())
    assert list(result["polars_stages"]) == ["scan", "count", "split", "encode", "shuffle", "write"]
    assert steps[-1] == ("bench", 8, 8)
    # Both run as programs of their own, too.
    processes = result["processes"]
    assert processes["ratio"]["wall"] == pytest.approx(
        processes["seconds"]["polars"]["wall_seconds"] / processes["seconds"]["hotset"]["wall_seconds"]
    )
    assert not list(tmp_path.iterdir())
    printed = io.StringIO()
    print_bench_preprocess(result, Console(file=printed, width=200))
    for wanted in ("polars / hotset", "wall / bound", "As whole processes"):
        assert wanted in printed.getvalue()


def test_a_stage_is_compared_with_the_bytes_it_moves() -> None:
    stages = {"pack": {"wall_seconds": 3.0, "cpu_seconds": 5.0, "bytes_read": 600, "bytes_written": 400}}
    rates = {"memory": 1000.0, "page_cache": 100.0, "disk": 1.0}
    assert against_roofline(stages, rates) == [
        {
            "stage": "pack",
            "seconds": 3.0,
            "cpu_seconds": 5.0,
            "bytes_read": 600,
            "bytes_written": 400,
            "floor_seconds": 1.0,
            "times_floor": 3.0,
            "page_cache_floor_seconds": 4.6,
        }
    ]


def test_bytes_of_stages_are_those_of_their_files(tmp_path: Path) -> None:
    log = tmp_path / "log.tsv"
    manifests: dict[str, Manifest] = {}
    generate(GenerateConfig(profile="criteo-kaggle", samples=500), log)
    preprocess(
        [log], criteo_kaggle(), tmp_path / "dir", on_stage=lambda r: manifests.update({r.stage: r.manifest})
    )
    num_bytes = bytes_of_stages(manifests, log.stat().st_size)
    assert list(num_bytes) == list(FOLDERS) and num_bytes["ingest"]["bytes_read"] == log.stat().st_size
    for stage, folder in FOLDERS.items():
        files = [path for path in (tmp_path / "dir" / folder).iterdir() if path.suffix == ".arrow"]
        assert num_bytes[stage]["bytes_written"] == sum(path.stat().st_size for path in files)
    values = 500 * (1 + 39 * 4)
    both = num_bytes["encode"]["bytes_read"] + num_bytes["pack"]["bytes_read"]
    ids_and_tags = sum(num_bytes[stage]["bytes_written"] for stage in ("encode", "split"))
    rows = manifests["rank"].totals["num_rows"]
    assert 0 <= both - ids_and_tags - 4 * rows - values <= 500 * 39 // 8 + 2


def test_rates_are_measured_and_leave_nothing_behind(tmp_path: Path) -> None:
    rates = measure_rates(tmp_path, 2, 1000)
    assert rates["disk"] <= rates["page_cache"] and rates["memory"] > 0
    assert not list(tmp_path.iterdir())


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rounds"):
        BenchPreprocessConfig(rounds=0)
    with pytest.raises(InputError, match="cannot be read"):
        bench_preprocess(BenchPreprocessConfig(data=tmp_path / "missing.tsv"))
