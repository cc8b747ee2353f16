"""Fits of what was measured before, and repeated cells: nothing is measured here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.tests.support.planning.made_up_cells import TINY, made_up_record
from hotset.tests.support.planning.made_up_constants import made_up_constants
from hotset.tests.support.planning.made_up_machine import CONSTANTS, made_up_machine
from hotset.train.planning.machine_file import VERSION, MachineFile
from hotset.workflows.characterise.cell_file import CELLS_VERSION, FORMAT, CellFile, cells_path
from hotset.workflows.characterise.findings.torchrec_comparison import compare_with_torchrec
from hotset.workflows.characterise.fit_machine import (
    Characterised,
    fit_again,
    fit_model,
    product_curves,
    repeat_error,
    work_constants,
)
from hotset.workflows.characterise.grid import pairs, single_factors
from hotset.workflows.characterise.run_cell import CellRecord
from hotset.workflows.characterise.show_machine import sentences, summary
from hotset.workflows.characterise.typical_runs import typical_cells
from hotset.workflows.cli import main

CELLS = list({cell.key: cell for cell in [*single_factors(), *list(pairs())[:20]]}.values())


def write_measured(path: Path, records: list[CellRecord], **identity: Any) -> None:
    """A machine file of the made-up machine, and cells beside it."""
    machine = replace(made_up_machine(), constants=tuple(made_up_constants()), model=None, num_cells=1)
    machine.write(path)
    facts = {"format": FORMAT, "version": CELLS_VERSION, "device_name": "made up", "threads": 2}
    cells = CellFile(cells_path(path), facts | identity)
    for record in records:
        cells.add(record)


def test_products_are_fitted_by_the_type_of_their_numbers() -> None:
    fp32 = [each for each in made_up_constants() if each.name == "product fp32"]
    # Half the time of each product is that of twice the operations a second, from half the fixed cost.
    quick = [
        replace(each, name="product bf16", median=each.median / 2, low=each.low / 2, high=each.high / 2)
        for each in fp32
    ]
    found = product_curves([*quick, *made_up_constants()])
    assert sorted(found) == ["bf16", "fp32"] and product_curves([]) == {}
    for name, factor in (("fp32", 1.0), ("bf16", 2.0)):
        curve = found[name]
        assert curve.flops == pytest.approx(factor * CONSTANTS.products.flops)
        assert factor * curve.fixed_seconds == pytest.approx(CONSTANTS.products.fixed_seconds)
        assert curve.half_batch == pytest.approx(CONSTANTS.products.half_batch)
    # Predictions are of steps in float32.
    assert work_constants([*quick, *made_up_constants()]).products == found["fp32"]
    with pytest.raises(HotsetError, match="'product fp32' was not measured"):
        work_constants([each for each in made_up_constants() if each.name != "product fp32"])


def test_what_was_measured_by_an_earlier_version_is_fitted_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    records = [made_up_record(cell) for cell in CELLS]
    write_measured(old, records)
    fields = json.loads(old.read_text())
    # The times that an earlier version fitted mean something else, whatever they were.
    old.write_text(json.dumps(fields | {"version": 2, "model": {"weights": "others"}}))
    with pytest.raises(ConfigError, match=f"has version 2, want {VERSION}"):
        MachineFile.read(old)
    assert main(["characterise", "--fit", str(old), "--out", str(new), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = MachineFile.read(new)
    wanted = fit_model(made_up_constants(), records, records)
    assert wanted is not None and wanted.error is not None
    assert found.model == wanted and found.num_cells == len(records)
    assert printed["median_error"] == wanted.error.median_error < 0.05
    assert printed["products"]["fp32"]["flops"] == pytest.approx(CONSTANTS.products.flops)
    # Everything else is as it was measured.
    assert replace(found, model=None, num_cells=1, hotset="") == replace(
        MachineFile.read_measured(old), hotset=""
    )
    with pytest.raises(HotsetError, match="exists"):
        fit_again(old, new)


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"format": "another"}, "has format 'another'"),
        ({"version": 1}, "has version 1"),
        ({"threads": 3}, "has threads 3, and .* wants 2"),
        ({"device_name": "elsewhere"}, "has device_name 'elsewhere'"),
    ],
)
def test_cells_of_another_machine_are_not_fitted(
    identity: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_measured(tmp_path / "machine.json", [made_up_record(TINY)], **identity)
    with pytest.raises(ConfigError, match=message):
        fit_again(tmp_path / "machine.json", tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize("text", [None, "", "{", "[]\n", "3\n"])
def test_cells_that_are_none_are_not_fitted(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    write_measured(path, [made_up_record(TINY)])
    if text is None:
        cells_path(path).unlink()
    else:
        cells_path(path).write_text(text)
    with pytest.raises(ConfigError, match=r"machine\.cells\.jsonl"):
        fit_again(path, tmp_path / "new.json")


def test_a_machine_file_that_is_none_is_not_fitted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        fit_again(tmp_path / "machine.json", tmp_path / "new.json")
    write_measured(tmp_path / "machine.json", [])
    fields = json.loads((tmp_path / "machine.json").read_text())
    (tmp_path / "machine.json").write_text(json.dumps(fields | {"version": 1}))
    with pytest.raises(ConfigError, match="has version 1"):
        fit_again(tmp_path / "machine.json", tmp_path / "new.json")


@pytest.mark.parametrize("option", [["--minutes", "3"], ["--sweep"], ["--ranks", "2"], ["--threads", "1"]])
def test_a_fit_takes_no_options_of_a_measurement(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["characterise", "--fit", str(tmp_path / "old.json"), "--out", str(tmp_path / "new.json")]
    assert main([*command, *option]) == 1
    assert "--fit measures nothing" in capsys.readouterr().err


@pytest.mark.parametrize("follows", [True, False])
def test_times_follow_the_speed_of_the_machine_only_where_that_explains_them(follows: bool) -> None:
    rng = np.random.default_rng(0)
    runs = []
    for cell in CELLS:
        slowness = float(rng.lognormal(0, 0.3))
        record = made_up_record(cell).scaled(slowness if follows else 1.0)
        runs.append(replace(record, probe_seconds=1e-3 * slowness))
    model = fit_model(made_up_constants(), runs)
    assert model is not None and model.error is not None
    if not follows:
        assert model.error.median_error < 0.02 and model.steady_error is None
        return
    # The times as they were measured have the changes of speed in them, which nobody can predict.
    assert model.steady_error is not None and model.steady_error.median_error < 0.02
    assert model.error.median_error > 0.1 and model.steady_error.num_cells == model.error.num_cells
    told = " ".join(sentences(Characterised(replace(made_up_machine(), model=model), runs)))
    assert "Without the changes in speed of the machine itself" in told
    assert summary(Characterised(replace(made_up_machine(), model=model), runs))["steady_median_error"] < 0.02


def test_what_changes_from_run_to_run_is_told_of_cells_that_nothing_was_fitted_to() -> None:
    cells = [cell for cell in CELLS if cell.is_held_out][:20]
    runs = [
        made_up_record(cell).scaled(factor)
        for factor in (1.0, 1.3, 1.2, 0.5)
        for cell in (*cells, *(each for each in CELLS if not each.is_held_out))
    ]
    found = repeat_error(runs)
    # The middle one of the first three is what a model may know; the last one is what it then meets.
    assert found is not None and found.num_cells == 20
    assert found.median_error == pytest.approx(1.2 / 0.5 - 1) == pytest.approx(found.p90_error)
    assert found.pairs_in_order == 1.0
    assert repeat_error(runs[: len(runs) // 4]) is None and repeat_error([]) is None
    # Eleven cells that ran twice are too few to tell.
    once = [made_up_record(cell) for cell in cells]
    assert repeat_error([*once, *once[:11]]) is None and repeat_error([*once, *once[:12]]) is not None
    records = [made_up_record(cell) for cell in CELLS]
    model = fit_model(made_up_constants(), records, runs)
    assert model is not None and model.repeat_error is not None and model.repeat_error.num_cells == 20
    result = Characterised(replace(made_up_machine(), model=model), records)
    assert "The last run of 20 of these cells differs" in " ".join(sentences(result))
    assert summary(result)["num_repeated"] == 20 and summary(result)["repeat_pairs_in_order"] == 1.0
    assert fit_model(made_up_constants(), records) == replace(model, repeat_error=None, first_error=None)


def test_the_error_of_first_runs_is_told_beside_that_of_undisturbed_ones() -> None:
    usual = [replace(made_up_record(cell), probe_seconds=1e-3) for cell in CELLS]
    # Every third cell ran first while the machine had half its speed, and again later; two never undisturbed.
    first = [replace(record.scaled(2.0), probe_seconds=2e-3) for record in usual[::3]]
    others = [record for number, record in enumerate(usual) if number % 3]
    runs = [*first, *others, *usual[6::3]]
    cells = typical_cells(runs)
    model = fit_model(made_up_constants(), cells, runs)
    assert model is not None and model.error is not None and model.first_error is not None
    held_out = sum(record.cell.is_held_out for record in cells)
    assert model.num_disturbed == 2 and model.error.num_cells == model.first_error.num_cells == held_out
    assert model.error.p90_error < 0.02 and model.first_error.p90_error > 0.4
    result = Characterised(replace(made_up_machine(), model=model), cells)
    told = " ".join(sentences(result))
    assert "In their first runs, disturbed or not, it is" in told
    assert "2 of the cells were disturbed whenever they ran." in told
    found = summary(result)
    assert found["num_disturbed"] == 2 and found["first_p90_error"] == model.first_error.p90_error
    # Where nothing was disturbed there is nothing more to say.
    quiet = fit_model(made_up_constants(), usual, usual)
    assert quiet is not None and quiet.first_error == quiet.error and quiet.num_disturbed == 0
    told = " ".join(sentences(Characterised(replace(made_up_machine(), model=quiet), usual)))
    assert "first runs" not in told and "whenever they ran" not in told


def test_the_comparison_with_others_tells_the_error_that_the_file_has() -> None:
    records = [
        *(made_up_record(cell) for cell in CELLS),
        *(made_up_record(replace(cell, placement="lookahead", skew=0.8)) for cell in CELLS[:30]),
    ]
    machine = replace(made_up_machine(), model=fit_model(made_up_constants(), records))
    assert machine.model is not None and machine.model.error is not None
    found = compare_with_torchrec(machine, records)["hotset"]
    assert found.median_error == machine.model.error.median_error
    assert found.p90_error == machine.model.error.p90_error
