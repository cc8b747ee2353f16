"""Stages keep to ``--memory`` as the system counts it, on a log several times as large as the cap."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotset.pipeline.generate.generate_log import GenerateConfig, generate
from hotset.pipeline.runtime.memory import FIXED_BYTES
from hotset.pipeline.sizes import MIB

CAP_BYTES = 232 * MIB
NUM_SAMPLES = 2_600_000
SLACK_BYTES = 80 * MIB
"""Libraries and kernels that stages load, and what allocators keep."""
WORKERS = ("--workers", "2")
MEASURED = """
import sys
from hotset.workflows.bench.measuring.fresh_process import AnonymousMemory
from hotset.workflows.cli import main

with AnonymousMemory() as memory:
    code = main(sys.argv[1:])
print(memory.peak_bytes)
sys.exit(code)
"""
"""A command, and the peak of the memory of its process that is no mapped file, read every 20 ms."""


def peak_bytes(*arguments: str) -> int:
    """Peak of the anonymous memory of a command in a process of its own."""
    ran = subprocess.run([sys.executable, "-c", MEASURED, *arguments], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout.split()[-1])


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "log.tsv"
    generate(GenerateConfig(samples=NUM_SAMPLES), path, workers=2)
    yield path
    shutil.rmtree(tmp_path)  # 3 GB that nobody reads afterwards


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells anonymous memory")
def test_no_stage_takes_more_than_its_cap_on_a_log_that_is_much_larger(log: Path) -> None:
    assert os.stat(log).st_size > 5 * CAP_BYTES // 2
    out = str(log.parent / "data")
    cap = ("--memory", f"{CAP_BYTES // MIB}MiB", *WORKERS)
    peaks = {"ingest": peak_bytes("ingest", str(log), "--out", out, *cap)}
    peaks |= {stage: peak_bytes(stage, out, *cap) for stage in ("count", "rank", "encode", "split", "pack")}
    assert {stage: peak for stage, peak in peaks.items() if peak > CAP_BYTES} == {}
    # Nor more than the room that the cap leaves, beside what the interpreter holds before.
    before = peak_bytes("--version")
    allowed = before + CAP_BYTES - FIXED_BYTES + SLACK_BYTES
    assert {stage: peak for stage, peak in peaks.items() if not before < peak <= allowed} == {}
    # The cap is what keeps the heaviest stage there.
    assert peak_bytes("pack", out, "--redo", *WORKERS) > allowed
