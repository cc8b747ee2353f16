"""A sweep is measured, resumed and summed up; drawn shards have the shape that they are asked for."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.stats.curves import UNDECIDED
from hotset.train.advice import MachineSpeeds
from hotset.train.data.shards import ShardSet
from hotset.train.model.dlrm import Dlrm
from hotset.train.model.shapes import DlrmShape
from hotset.workflows import characterise as module
from hotset.workflows.characterise import (
    FACTORS,
    Cell,
    CellFile,
    CellRun,
    DrawnShards,
    cells,
    run_cell,
    zipf_ids,
)
from hotset.workflows.cli import main

TINY = Cell(
    batch_size=16, num_dense=4, num_tables=2, rows_of_table=60, embedding_dim=4, mlp_width=8, mlp_depth=1
)
ALL = cells(1 << 40)


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


def test_only_cores_that_others_must_have_taken_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "num_workers", lambda wanted: 8)
    shares = [module._taken_share(others, threads) for others, threads in ((3, 4), (5, 4), (1, 8), (99, 8))]
    assert shares == [0.0, 0.25, 0.125, 1.0] and module._taken_share(-0.01, 8) == 0.0
    # Ticks of idle cores, of waiting and of cores that this process may not use are left out.
    monkeypatch.setattr(module, "_CPU_TICKS", tmp_path / "stat")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 10})
    monkeypatch.setattr(time, "process_time", lambda: 2.0)
    lines = [
        "cpu 9 9 9 9 9 9 9 9",
        "cpu0 100 20 30 7000 800 1 2 47 9 9",
        "cpu1 5 5 5 5 5 5 5 5",
        "cpu10 200 0 0 5",
    ]
    (tmp_path / "stat").write_text("\n".join(lines))
    assert module._used_by_others() == 400 / os.sysconf("SC_CLK_TCK") - 2.0
    (tmp_path / "stat").unlink()
    assert module._used_by_others() == 0.0


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
        "num_cells", "num_runs", "minutes", "speeds", "disturbance", "observations", "papers", "elasticities",
        "placements", "machine",
    }  # fmt: skip
    wanted = UNDECIDED if found["disturbance"] is None else None
    assert found["num_cells"] == 3 and {each["verdict"] for each in found["observations"]} == {wanted}
    assert {each["source"] for each in found["observations"]} == set(found["papers"])
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and "Published observations" in page and "GFLOP/s" in page
    assert all(paper in page for paper in found["papers"].values())
    assert main([*command, str(tmp_path / "other.json")]) == 0
    assert "3 cells, 3 runs in" in capsys.readouterr().out
    # Both files are looked at before anything is measured.
    assert main([*command, out]) == 1 and "exists" in capsys.readouterr().err
    assert main([*command, str(tmp_path / "more.json"), "--html", str(tmp_path / "page.html")]) == 1
    assert "--html" in capsys.readouterr().err
    for option, value in (("--minutes", "0"), ("--threads", "0")):
        with pytest.raises(SystemExit, match="2"):
            main(["characterise", "--out", out, option, value])


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.0 + 1e-10, 1.05, 1.3])
def test_ids_are_drawn_by_the_areas_under_the_density(skew: float) -> None:
    num_rows, steps = 40, 2000
    # The middle of many thin slices between k + 1 and k + 2, for each id k.
    x = 1 + (np.arange(num_rows * steps) + 0.5) / steps
    areas = (x**-skew).reshape(num_rows, steps).sum(axis=1)
    ids = zipf_ids((np.arange(1_000_000) + 0.5) / 1_000_000, num_rows, skew)
    shares = np.bincount(ids, minlength=num_rows) / ids.size
    assert shares == pytest.approx(areas / areas.sum(), rel=1e-3, abs=3e-6)


def test_hot_batches_look_up_hot_rows_alone(tmp_path: Path) -> None:
    drawn = DrawnShards(
        num_tables=3,
        rows_of_table=500,
        hot_rows_of_table=20,
        num_hot_batches=2,
        skew=0.5,
        num_dense=4,
        pooling=2,
        batch_size=16,
        num_batches=5,
        num_evaluation=7,
    )
    drawn.write(tmp_path / "shards")
    shards = ShardSet.open(tmp_path / "shards")
    assert shards.num_training_batches == 5
    for number in range(5):
        batch = shards.training_batch(number)
        assert batch.num_samples == 16 and batch.is_hot_only == shards.is_hot_only[number] == (number < 2)
