"""Verdicts follow from the intervals of what was measured, and pages show both."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hotset.stats.curves import CONTRADICTED, SUPPORTED, UNDECIDED
from hotset.tests.support.browser import open_page
from hotset.train.advice import MachineSpeeds
from hotset.workflows.characterise import FACTORS, Cell, CellRun, Characterised, cells
from hotset.workflows.report.findings import (
    NAMES,
    disturbance,
    elasticities,
    finding_tables,
    findings_page,
    observations,
    placement_speeds,
    points_of,
    show_findings,
)

ALL = cells(1 << 40)


SPEEDS = MachineSpeeds(
    device_name="a CPU",
    threads=1,
    flops=1e9,
    host_rows_per_second=1e6,
    row_bytes=64,
    link_bytes_per_second=1e9,
    loader_samples_per_second=1e6,
)


def cell_differs_in(cell: Cell, factor: str) -> bool:
    """Whether a cell is the base but for one factor."""
    return replace(cell, **{factor: getattr(Cell(), factor)}) == Cell()


def runs_of(seconds: Callable[[Cell], float], spread: float = 0.01) -> list[CellRun]:
    """A run of every cell that took what a function says."""
    return [
        CellRun(cell=cell, step_seconds=each, low=each * (1 - spread / 2), high=each * (1 + spread / 2))
        for cell in ALL
        for each in [seconds(cell)]
    ]


ROWS_RUNS = [run for run in runs_of(lambda cell: 1e-3) if cell_differs_in(run.cell, "rows_of_table")]


def verdicts(runs: list[CellRun]) -> dict[str, str | None]:
    return {each["text"]: each["verdict"] for each in observations(runs)}


def as_published(cell: Cell) -> float:
    """Seconds of a step that follow the observations."""
    fixed = 2e-3 + 1e-7 * cell.batch_size * (
        cell.num_dense / 64 + cell.mlp_width / 128 + cell.num_tables / 16
    )
    slow = {"cache": 1.3, "lookahead": 1.2, "fae": 1.25}.get(cell.placement, 1.0)
    # A cache is the best for small batches and little skew, vectors for the others.
    if cell.placement.startswith("hybrid"):
        slow = 1.6 if cell.batch_size < 1000 or not cell.skew else 1.1 + len(cell.placement) / 100
    return slow * (fixed + 1e-8 * cell.batch_size * cell.pooling)


def test_points_are_of_cells_that_differ_in_one_factor() -> None:
    runs = runs_of(lambda cell: cell.batch_size**0.5 * cell.num_tables / 1000)
    points = {point.value: point.speed for point in points_of(runs, "num_tables")}
    assert points == pytest.approx({each: 2048**0.5 * 1000 / each for each in FACTORS["num_tables"]})
    # A skew of zero has no logarithm.
    assert [point.value for point in points_of(runs, "skew")] == [0.8, 1.05, 1.2]
    found = elasticities(runs)
    assert "placement" not in found
    assert found["batch_size"][0].value == pytest.approx(0.5) and found["batch_size"][0].error < 1e-9
    assert found["num_tables"][0].value == pytest.approx(-1)
    # Of several runs of a cell the middle one counts.
    more = [replace(run, step_seconds=9 * run.step_seconds) for run in runs if run.cell == Cell()]
    assert points_of([*runs, *more, *more[:0], runs[0]], "num_tables") == points_of(runs, "num_tables")


def test_speeds_by_placement_are_of_models_that_have_several() -> None:
    found = placement_speeds(runs_of(lambda cell: 1e-3))
    assert list(found["base"]) == list(FACTORS["placement"]) and found["base"]["fae"] == 2048e3
    assert set(found) == {
        "base",
        "batch size 256",
        "batch size 8192",
        "embedding dim 64",
        "skew 0.0",
        "lookups per feature 8",
    }


def test_what_was_published_is_supported_where_it_holds() -> None:
    found = verdicts(runs_of(as_published))
    assert found["Speed is flat in the rows of tables until they leave a tier"] == SUPPORTED
    assert found["Lookups per feature cost linearly"] == SUPPORTED
    assert found["Speed rises with the batch, then saturates"] == SUPPORTED
    assert found["No placement is best for every model"] == SUPPORTED
    assert found["Speed depends on dense features, sparse features and MLP"] == SUPPORTED
    assert set(list(found.values())[-3:]) == {UNDECIDED}


def test_what_was_published_is_contradicted_where_it_does_not_hold() -> None:
    found = verdicts(
        runs_of(
            lambda cell: (
                cell.batch_size
                * cell.rows_of_table**0.5
                * cell.pooling**2
                * (1 if cell.placement in ("all-fast", "cache") else 2)
            )
        )
    )
    assert list(found.values())[:5] == [CONTRADICTED] * 5


@given(seed=st.integers(0, 2**32 - 1), noise=st.sampled_from([0.001, 0.02, 0.1, 0.3]))
def test_a_verdict_is_that_of_the_whole_interval(seed: int, noise: float) -> None:
    """Supported where all of the interval is flat, contradicted where none of it is."""
    rng = np.random.default_rng(seed)
    slope = rng.uniform(-0.3, 0.3)
    by_rows = {rows: 1e-3 * rows**slope * math.exp(rng.normal(0, noise)) for rows in FACTORS["rows_of_table"]}
    runs = [
        replace(run, step_seconds=seconds, low=seconds, high=seconds)
        for run in ROWS_RUNS
        for seconds in [by_rows[run.cell.rows_of_table]]
    ]
    interval, _ = elasticities(runs)["rows_of_table"]
    found = verdicts(runs)["Speed is flat in the rows of tables until they leave a tier"]
    is_supported = -0.1 <= interval.low and interval.high <= 0.1
    is_contradicted = interval.high < -0.1 or 0.1 < interval.low
    assert found == (SUPPORTED if is_supported else CONTRADICTED if is_contradicted else UNDECIDED)


def test_a_disturbed_sweep_has_no_verdict() -> None:
    quiet = runs_of(as_published)
    assert disturbance(quiet) is None
    taken = [replace(run, taken_share=0.4) for run in quiet[: len(quiet) // 2]] + quiet[len(quiet) // 2 :]
    assert set(verdicts(taken).values()) == {None}
    assert "took 20% of the cores" in str(disturbance(taken))
    # What was measured is printed all the same.
    assert [each["measured"] for each in observations(taken)] == [
        each["measured"] for each in observations(quiet)
    ]


def test_quartiles_rise() -> None:
    """The lower quartile of a speed is that of the slow steps."""
    (first, *_), *_ = [points_of(runs_of(as_published, 0.5), factor) for factor in NAMES]
    assert first.low < first.speed < first.high
    result = Characterised(SPEEDS, runs_of(as_published, 0.5), 1.0)
    for _, _, *seconds in finding_tables(result)["cells"].rows:
        low, middle, high = (float(each.replace(",", "")) for each in seconds)
        assert low < middle < high


def test_one_winner_contradicts_only_where_no_model_is_open() -> None:
    name = "No placement is best for every model"

    def seconds(cell: Cell, is_open: bool) -> float:
        # With skew 0 no placement leads by more than steps vary.
        return 1.0 if cell.placement == "cache" or (is_open and not cell.skew) else 2.0

    assert verdicts(runs_of(lambda cell: seconds(cell, False)))[name] == CONTRADICTED
    assert verdicts(runs_of(lambda cell: seconds(cell, True)))[name] == UNDECIDED


def test_little_is_undecided() -> None:
    few = [run for run in runs_of(as_published) if run.cell in ALL[:3]]
    assert set(verdicts(few).values()) == {UNDECIDED}
    # Where steps of a run vary by half, no placement wins clearly.
    assert verdicts(runs_of(as_published, 0.5))["No placement is best for every model"] == UNDECIDED


def test_speeds_of_every_placement_are_printed() -> None:
    runs = runs_of(lambda cell: 1e-3)
    shown = io.StringIO()
    show_findings(Characterised(SPEEDS, runs, 1.0), Console(file=shown, width=200))
    assert "0.064  GB/s at random places" in shown.getvalue()
    (base,) = (line.split() for line in shown.getvalue().splitlines() if line.startswith("base "))
    assert base[1:] == ["2,048,000"] * len(FACTORS["placement"])


def test_the_page_draws_every_factor() -> None:
    """Charts of their schema, on one axis of speed; what was disturbed is said at the top."""
    pytest.importorskip("altair")
    runs = [replace(run, taken_share=0.5) for run in runs_of(as_published)]
    page = findings_page(Characterised(SPEEDS, runs, 1.0))
    specs = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    assert len(specs) == len(NAMES)
    axes = [spec["layer"][1]["encoding"]["y"]["scale"] for spec in specs.values()]
    assert all(axis == axes[0] and axis["type"] == "log" for axis in axes)
    assert "No verdicts: other programs took 50% of the cores" in page


@pytest.mark.slow
def test_a_browser_draws_the_page(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(findings_page(Characterised(SPEEDS, runs_of(as_published), 1.0)))
    seen = open_page(tmp_path / "page.html", tmp_path)
    assert seen.console == [] and seen.requests == [] and f'data-drawn="{len(NAMES)}"' in seen.dom
