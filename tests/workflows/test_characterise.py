"""The sweep runs every cell before any again, resumes, and its verdicts follow from what was measured.

Tests `characterise`, too.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError
from hotset.stats.curves import CONTRADICTED, SUPPORTED, UNDECIDED
from hotset.train.advice import MachineSpeeds
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.shapes import DlrmShape
from hotset.workflows import characterise as module
from hotset.workflows.characterise import (
    FACTORS,
    Cell,
    CellFile,
    CellRun,
    cells,
    elasticities,
    observations,
    placement_speeds,
    points_of,
    run_cell,
)
from hotset.workflows.cli import main

TINY = Cell(
    batch_size=16, num_dense=4, num_tables=2, rows_of_table=60, embedding_dim=4, mlp_width=8, mlp_depth=1
)
ALL = cells(1 << 40)


def runs_of(seconds: Callable[[Cell], float], spread: float = 0.01) -> list[CellRun]:
    """A run of every cell that took what a function says."""
    return [
        CellRun(cell=cell, step_seconds=each, low=each * (1 - spread / 2), high=each * (1 + spread / 2))
        for cell in ALL
        for each in [seconds(cell)]
    ]


def verdicts(runs: list[CellRun]) -> dict[str, str]:
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


def test_cells_differ_from_the_base_in_one_factor_or_in_model_and_placement() -> None:
    assert len(ALL) == len(set(ALL)) > 60 and ALL[0] == Cell()
    for factor, values in FACTORS.items():
        found = {getattr(cell, factor) for cell in ALL}
        assert found >= set(values)
    for cell in ALL:
        changed = [name for name in FACTORS if getattr(cell, name) != getattr(Cell(), name)]
        assert len(changed) <= 1 or (len(changed) == 2 and "placement" in changed)
    assert all(cell.bytes_of_rows <= 30_000_000 for cell in cells(30_000_000))
    assert 0 < len(cells(30_000_000)) < len(ALL)


def test_operations_are_those_of_the_model() -> None:
    cell = replace(TINY, mlp_depth=2)
    weights = sum(
        tensor.numel()
        for tensor in Dlrm(DlrmShape(4, 2, 4, (8, 8), (8, 8)), 0).parameters()
        if tensor.dim() == 2
    )
    assert cell.flops == 16 * 6 * (weights + 3 * 3 * 4)


@pytest.mark.parametrize("placement", FACTORS["placement"])
@pytest.mark.parametrize("pooling", [1, 3])
def test_every_placement_and_lists_are_timed(placement: str, pooling: int, tmp_path: Path) -> None:
    cell = replace(TINY, placement=placement, pooling=pooling)
    found = run_cell(cell, 1, tmp_path / "cell")
    assert found.cell == cell and 0 < found.low <= found.step_seconds <= found.high
    assert CellRun.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_points_are_of_cells_that_differ_in_one_factor() -> None:
    runs = runs_of(lambda cell: cell.batch_size**0.5 * cell.num_tables / 1000)
    points = dict(points_of(runs, "num_tables"))
    assert points == pytest.approx({each: 2048**0.5 * 1000 / each for each in FACTORS["num_tables"]})
    # A skew of zero has no logarithm.
    assert [value for value, _ in points_of(runs, "skew")] == [0.8, 1.05, 1.2]
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
        "batch_size 256",
        "batch_size 8192",
        "embedding_dim 64",
        "skew 0.0",
        "pooling 8",
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


def test_little_is_undecided() -> None:
    few = [run for run in runs_of(as_published) if run.cell in ALL[:3]]
    assert set(verdicts(few).values()) == {UNDECIDED}
    # Where steps of a run vary by half, no placement wins clearly.
    assert verdicts(runs_of(as_published, 0.5))["No placement is best for every model"] == UNDECIDED


def test_speeds_of_every_placement_are_printed() -> None:
    runs = runs_of(lambda cell: 1e-3)
    speeds = MachineSpeeds(
        device_name="a CPU",
        threads=1,
        flops=1e9,
        host_rows_per_second=1e6,
        row_bytes=64,
        link_bytes_per_second=1e9,
        loader_samples_per_second=1e6,
    )
    shown = io.StringIO()
    module.show_findings(module.Characterised(speeds, runs, 1.0), Console(file=shown, width=200))
    (base,) = (line.split() for line in shown.getvalue().splitlines() if line.startswith("base "))
    assert base[1:] == ["2,048,000"] * len(FACTORS["placement"])


@pytest.fixture
def tiny_cells(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """A sweep of three tiny cells, and quick probes."""
    dense = (replace(TINY, mlp_width=64), TINY)
    monkeypatch.setattr(module, "_DENSE_CELLS", dense)
    monkeypatch.setattr(module, "_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(module, "_LINK_BYTES", 1024)
    monkeypatch.setattr(module, "_PROBE_ROWS", 1024)
    monkeypatch.setattr(module, "_MOST_ROUNDS", 2)
    every = [*dense, replace(TINY, placement="cache")]
    monkeypatch.setattr(module, "cells", lambda most_bytes: every)
    return every


def test_a_sweep_that_was_killed_resumes(
    tiny_cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Cell] = []

    def watched(cell: Cell, threads: int, folder: Path) -> CellRun:
        if len(calls) == 4:
            raise KeyboardInterrupt
        calls.append(cell)
        return run_cell(cell, threads, folder)

    monkeypatch.setattr(module, "run_cell", watched)
    with pytest.raises(KeyboardInterrupt):
        module.characterise(tmp_path / "machine.json", 10, 1)
    assert not (tmp_path / "machine.json").exists() and calls == [*tiny_cells, tiny_cells[0]]
    monkeypatch.setattr(module, "run_cell", run_cell)
    said: list[str] = []
    result = module.characterise(tmp_path / "machine.json", 10, 1, said.append)
    assert any("has 4 runs already" in each for each in said)
    assert [run.cell for run in result.runs] == [*tiny_cells, *tiny_cells]
    found = MachineSpeeds.read(tmp_path / "machine.json")
    assert found == result.speeds and found.threads == 1


@pytest.mark.usefixtures("tiny_cells")
def test_little_time_is_enough_for_the_speeds(tmp_path: Path) -> None:
    result = module.characterise(tmp_path / "machine.json", 1e-6, 1)
    assert len(result.runs) == 3 and result.speeds.flops > 0


def test_a_file_of_cells_loses_no_more_than_its_last_line(tmp_path: Path) -> None:
    file = CellFile(tmp_path / "cells.jsonl", {"threads": 1})
    run = CellRun(cell=TINY, step_seconds=1.0, low=0.5, high=2.0)
    assert file.read() == []
    file.add(run)
    file.add(run)
    with file.path.open("a") as opened:
        opened.write('{"cell": {')
    assert file.read() == [run, run] and file.path.read_bytes().endswith(b"\n")
    with pytest.raises(ConfigError, match="other settings"):
        CellFile(file.path, {"threads": 2}).read()
    file.path.write_text('{"threads": 1}\n{"cell": {"batch_size": 0}}\n')
    with pytest.raises(ConfigError, match=r"damaged: line 2\.cell.batch_size is 0"):
        file.read()


@pytest.mark.usefixtures("tiny_cells")
def test_the_command_prints_and_writes_what_was_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["characterise", "--minutes", "0.001", "--threads", "1", "--out"]
    out = str(tmp_path / "machine.json")
    assert main([*command, out, "--json", "--html", str(tmp_path / "page.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {
        "num_cells", "num_runs", "minutes", "speeds", "observations", "elasticities", "placements", "machine",
    }  # fmt: skip
    assert found["num_cells"] == 3 and {each["verdict"] for each in found["observations"]} == {UNDECIDED}
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "Published observations" in page and "GFLOP/s" in page
    assert main([*command, str(tmp_path / "other.json")]) == 0
    assert "3 cells, 3 runs in" in capsys.readouterr().out
    # Both files are looked at before anything is measured.
    assert main([*command, out]) == 1 and "exists" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "more.json"), "--html", str(tmp_path / "page.html")]) == 1
    assert "--html" in capsys.readouterr().err
    for option, value in (("--minutes", "0"), ("--threads", "0")):
        with pytest.raises(SystemExit, match="2"):
            main(["characterise", "--out", out, option, value])
