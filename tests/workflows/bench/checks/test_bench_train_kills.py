"""The kill benchmark of training finds resumed runs identical, and knows what a kill hit.

Also the tests of `checkpoint_stall`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.workflows.bench.checks.bench_train_kills import (
    BenchTrainKillsConfig,
    bench_train_kills,
    phase_of,
    print_bench_train_kills,
)
from hotset.workflows.bench.checks.checkpoint_stall import measure_stall


@pytest.mark.slow
def test_killed_runs_end_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = BenchTrainKillsConfig(kills=3, samples=5_000, epochs=1, stall_rows=0, scratch=tmp_path)
    result = bench_train_kills(config)
    assert result["faults"] == [] and result["identical"] == result["folders"] > 0
    assert result["kills"] == sum(result["phases"].values()) > 0 and list(tmp_path.iterdir()) == []
    print_bench_train_kills(result, Console(width=200))
    assert "ended with the bits of an unbroken one" in capsys.readouterr().out


def test_the_phase_of_a_killed_run_is_read_from_its_folder(tmp_path: Path) -> None:
    assert phase_of(tmp_path) == "start"
    (tmp_path / "config.json").write_text("{}")
    assert phase_of(tmp_path) == "steps"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "rows-000000003-00000.safetensors").write_bytes(b"half")
    assert phase_of(tmp_path) == "checkpoint"
    (tmp_path / ".weights.safetensors.tmp").write_bytes(b"")
    assert phase_of(tmp_path) == "end"


def test_the_stall_of_a_checkpoint_is_measured(tmp_path: Path) -> None:
    found = measure_stall(52_000, tmp_path)
    assert found["rows"] == 52_000 and found["few_changed_rows"] == 520
    assert all(len(found[name]) == 5 for name in ("all_changed_ms", "few_changed_ms", "copy_ms"))
    assert found["all_written_bytes"] > 52_000 * (8 + 128)


def test_nothing_to_kill_is_refused() -> None:
    with pytest.raises(ConfigError, match="kills must be 1 or more"):
        BenchTrainKillsConfig(kills=0)
