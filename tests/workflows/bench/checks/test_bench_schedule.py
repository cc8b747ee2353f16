"""The schedule benchmark tells bytes as the manifests have them, and times the checks it names.

Tests `call_times`, too.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench.checks import bench_schedule as module
from hotset.workflows.bench.checks.bench_schedule import (
    BenchScheduleConfig,
    bench_schedule,
    print_bench_schedule,
)
from hotset.workflows.bench.checks.call_times import CallTimes
from hotset.workflows.bench.measuring.fresh_process import Candidate, Measurement


def measure_here(candidate: Candidate, scratch: Path, *, workers: int = 0) -> Measurement:
    """Run a job in this process, without its warm-up."""
    out = scratch / candidate.name
    out.mkdir()
    return Measurement(2.0, 1.0, 0, 0, candidate.function(out, *candidate.arguments))


@pytest.mark.slow
def test_bytes_and_checks_of_a_small_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "measure_in_fresh_process", measure_here)
    monkeypatch.setattr(module, "_WARM_UP_SAMPLES", 200)
    config = BenchScheduleConfig(samples=1500, batch_size=128, fast_share=0.4, train=True, scratch=tmp_path)
    result = json.loads(json.dumps(bench_schedule(config)))
    assert list(tmp_path.iterdir()) == []
    vectors = result["training_samples"] * 26 * 16 * 4
    moved = (result["rows_to_fast"] + result["rows_to_slow"]) * 64
    assert result["bytes"]["lookahead"] == moved and result["bytes"]["hybrid"] == 2 * vectors
    assert result["hybrid_over_lookahead"] == 2 * vectors / moved
    assert set(result["schedule"]["check_cpu_seconds"]) == {"hashing", "manifest"}
    calls = result["train"]["calls"]
    num_batches = sum(result["batches"].values())
    # Every batch is checked when it is read, every mixed one against its plan, and every file is hashed.
    assert calls["ids"] == calls["values"] == num_batches
    assert calls["plans"] >= result["batches"]["mixed"] and calls["hashing"] >= 4
    spent = sum(result["train"]["check_cpu_seconds"].values())
    assert result["train"]["share_of_checks"] == spent > 0
    print_bench_schedule(result, Console(width=200))
    assert "hybrid" in capsys.readouterr().out


def test_calls_are_timed_by_name_and_put_back() -> None:
    def spin(seconds: float) -> float:
        stop = time.thread_time() + seconds
        while time.thread_time() < stop:
            pass
        return seconds

    owner: Any = SimpleNamespace(inner=spin, outer=lambda: owner.inner(0.02))
    before = owner.inner
    times = CallTimes()
    with times.timing([("inner", owner, "inner"), ("outer", owner, "outer"), ("inner", owner, "inner")]):
        assert owner.inner(0.01) == 0.01
        thread = threading.Thread(target=owner.inner, args=(0.01,))
        thread.start()
        thread.join()
        owner.outer()
    assert owner.inner is before
    # The call of inner inside outer counts for outer alone.
    assert times.calls == {"inner": 2, "outer": 1}
    assert times.seconds["inner"] >= 0.02 and times.seconds["outer"] >= 0.02


@pytest.mark.parametrize(
    "settings", [{"samples": 0}, {"fast_share": 0.0}, {"fast_share": 1.0}, {"workers": -1}]
)
def test_nonsense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BenchScheduleConfig(**settings)
