"""The kill benchmark of training finds resumed runs identical, and knows what a kill hit.

Also the tests of `checkpoint_stall` and `killed_runs`.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import get_args

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.train.config import PlacementName
from hotset.workflows.bench.checks import checkpoint_stall, killed_runs
from hotset.workflows.bench.checks.bench_train_kills import (
    BenchTrainKillsConfig,
    bench_train_kills,
    print_bench_train_kills,
)
from hotset.workflows.bench.checks.checkpoint_stall import measure_stall
from hotset.workflows.bench.checks.killed_runs import KINDS, NUM_SHARES, RANKED_KINDS, StartedRun


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [False, True])
def test_killed_runs_end_with_the_bits_of_an_unbroken_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: bool
) -> None:
    config = BenchTrainKillsConfig(
        kills=2, samples=2_500, epochs=1, stall_rows=0, scratch=tmp_path, ranks=ranks
    )
    result = bench_train_kills(config)
    assert result["faults"] == [] and result["identical"] == result["folders"] > 0
    assert result["kills"] == sum(result["phases"].values()) and list(tmp_path.iterdir()) == []
    assert result["kills"] - result["phases"]["start"] >= config.kills
    print_bench_train_kills(result, Console(width=200))
    assert "ended with the bits of an unbroken one" in capsys.readouterr().out


def test_the_kinds_of_runs_are_all_that_a_checkpoint_may_resume() -> None:
    assert {kind.placement for kind in KINDS} == set(get_args(PlacementName))
    assert any("--slow-bytes" in kind.options and kind.is_continued for kind in KINDS)
    assert {kind.num_ranks for kind in KINDS} == {1, 2} and {kind.num_ranks for kind in RANKED_KINDS} == {2}
    # A table of kills has a line for each, and ranks are resumed by another number of them.
    names = [kind.name for kind in (*KINDS, *RANKED_KINDS)]
    assert "lookahead --slow-bytes 1280KiB --init-from" in names and "lookahead, 2 ranks" in names
    drawn = random.Random(0)
    assert {RANKED_KINDS[0].other_ranks(drawn) for _ in range(20)} == {1, 4}
    assert NUM_SHARES % 4 == 0 and KINDS[0].other_ranks(drawn) == 1


def test_a_rank_that_does_not_stop_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Two processes that wait for ever, as ranks that do not notice that another one is gone.
    program = tmp_path / "sleeper"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(killed_runs, "_PATIENCE", 0.05)
    monkeypatch.setattr(sys, "executable", str(program))
    run = StartedRun([], tmp_path, 2, is_killed=True)
    assert run.kill_after(0, 1) and not run.survivors_stop(1)
    assert run.wait() == [-9, -9]


def test_a_run_is_watched_until_it_has_come_so_far(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # A rank that writes its mark and goes on, until it is killed.
    program = tmp_path / "run"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/mark\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    run = StartedRun([], tmp_path)
    assert run.wait_until((tmp_path / "mark").exists) and run.kill_after(0, 0)
    # One that has ended comes no further.
    assert not run.wait_until((tmp_path / "other").exists)


def test_the_stall_of_a_checkpoint_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_stall, "_REPEATS", 2)
    found = measure_stall(52_000, tmp_path)
    assert found["rows"] == 52_000 and found["few_changed_rows"] == 520
    assert all(len(found[name]) == 2 for name in ("all_changed_ms", "few_changed_ms", "copy_ms"))
    assert found["all_written_bytes"] > 52_000 * (8 + 128)


def test_nothing_to_kill_is_refused() -> None:
    with pytest.raises(ConfigError, match="kills must be 1 or more"):
        BenchTrainKillsConfig(kills=0)
