"""The kill benchmark finds killed runs identical, and reports files that look finished but are not."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.sizes import ByteSize
from hotset.pipeline.stages.preprocess import preprocess
from hotset.pipeline.stages.stage_order import FOLDERS
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.workflows.bench import bench_kills as module
from hotset.workflows.bench.bench_kills import BenchKillsConfig, bench_kills, print_bench_kills
from hotset.workflows.recipes import criteo_kaggle


@pytest.mark.slow
def test_killed_runs_end_with_the_bytes_of_an_unbroken_one(tmp_path: Path) -> None:
    result = bench_kills(BenchKillsConfig(kills=5, samples=10_000, seed=1, scratch=tmp_path))
    assert result["faults"] == [] and result["kills"] == sum(result["stages"].values()) == 5
    assert result["identical"] == result["folders"] > 0 and list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_killed_as_soon_as_its_folder_is_there_ends_so_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_at_once(seconds: float, process: subprocess.Popen[bytes]) -> int:
        """Kill a run that is too short for a moment drawn from the time it takes."""
        while not any(tmp_path.glob("*/killed")) and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        return process.wait()

    monkeypatch.setattr(module, "kill_after", kill_at_once)
    result = bench_kills(BenchKillsConfig(kills=1, samples=1_000, seed=1, scratch=tmp_path))
    assert result["faults"] == [] and result["kills"] == result["stages"]["ingest"] == 1
    assert result["identical"] == result["folders"] == 1 and list(tmp_path.iterdir()) == []
    print_bench_kills(result, Console(width=200))
    assert "folders are identical to those of an unbroken run" in capsys.readouterr().out


def test_half_a_file_that_looks_finished_is_found(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "log.tsv").write_bytes(text_of(draw_samples(50, rng)))
    preprocess([tmp_path / "log.tsv"], criteo_kaggle(), tmp_path / "dir", Resources(workers=1))
    wanted = module.tree_checksums(tmp_path / "dir")
    assert module._check_sealed(tmp_path / "dir", wanted) == []
    (tmp_path / "dir" / "counts" / "C3.arrow").write_bytes(b"half of it")
    shutil.rmtree(tmp_path / "dir" / "plan")
    assert module._check_sealed(tmp_path / "dir", wanted) == ["counts/C3.arrow looks finished and is not"]
    assert module._stage_hit(tmp_path / "dir") == "split"


def test_moments_lie_in_the_time_that_a_run_has_left() -> None:
    rng = random.Random(1)
    ends = [1.0, 3.0, 4.0, 8.0, 9.0, 12.0]
    for number, stage in enumerate(FOLDERS):
        moments = [module._draw_moment(ends, stage, rng) for _ in range(200)]
        left = 12.0 - [0.0, *ends][number]
        assert 0 <= min(moments) and left / 2 < max(moments) <= left


def test_nothing_to_kill_is_refused() -> None:
    with pytest.raises(ConfigError, match="kills must be 1 or more"):
        BenchKillsConfig(kills=0)
    with pytest.raises(ConfigError, match="engines is empty"):
        BenchKillsConfig(engines=())


def test_a_cap_that_the_most_workers_cannot_keep_is_refused_before_anything_is_killed(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    """A resumed run may draw more workers than the cap allows, and its refusal is no fault of its folder."""
    (tmp_path / "log.tsv").write_bytes(text_of(draw_samples(50, rng)))
    config = BenchKillsConfig(memory=ByteSize(1 << 20), most_workers=2)
    with pytest.raises(ConfigError, match="2 workers cannot keep within 1048576 bytes") as caught:
        module._refuse_cap(config, tmp_path, {})
    assert "--most-workers" in str(caught.value.hint)


def test_runs_draw_their_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(module, "start_command", lambda arguments, _: started.append(arguments))
    config = BenchKillsConfig(engines=("threads", "processes"))
    rng = random.Random(1)
    for _ in range(20):
        module._start(config, tmp_path, tmp_path / "out", rng)
    assert {run[run.index("--engine") + 1] for run in started} == {"threads", "processes"}
    module._start(config, tmp_path, tmp_path / "out")
    assert "--engine" not in started[-1]  # the unbroken run has the default
