"""Fits the times of steps to constants and cells: what of the measurements goes into predictions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ... import __version__
from ...pipeline.errors import HotsetError
from ...pipeline.formats.whole_file import refuse_target
from ...stats.codecs.codec_names import CODEC_NAMES, codec_of
from ...stats.step_model.held_out import PredictionError
from ...stats.step_model.nonnegative_fit import fit_relative
from ...stats.step_model.part_model import PartModel, fit_parts
from ...stats.step_model.rate_curves import ProductCurve, RowCurve
from ...stats.step_model.step_work import CodecSeconds, WorkConstants
from ...train.planning.curves import Curves
from ...train.planning.machine_file import Constant, HeldOutError, MachineFile, StepModel
from .cell_file import read_measured_cells
from .cell_work import measured_step
from .collective_probes import COLLECTIVES
from .run_cell import CellRecord
from .typical_runs import at_one_speed, is_disturbed, typical_cells, usual_probe_seconds

_PRODUCT = "product "
"""What the names of the constants of products begin with; the type of their numbers follows."""
_SPEED_SHARES = (0.0, 0.5, 1.0)
_LEAST_CELLS = 12
"""Cells of either half below which nothing is fitted."""


@dataclass(frozen=True, slots=True)
class Characterised:
    """What was measured."""

    machine: MachineFile
    cells: list[CellRecord]
    """None twice."""


def fit_again(measured: Path, out: Path) -> Characterised:
    """Fit times to what was measured before, and write them to ``out``; nothing is measured.

    Args:
        measured: file that `characterise` wrote, of this version or of an earlier one, its cells beside it.
        out: file for the machine.

    Raises:
        HotsetError: ``out`` exists, or ``measured`` or its cells cannot be read.
    """
    refuse_target(out, overwrite=False)
    machine = MachineFile.read_measured(measured)
    runs = read_measured_cells(measured, machine.device_name, machine.threads)
    cells = typical_cells(runs)
    model = fit_model(machine.constants, cells, runs)
    again = replace(machine, hotset=__version__, num_cells=len(cells), model=model)
    again.write(out)
    return Characterised(again, cells)


def repeat_error(runs: Sequence[CellRecord]) -> PredictionError | None:
    """Return how wrong earlier runs of held-out cells are as a prediction of the last one.

    A model that knew the usual time of each cell exactly would do as well on single runs: what changes from
    run to run nobody can predict. Returns None where too few cells ran twice.

    Args:
        runs: in the order in which they ran.
    """
    usual = usual_probe_seconds(runs)
    repeated = [own for own in _held_out_runs(runs) if len(own) > 1]
    if len(repeated) < _LEAST_CELLS:
        return None
    before = [typical_cells(own[:-1], usual)[0].step_seconds for own in repeated]
    return PredictionError.of([own[-1].step_seconds for own in repeated], before)


def _held_out_runs(runs: Sequence[CellRecord]) -> list[list[CellRecord]]:
    """Return the runs of each held-out cell, in their order."""
    by_cell: defaultdict[str, list[CellRecord]] = defaultdict(list)
    for record in runs:
        if record.cell.is_held_out:
            by_cell[record.cell.key].append(record)
    return list(by_cell.values())


def fit_model(
    constants: Sequence[Constant], cells: Sequence[CellRecord], runs: Sequence[CellRecord] = ()
) -> StepModel | None:
    """Fit the times of steps to half of the cells, and tell their error on the other half.

    The halves follow from the cells' factors, so that repetitions of a cell are on one side. Returns None
    where either half is too small.

    Args:
        constants: measured before.
        cells: none twice.
        runs: all runs of these cells in their order, for what changes from one to the next.
    """
    fitted = [record for record in cells if not record.cell.is_held_out]
    held_out = [record for record in cells if record.cell.is_held_out]
    if min(len(fitted), len(held_out)) < _LEAST_CELLS:
        return None
    usual = usual_probe_seconds(fitted)
    model, share = _fit_at_one_speed(fitted, usual, work_constants(constants))
    error = _error_of(model, held_out)
    steady = _error_of(model, at_one_speed(held_out, usual, share)) if share else None
    # Plans meet the machine as it is, so their interval is that of the first runs, disturbed or not.
    first_runs = [own[0] for own in _held_out_runs(runs)]
    first = _error_of(model, first_runs) if first_runs else None
    repeated = repeat_error(runs)
    usual_of_all = usual_probe_seconds(runs)
    return StepModel(
        curves=Curves.of(model.constants),
        weights={part: tuple(weights) for part, weights in model.weights.items()},
        contention=model.contention,
        num_fitted=len(fitted),
        ranks=tuple(sorted({record.cell.ranks for record in cells if not record.cell.is_held_out})),
        placements=tuple(sorted({record.cell.placement for record in cells if not record.cell.is_held_out})),
        error=HeldOutError.of(error),
        steady_error=HeldOutError.of(steady) if steady is not None else None,
        first_error=HeldOutError.of(first) if first is not None else None,
        repeat_error=HeldOutError.of(repeated) if repeated is not None else None,
        num_disturbed=sum(is_disturbed(record, usual_of_all) for record in cells),
    )


def _fit_at_one_speed(
    fitted: Sequence[CellRecord], usual: Mapping[int, float], constants: WorkConstants
) -> tuple[PartModel, float]:
    """Return the model, and the share of the machine's changes of speed that the times follow."""
    best: tuple[float, PartModel, float] | None = None
    for share in _SPEED_SHARES if usual else (0.0,):
        cells = [measured_step(record) for record in at_one_speed(fitted, usual, share)]
        model = fit_parts(cells, constants)
        ratios = [model.predict(cell.work).seconds / cell.seconds for cell in cells]
        error = float(np.mean(np.abs(np.log(ratios))))
        # What the other half will show is not looked at here.
        if best is None or error < best[0]:
            best = error, model, share
    assert best is not None
    return best[1], best[2]


def _error_of(model: PartModel, records: Sequence[CellRecord]) -> PredictionError:
    cells = [measured_step(record) for record in records]
    return PredictionError.of(
        [cell.seconds for cell in cells], [model.predict(cell.work).seconds for cell in cells]
    )


def product_curves(constants: Sequence[Constant]) -> dict[str, ProductCurve]:
    """Fit the products of one thread by the type of their numbers, such as fp32."""
    by_type: defaultdict[str, list[Constant]] = defaultdict(list)
    for each in constants:
        if each.name.startswith(_PRODUCT):
            by_type[each.name.removeprefix(_PRODUCT)].append(each)
    curves = {}
    for name, own in by_type.items():
        batch, inputs, outputs = (
            np.array([each.facts[fact] for each in own]) for fact in ("batch", "inputs", "outputs")
        )
        curves[name] = ProductCurve.fit(batch, inputs, outputs, np.array([each.median for each in own]))
    return curves


def work_constants(constants: Sequence[Constant]) -> WorkConstants:
    """Fit the curves to the constants that were measured."""

    def columns(name: str, *facts: str) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
        own = [each for each in constants if each.name == name]
        if not own:
            raise HotsetError(f"the constant {name!r} was not measured")
        return [
            *(np.array([each.facts[fact] for each in own]) for fact in facts),
            np.array([each.median for each in own]),
        ]

    products = product_curves(constants)
    if "fp32" not in products:
        raise HotsetError(f"the constant '{_PRODUCT}fp32' was not measured")
    copied = columns("copy row", "row_bytes", "working_bytes")
    # A row with one lookup: what further lookups cost is fitted with the steps.
    single = [each for each in constants if each.facts.get("lookups_per_row", 1) == 1]
    updated = [
        np.array([each.facts[fact] for each in single if each.name == "update row"])
        for fact in ("row_bytes", "working_bytes")
    ]
    update_seconds = np.array([each.median for each in single if each.name == "update row"])
    (copy_seconds,) = columns("copy")
    # Where no message between ranks was measured they are taken for copies, without a fixed cost.
    exchanged, gathered = (
        _collective(constants, name) or (0.0, 1 / float(copy_seconds[0])) for name in COLLECTIVES
    )
    return WorkConstants(
        products=products["fp32"],
        rows=RowCurve.fit(*copied),
        updates=RowCurve.fit(updated[0], updated[1], update_seconds),
        copy_bytes_per_second=1 / float(copy_seconds[0]),
        message_seconds=exchanged[0],
        message_bytes_per_second=exchanged[1],
        gather_seconds=gathered[0],
        gather_bytes_per_second=gathered[1],
        codecs={name: _codec_seconds(constants, name) for name in CODEC_NAMES},
    )


def _collective(constants: Sequence[Constant], name: str) -> tuple[float, float] | None:
    """Return the seconds of the smallest message and the bytes per second of large ones, if measured."""
    own = [each for each in constants if each.name == name]
    if not own:
        return None
    # A rank sends so many bytes to each of the others.
    sent = np.array([each.facts["bytes"] * (each.facts["ranks"] - 1) for each in own])
    seconds = np.array([each.median for each in own])
    delay, per_byte = fit_relative(np.stack([np.ones_like(sent), sent], axis=1), seconds)
    return float(delay), 1 / max(float(per_byte), 1e-15)


def _codec_seconds(constants: Sequence[Constant], name: str) -> CodecSeconds:
    """Return what a row takes to be encoded, and another one to be decoded."""
    found = np.zeros(2)
    # Rows as they are need no code.
    for work in () if codec_of(name).is_exact else ("encode", "decode"):
        own = [each for each in constants if each.name == f"{work} {name}"]
        if own:
            row_bytes = np.array([4 * each.facts["dim"] for each in own])
            seconds = np.array([each.median for each in own]) * row_bytes
            found += fit_relative(np.stack([np.ones_like(row_bytes), row_bytes], axis=1), seconds)
    return CodecSeconds(*found.tolist())
