"""Of the runs of a cell that one counts during which the machine had its usual speed, whatever its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.workflows.characterise.run_cell import CellRecord
from hotset.workflows.characterise.typical_runs import (
    MOST_OFF,
    at_one_speed,
    how_far_off,
    is_disturbed,
    typical_cells,
    usual_probe_seconds,
)


def run_of(step_seconds: float, probe_seconds: float) -> CellRecord:
    return replace(made_up_record(TINY), step_seconds=step_seconds, probe_seconds=probe_seconds)


def test_runs_are_told_at_the_speed_of_the_middle_one() -> None:
    cells = [replace(TINY, batch_size=size) for size in (1, 2, 3, 4, 5)]
    slowness = (0.5, 1.0, 1.0, 1.5, 3.0)
    runs = [
        replace(made_up_record(cell).scaled(factor), probe_seconds=2e-3 * factor)
        for cell, factor in zip(cells, slowness, strict=True)
    ]
    usual = {1: 2e-3}
    assert usual_probe_seconds(runs) == usual and usual_probe_seconds([]) == {}
    for found, cell in zip(at_one_speed(runs, usual, 1.0), cells, strict=True):
        wanted = made_up_record(cell)
        assert found.step_seconds == pytest.approx(wanted.step_seconds)
        assert found.parts == pytest.approx(wanted.parts) and found.beside == pytest.approx(wanted.beside)
        assert found.probe_seconds == pytest.approx(2e-3)
        assert (found.cell, found.distinct_rows) == (cell, wanted.distinct_rows)
    halved = at_one_speed(runs, usual, 0.5)[-1]
    assert halved.step_seconds == pytest.approx(runs[-1].step_seconds / 3**0.5)
    # Cells that were measured without the piece of work are left as they are.
    plain = made_up_record(TINY)
    assert usual_probe_seconds([plain]) == {}
    assert at_one_speed([plain], usual, 1.0) == at_one_speed([plain], {}, 1.0) == [plain]
    assert at_one_speed(runs, usual, 0.0) == runs
    # Ranks take another time for it than the threads of one process.
    ranked = [replace(run, cell=replace(run.cell, ranks=2), probe_seconds=5e-3) for run in runs[:1]]
    assert usual_probe_seconds([*runs, *ranked]) == {1: 2e-3, 2: 5e-3}
    assert at_one_speed(ranked, {1: 2e-3}, 1.0) == at_one_speed(ranked, {2: 5e-3}, 1.0) == ranked


def test_of_repeated_cells_the_middle_one_is_taken() -> None:
    record = made_up_record(TINY)
    other = made_up_record(replace(TINY, batch_size=32))
    runs = [replace(record, step_seconds=seconds) for seconds in (5.0, 1.0, 3.0)]
    assert typical_cells([*runs, other]) == [runs[2], other]
    # Of two the quicker one: what disturbs a run makes it slower.
    assert typical_cells(runs[:2]) == [runs[1]]
    assert typical_cells([]) == []


def test_the_run_at_the_usual_speed_is_taken_whatever_its_time() -> None:
    usual = {1: 1.0}
    quick, slow = run_of(1.0, 0.8), run_of(9.0, 1.3)
    for seconds in (0.1, 5.0, 100.0):
        undisturbed = run_of(seconds, 1.05)
        for runs in ([quick, undisturbed, slow], [slow, quick, undisturbed]):
            assert typical_cells(runs, usual) == [undisturbed]
    # Of several it is the middle one; disturbed ones do not shift the middle.
    several = [run_of(seconds, 1.0) for seconds in (3.0, 2.0, 4.0)]
    assert typical_cells([*several, quick, quick, quick], usual) == [several[0]]
    # Of disturbed ones alone it is the nearest to the usual speed, slower or quicker.
    assert typical_cells([slow, quick, run_of(2.0, 0.5)], usual) == [quick]
    assert typical_cells([slow, run_of(2.0, 0.5)], usual) == [slow]


def test_a_run_is_disturbed_where_the_machine_was_off_its_usual_speed_either_way() -> None:
    usual = {1: 2.0}
    for factor, wanted in ((1.0, False), (1.07, False), (0.93, False), (1.1, True), (0.9, True)):
        assert is_disturbed(run_of(1.0, factor * 2.0), usual) is wanted
    assert how_far_off(1, 4.0, usual) == how_far_off(1, 1.0, usual) == pytest.approx(0.693, abs=1e-3)
    # Nobody knows of a run without the piece of work, or of others on as many ranks.
    assert how_far_off(1, 0.0, usual) == how_far_off(2, 9.0, usual) == 0.0 < MOST_OFF
