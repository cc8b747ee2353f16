"""Measurements of a machine on cells of a few kilobytes: structure, counts, and sweeps that go on.

Nothing here depends on how long anything takes. Also the tests of `probes`, `machine_probes`,
`characterise_config` and `characterise_command`.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.pipeline.sizes import KIB
from hotset.stats.step_model.part_model import SUMMED_PARTS
from hotset.stats.step_model.step_parts import LOOP_PARTS
from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.tests.support.planning.made_up_constants import made_up_constants
from hotset.tests.support.planning.made_up_machine import CONSTANTS, made_up_machine
from hotset.train.planning.machine_file import MachineFile
from hotset.workflows.bench.ranks.rank_group import RankGroup
from hotset.workflows.characterise import characterise as module
from hotset.workflows.characterise import machine_probes
from hotset.workflows.characterise.cell_batches import WARM_UP_STEPS, num_steps_of
from hotset.workflows.characterise.cell_file import CellFile, cells_path
from hotset.workflows.characterise.cell_work import measured_step, shape_of, work_of
from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.characterise import characterise
from hotset.workflows.characterise.characterise_config import CharacteriseConfig
from hotset.workflows.characterise.fit_machine import Characterised, fit_model, work_constants
from hotset.workflows.characterise.grid import FACTORS, grid, pairs, presets, single_factors, value_of
from hotset.workflows.characterise.probes import Probe, measure_probes
from hotset.workflows.characterise.run_cell import CellRecord, run_cell
from hotset.workflows.characterise.show_machine import sentences, show_machine, summary
from hotset.workflows.cli import main


@pytest.mark.parametrize(
    "cell",
    [
        TINY,
        replace(TINY, placement="hybrid", pooling=3),
        replace(TINY, placement="hybrid-dedup"),
        replace(TINY, placement="lookahead", fast_share=1.0, batch_size=700),
        replace(TINY, placement="hybrid-uva", rows_of_table=2000, skew=0.8, batch_size=256),
    ],
)
def test_the_parts_of_a_cell_add_up_to_its_step_and_its_counts_are_those_expected(
    cell: Cell, tmp_path: Path
) -> None:
    record = run_cell(cell, 2, tmp_path)
    assert 0 < sum(record.parts.values()) <= record.step_seconds * (1 + 1e-9)
    assert set(record.parts) <= set(LOOP_PARTS) and set(record.beside) == {"load", "transfers"}
    assert all(seconds >= 0 for seconds in record.parts.values())
    assert record.num_steps == num_steps_of(cell)
    assert record.probe_seconds > 0
    work = work_of(cell, 2)
    assert work.distinct_rows == pytest.approx(record.distinct_rows, rel=0.06)
    moved = record.to_fast_rows + record.to_slow_rows
    # In place the vectors of bags are exact, those of distinct rows an expectation.
    if cell.placement == "hybrid":
        assert work.in_place_vectors == moved == 2 * cell.batch_size * cell.num_tables
    else:
        assert work.moved_rows + work.in_place_vectors == pytest.approx(moved, rel=0.06)
    assert record.expected_rows == work.distinct_rows
    assert work.initialized_rows == pytest.approx(record.initialized_rows, rel=0.06)
    assert CellRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pooling", [1, 3])
def test_what_fae_copies_and_sends_is_counted_as_expected(pooling: int, tmp_path: Path) -> None:
    cell = replace(TINY, placement="fae", fast_share=0.1, pooling=pooling, optimizer="adagrad")
    record = run_cell(cell, 2, tmp_path)
    work = work_of(cell, 2)
    # The steps of the warm-up are all of mixed batches, whose bags send a vector and receive a gradient.
    vectors = record.num_steps * work.in_place_vectors + WARM_UP_STEPS * 2 * cell.batch_size * cell.num_tables
    num_bytes = (record.link_bytes["to fast"] + record.link_bytes["to slow"]) * (24 + WARM_UP_STEPS)
    assert record.num_steps == 24 and num_bytes == pytest.approx(4 * cell.embedding_dim * vectors)
    assert work.distinct_rows == pytest.approx(record.distinct_rows, rel=0.06)
    # Nothing is read while a step runs: the loop waits for all of it.
    assert not work.is_read_ahead and record.parts["load"] > 0 and record.beside["transfers"] == 0


def test_the_shape_of_a_cell_is_that_of_the_model_it_trains() -> None:
    shape = shape_of(TINY)
    assert (shape.bottom, shape.top) == ((3, 8, 4), (4 + 6, 8, 1))


def test_one_factor_changes_at_a_time_and_spans_eight_times() -> None:
    base = Cell()
    for cell in single_factors():
        assert sum(value_of(cell, factor) != value_of(base, factor) for factor in FACTORS) <= 1
    wide = [
        factor
        for factor, values in FACTORS.items()
        if isinstance(values[0], int) and max(values) >= 8 * min(values)
    ]
    assert len(wide) >= 6


def test_the_grid_has_every_cell_once_in_a_fixed_order_and_two_halves() -> None:
    cells = grid(1 << 28)
    assert cells == grid(1 << 28)
    keys = [cell.key for cell in cells]
    assert len(keys) == len(set(keys)) > 200
    held_out = sum(cell.is_held_out for cell in cells)
    assert 0.4 < held_out / len(cells) < 0.6
    assert all(cell.bytes_of_rows <= 1 << 28 for cell in cells)
    # Pairs come from all pairs of factors in turn.
    assert len({cell.num_dense for cell in list(pairs())[:40]}) > 1


def test_presets_are_scaled_to_memory_and_say_by_how_much() -> None:
    for most in (1 << 24, 1 << 50):
        found = {cell.preset: cell for cell in presets(most)}
        assert len(found) == 8 and all(cell.bytes_of_rows <= most for cell in found.values())
        assert (found["M3"].row_scale == 1.0) == (most == 1 << 50)
    rows = found["M3"].rows_of_table
    small = next(cell for cell in presets(1 << 24) if cell.preset == "M3")
    assert small.row_scale == pytest.approx(small.rows_of_table / rows)


@pytest.mark.parametrize("change", [{"batch_size": 0}, {"skew": -1.0}, {"fast_share": 0.0}, {"top_mlp": [0]}])
def test_a_cell_that_is_none_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        Cell.from_json(TINY.to_json() | change)


def test_probes_take_turns() -> None:
    calls: list[str] = []
    probes = [Probe(name, {}, lambda name=name: calls.append(name)) for name in "ab"]  # type: ignore[misc]
    found = measure_probes(probes, lambda num_rounds: num_rounds == 3, lambda _: calls.append("|"))
    assert [each.repetitions for each in found] == [3, 3]
    rounds = "".join(calls).split("|")
    assert len(rounds) == 4 and all("a" in turn and turn.endswith("b") for turn in rounds[1:3])


def test_the_curves_of_constants_are_those_they_lie_on() -> None:
    found = work_constants(made_up_constants())
    assert found.products.flops == pytest.approx(CONSTANTS.products.flops, rel=1e-3)
    assert found.rows.seconds(100, 1e7) == pytest.approx(CONSTANTS.rows.seconds(100, 1e7), rel=1e-3)
    assert found.updates.seconds(100, 1e7) == pytest.approx(CONSTANTS.updates.seconds(100, 1e7), rel=1e-3)
    with pytest.raises(HotsetError, match="'copy row' was not measured"):
        work_constants([each for each in made_up_constants() if each.name != "copy row"])


def test_times_of_the_made_up_machine_are_predicted_from_half_of_its_cells() -> None:
    records = [made_up_record(cell) for cell in [*single_factors(), *list(pairs())[:60]]]
    model = fit_model(made_up_constants(), records)
    assert model is not None and model.error is not None
    assert model.num_fitted + model.error.num_cells == len(records)
    assert model.error.median_error < 0.02 and model.error.p90_error < 0.1
    assert model.error.num_pairs >= 100 and (model.error.pairs_in_order or 0) >= 0.98
    assert fit_model(made_up_constants(), records[:5]) is None


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes of a few kilobytes, and a grid of two tiny cells."""
    monkeypatch.setattr(machine_probes, "WORKING_BYTES", (16 * KIB, 64 * KIB))
    monkeypatch.setattr(machine_probes, "PRODUCTS", ((8, 8), (16, 16)))
    monkeypatch.setattr(machine_probes, "_COPIED_BYTES", 16 * KIB)
    monkeypatch.setattr(machine_probes, "_ROWS", 64)
    monkeypatch.setattr(module, "_MOST_ROUNDS", 1)
    monkeypatch.setattr(module, "grid", lambda most_bytes, num_ranks: [TINY, replace(TINY, batch_size=32)])


@pytest.mark.usefixtures("small_machine")
def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "machine.json"
    config = CharacteriseConfig(sweep=True, threads=1)
    run: list[Cell] = []

    def run_once(cell: Cell, threads: int, scratch: Path, group: RankGroup | None) -> CellRecord:
        if run:
            raise KeyboardInterrupt
        run.append(cell)
        return replace(made_up_record(cell), threads=threads)

    monkeypatch.setattr(module, "run_cell", run_once)
    with pytest.raises(KeyboardInterrupt):
        characterise(config, out)
    assert not out.exists()
    # The line that was being written is cut off.
    lines = cells_path(out)
    lines.write_text(lines.read_text() + '{"cell": {"batch')
    again: list[Cell] = []

    def run_rest(cell: Cell, threads: int, scratch: Path, group: RankGroup | None) -> CellRecord:
        again.append(cell)
        return replace(made_up_record(cell), threads=threads)

    monkeypatch.setattr(module, "run_cell", run_rest)
    result = characterise(config, out)
    assert [*run, *again] == [TINY, replace(TINY, batch_size=32)]
    assert [record.cell for record in result.cells] == [*run, *again]
    machine = MachineFile.read(out)
    assert machine == result.machine and machine.num_cells == 2 and machine.model is None
    names = {each.name for each in machine.constants}
    assert {"product fp32", "copy row", "update row", "copy", "call a kernel", "read a sample"} <= names
    assert all("/" not in text for text in (machine.device_name, *machine.not_measured.values()))
    assert "kernel launch" in machine.not_measured
    # Printed for people and for programs, and refused the next time.
    console = Console(file=StringIO(), width=120)
    show_machine(result, console)
    assert "2 cells measured" in " ".join(sentences(result))
    assert summary(result)["median_error"] is None
    with pytest.raises(HotsetError, match="exists"):
        characterise(config, out)
    with pytest.raises(ConfigError, match="threads 1 instead of 2"):
        characterise(CharacteriseConfig(sweep=True, threads=2), tmp_path / "machine.x")
    lines.write_text(lines.read_text().replace('"num_steps": 6', '"num_steps": "six"'))
    with pytest.raises(ConfigError, match="line 2"):
        CellFile(lines, json.loads(lines.read_text().splitlines()[0])).read()


@pytest.mark.usefixtures("small_machine")
def test_cells_run_again_while_there_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "machine.json"
    run: list[Cell] = []

    def run_quicker(cell: Cell, threads: int, scratch: Path, group: RankGroup | None) -> CellRecord:
        run.append(cell)
        return replace(made_up_record(cell), threads=threads, step_seconds=1 / len(run))

    monkeypatch.setattr(module, "run_cell", run_quicker)
    monkeypatch.setattr(module, "_CONSTANTS_SHARE", 0.0)
    monkeypatch.setattr(module, "_MOST_REPETITIONS", 3)
    said: list[str] = []
    result = characterise(CharacteriseConfig(minutes=60, threads=1), out, said.append)
    cells = [TINY, replace(TINY, batch_size=32)]
    assert run == 3 * cells and len(cells_path(out).read_text().splitlines()) == 1 + 6
    # Each counts once, with the middle one of its times.
    assert [record.cell for record in result.cells] == cells and result.machine.num_cells == 2
    assert [record.step_seconds for record in result.cells] == [1 / 3, 1 / 4]
    assert "cell 1 of 2" in said


@pytest.mark.usefixtures("small_machine")
def test_the_command_prints_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "machine.json"
    page = tmp_path / "page.html"
    command = ["characterise", "--minutes", "0.001", "--threads", "1", "--out", str(out)]
    assert main([*command, "--html", str(page), "--json"]) == 0
    assert "Published observations" in page.read_text()
    found = json.loads(capsys.readouterr().out)
    assert found["num_cells"] == MachineFile.read(out).num_cells == 0
    assert {"median_error", "p90_error", "pairs_in_order", "is_quiet", "observations"} <= found.keys()


def test_sentences_tell_the_error_and_what_disturbed_it() -> None:
    machine = replace(made_up_machine(), is_quiet=False, disturbances=("other programs took 1.00 of a core",))
    result = Characterised(machine, [])
    text = " ".join(sentences(result))
    assert "wrong by 10% (median)" in text and "97% of 300 pairs" in text and "other programs" in text
    assert summary(result)["pairs_in_order"] == 0.97


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("inf"), float("nan")])
def test_minutes_that_are_none_are_refused(minutes: float) -> None:
    with pytest.raises(ConfigError, match="minutes must be above 0"):
        CharacteriseConfig(minutes=minutes)


def test_a_step_on_another_device_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match="cuda cannot be measured part by part"):
        CharacteriseConfig(device="cuda")


def test_measured_steps_have_the_work_beside_the_loop() -> None:
    found = measured_step(made_up_record(TINY))
    assert {"beside load", "beside transfers", *SUMMED_PARTS} == set(found.parts)
    assert np.isfinite(list(found.parts.values())).all() and WARM_UP_STEPS > 0


@pytest.mark.parametrize(
    ("before", "after", "watts"), [(10.0, 16.0, 3.0), (10.0, 10.0, 0.0), (None, 1.0, None), (1.0, None, None)]
)
def test_power_is_the_energy_of_a_second(
    before: float | None, after: float | None, watts: float | None
) -> None:
    assert machine_probes.power_between(before, after, 2.0) == watts


def test_ranks_that_were_started_here_are_no_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    # user, nice, system, idle, waiting, irq, softirq, steal: all but idle and waiting are work.
    stat = Path(__file__).with_name("no such file")
    monkeypatch.setattr(machine_probes, "Path", lambda name: stat)
    assert machine_probes.other_cpu_seconds() is None
    monkeypatch.setattr(Path, "read_text", lambda self: "cpu  1000 20 300 9999 9999 40 50 60 0 0\ncpu0 1\n")
    monkeypatch.setattr(os, "sysconf", lambda name: 10)
    monkeypatch.setattr(os, "times", lambda: os.times_result((1.0, 2.0, 30.0, 40.0, 999.0)))
    assert machine_probes.other_cpu_seconds() == 147.0 - 73.0


def test_a_counter_of_energy_that_began_anew_tells_no_power() -> None:
    assert machine_probes.power_between(262_143.0, 5.0, 2.0) is None
