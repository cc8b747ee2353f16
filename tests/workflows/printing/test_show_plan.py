"""The table of a dry run: work to do has numbers, what is finished has none."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.dry_run import FINISHED, MADE, REFUSED, RunPlan, plan_run
from hotset.pipeline.errors import ConfigError, format_byte_size
from hotset.tests.support.logs.criteo_text import draw_samples, text_of
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.workflows.printing.show_plan import show_plan


def shown(plan: RunPlan) -> list[str]:
    # Wide enough for a folder of any length: where it wraps is a test of its own.
    console = Console(file=StringIO(), width=1000)
    show_plan(plan, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    """The plan of a run into a folder that is not there."""
    (tmp_path / "log").write_bytes(text_of(draw_samples(50, np.random.default_rng(1))))
    return plan_run([tmp_path / "log"], CONFIG, tmp_path / "dir")


def test_each_stage_to_do_has_its_bytes_and_seconds(plan: RunPlan, tmp_path: Path) -> None:
    lines = shown(plan)
    assert lines[0].split() == ["stage", "folder", "bytes", "seconds", "state"]
    for stage, line in zip(plan.stages, lines[1:7], strict=True):
        assert stage.state.state == MADE
        words = [stage.state.stage, str(stage.state.folder), *format_byte_size(stage.new_bytes).split()]
        assert line.split()[:4] == words and MADE in line
        assert f"{stage.seconds:.1f}" in line


def test_a_finished_stage_has_no_numbers_and_a_reason_stands_behind_the_state(plan: RunPlan) -> None:
    first, second, *others = plan.stages
    finished = replace(first, state=replace(first.state, state=FINISHED, why=""))
    again = replace(second, state=replace(second.state, why="its log has grown"))
    lines = shown(replace(plan, stages=[finished, again, *others]))
    assert lines[1].split() == [first.state.stage, str(first.state.folder), FINISHED]
    assert lines[2].rstrip().endswith(f"{MADE} (its log has grown)")


def test_why_a_stage_is_refused_is_left_to_the_error(plan: RunPlan) -> None:
    """The command prints the refusal as its error and hint: the table says only where it is."""
    first, *others = plan.stages
    refused = replace(first, state=replace(first.state, state=REFUSED, why="written with seed = 1"))
    lines = shown(replace(plan, stages=[refused, *others], refusal=ConfigError("written with seed = 1")))
    assert lines[1].split() == [first.state.stage, str(first.state.folder), REFUSED]


def test_sums_and_limits_stand_below(plan: RunPlan) -> None:
    plan = replace(plan, disk_needed=3 << 20, disk_free=5 << 30, memory_peak=7 << 20, memory_cap=1 << 30)
    below = "\n".join(shown(plan)[7:])
    assert "About 50 samples in " in below
    assert f"{plan.estimate.num_rows:,.0f} rows" in below
    assert f"about {sum(stage.seconds for stage in plan.stages):.1f} s on an idle machine" in below
    assert "Disk: about 3 MiB more (5 GiB free). Memory: at most about 7 MiB (limit 1 GiB)." in below
    assert below.rstrip().endswith("Nothing was written. These are estimates from a few MiB of the log.")


@pytest.mark.parametrize("columns", [60, 80])
def test_long_folders_wrap_and_no_number_is_cut(plan: RunPlan, columns: int) -> None:
    first = plan.stages[0]
    long = replace(first, state=replace(first.state, folder=Path("/a/rather/long/" * 9), why="a reason " * 9))
    console = Console(file=StringIO(), width=columns)
    show_plan(replace(plan, stages=[long]), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert format_byte_size(first.new_bytes) in text and f"{first.seconds:.1f}" in text
    assert "\u2026" not in text and max(map(len, text.splitlines())) <= columns
