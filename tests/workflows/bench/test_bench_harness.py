"""Candidates run alone, in turn, warmed up; the report of them is plain data.

Also the tests of `bench_preprocess`, `hotset_candidates` and `roofline`.
"""

from __future__ import annotations

import io
import json
import platform
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError, InputError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.stages.preprocess import preprocess
from hotset.pipeline.stages.stage_order import FOLDERS
from hotset.tests.support.bench_jobs import write_down
from hotset.workflows.bench import bench_harness
from hotset.workflows.bench.bench_harness import (
    Candidate,
    Measurement,
    describe_machine,
    measure,
    median_ratio,
    median_stages,
    memory_bytes,
    run_rounds,
    summarize,
)
from hotset.workflows.bench.bench_preprocess import (
    BenchPreprocessConfig,
    bench_preprocess,
    print_bench_preprocess,
)
from hotset.workflows.bench.roofline import against_roofline, bytes_of_stages, measure_rates
from hotset.workflows.recipes import criteo_kaggle


def hold_memory(folder: Path, num_bytes: int) -> dict[str, Any]:
    return {"num_samples": len(bytes(range(256)) * (num_bytes // 256))}


def measurement(wall_seconds: float, **facts: Any) -> Measurement:
    return Measurement(wall_seconds, 2 * wall_seconds, 100, 50, {"num_samples": 6} | facts)


def test_candidates_take_turns_each_in_a_separate_process_after_a_warm_up(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    candidates = [
        Candidate(name, "", write_down, (diary, f"warm-{name}"), (diary, name)) for name in ("a", "b")
    ]
    measured = run_rounds(candidates, 2, tmp_path, workers=3)
    lines = [line.split(maxsplit=3) for line in diary.read_text().splitlines()]
    assert [name for name, *_ in lines] == ["warm-a", "a", "warm-b", "b"] * 2
    assert len({pid for _, pid, *_ in lines}) == 4
    assert {(threads, files) for _, _, threads, files in lines} == {("3", "[]")}
    assert {name: len(rounds) for name, rounds in measured.items()} == {"a": 2, "b": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["diary"]


def test_memory_is_that_of_the_process_at_its_peak(tmp_path: Path) -> None:
    before = memory_bytes("RssAnon")
    measured = measure(Candidate("", "", hold_memory, (0,), (64 << 20,)), tmp_path)
    assert measured.peak_rss_bytes >= before + (60 << 20)
    assert measured.facts == {"num_samples": 64 << 20}
    assert memory_bytes("NoSuchField") == 0


def test_a_ratio_is_taken_within_a_round_and_its_median_over_rounds() -> None:
    slow = [measurement(seconds) for seconds in (3.0, 8.0, 40.0)]
    fast = [measurement(seconds) for seconds in (1.0, 2.0, 20.0)]
    assert median_ratio(slow, fast, "wall_seconds") == 3.0


def test_a_summary_holds_medians_and_every_round() -> None:
    rounds = [measurement(w, stages={"read": {"wall_seconds": w}}) for w in (1.0, 3.0, 2.0)]
    summary = summarize(Candidate("a", "it", hold_memory, (), ()), rounds)
    assert (summary["wall_seconds"], summary["cpu_seconds"], summary["samples_per_second"]) == (2, 4, 3)
    assert [one["wall_seconds"] for one in summary["rounds"]] == [1, 3, 2]
    assert summary["rounds"][0]["stages"] == {"read": {"wall_seconds": 1.0}}
    assert median_stages(rounds) == {"read": {"wall_seconds": 2.0}}


def test_the_machine_is_described_without_its_name() -> None:
    described = json.dumps(describe_machine())
    assert json.loads(described)["libraries"]["polars"]
    assert platform.node() not in described


def measure_in_this_process(candidate: Candidate, scratch: Path, *, workers: int) -> Measurement:
    return measure(candidate, scratch)


def test_preprocess_is_measured_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Eight processes would import for longer than all they measure; another test starts some.
    monkeypatch.setattr(bench_harness, "measure_in_fresh_process", measure_in_this_process)
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
    assert list(result["polars_stages"]) == ["scan", "count", "split", "encode", "shuffle", "write"]
    assert steps[-1] == ("bench", 8, 8)
    assert not list(tmp_path.iterdir())
    printed = io.StringIO()
    print_bench_preprocess(result, Console(file=printed, width=200))
    assert "polars / hotset" in printed.getvalue() and "wall / bound" in printed.getvalue()


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
