"""Candidates run alone, in turn, warmed up; the report of them is plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotset.tests.support.bench_jobs import write_down
from hotset.workflows.bench.measuring.fresh_process import (
    Candidate,
    Measurement,
    measure,
    median_stages,
    memory_bytes,
    run_rounds,
    summarize,
)


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


def test_a_summary_holds_medians_and_every_round() -> None:
    rounds = [measurement(w, stages={"read": {"wall_seconds": w}}) for w in (1.0, 3.0, 2.0)]
    summary = summarize(Candidate("a", "it", hold_memory, (), ()), rounds)
    assert (summary["wall_seconds"], summary["cpu_seconds"], summary["samples_per_second"]) == (2, 4, 3)
    assert [one["wall_seconds"] for one in summary["rounds"]] == [1, 3, 2]
    assert summary["rounds"][0]["stages"] == {"read": {"wall_seconds": 1.0}}
    assert median_stages(rounds) == {"read": {"wall_seconds": 2.0}}
