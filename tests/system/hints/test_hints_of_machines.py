"""Hints of measured machines: files that are none, cells of another machine, a disk that is full."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.train.advice import MachineSpeeds
from hotset.workflows import characterise as module
from hotset.workflows.characterise import Cell, CellFile, CellRun

TINY = Cell(batch_size=16, num_dense=4, num_tables=2, rows_of_table=60, embedding_dim=4, mlp_width=8)


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tiny cells, so that measuring takes a second."""
    dense = (replace(TINY, mlp_width=64), TINY)
    monkeypatch.setattr(module, "_DENSE_CELLS", dense)
    monkeypatch.setattr(module, "_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(module, "cells", lambda most_bytes: list(dense))


@pytest.mark.usefixtures("small_machine")
@follows("train/advice.py::MachineSpeeds.read")
def test_a_machine_is_measured_where_there_is_none(shell: Shell) -> None:
    Path("other.json").write_text("{}")
    hint = shell.refused("advise", "data", "--speeds", "other.json")
    shell.obey(hint, FILE="machine.json")
    assert MachineSpeeds.read(Path("machine.json")).threads >= 1
    shell.works("advise", "data", "--speeds", "machine.json")


@pytest.mark.usefixtures("small_machine")
@follows("workflows/characterise.py::CellFile.read", "workflows/characterise.py::CellFile.read#2")
def test_cells_of_another_machine(shell: Shell) -> None:
    measure = ("characterise", "--minutes", "0.001", "--out")
    cells = Path("machine.cells.jsonl")
    cells.write_text('{"format": "hotset cells"}\n')
    assert shell.refused(*measure, "machine.json") == "give another --out, or delete the file"
    shell.works(*measure, "another.json")
    cells.write_text("{\n")
    assert shell.refused(*measure, "machine.json") == "delete it, and measure its cells again"
    cells.unlink()
    shell.works(*measure, "machine.json")


@follows("workflows/characterise.py::CellFile.add")
def test_cells_are_kept_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CellFile(tmp_path / "machine.cells.jsonl", {"threads": 1})
    runs = [
        CellRun(cell=replace(TINY, batch_size=size), step_seconds=1.0, low=1.0, high=1.0) for size in (16, 32)
    ]
    file.add(runs[0])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "open", refuse)
        hint = hint_of(lambda: file.add(runs[1]))
    assert hint == "free disk space, and run the same command: finished cells are kept"
    assert file.read() == runs[:1]
    file.add(runs[1])
    assert file.read() == runs
