"""The estimate of TorchRec's planner for held-out cells, beside ours: its own constants, and measured ones.

Its formula knows tables alone: no dense layers, no reading, no fixed cost. So its times are compared as they
are, and so is the order that they give.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....stats.step_model.held_out import PredictionError
from ....stats.step_model.torchrec_times import GIB_PER_MS, TorchrecConstants, table_wise
from ....train.planning.machine_file import MachineFile
from ..cell_work import measured_step
from ..cells import Cell
from ..run_cell import CellRecord

_OWN = TorchrecConstants(table_bandwidth=51 * GIB_PER_MS)
"""Its constants for a fused table in the memory of a host."""


def compare_with_torchrec(machine: MachineFile, cells: Sequence[CellRecord]) -> dict[str, PredictionError]:
    """Return the errors on held-out cells by who predicts; empty without a fit."""
    held_out = [record for record in cells if record.cell.is_held_out]
    if machine.model is None or not held_out:
        return {}
    measured = [record.step_seconds for record in held_out]
    model = machine.model.parts
    # A row of the widest working set, in bytes per millisecond of all threads.
    per_byte = machine.model.curves.row_byte_seconds[-1]
    own = TorchrecConstants(table_bandwidth=machine.threads / max(per_byte, 1e-15) / 1000)
    predicted = {
        "hotset": [model.predict(measured_step(record).work).seconds for record in held_out],
        "TorchRec's formula, its constants": [_seconds(record.cell, _OWN) for record in held_out],
        "TorchRec's formula, measured constants": [_seconds(record.cell, own) for record in held_out],
    }
    return {name: PredictionError.of(measured, seconds) for name, seconds in predicted.items()}


def _seconds(cell: Cell, constants: TorchrecConstants) -> float:
    # The tables of one rank follow each other; the formula's times are in milliseconds.
    one = table_wise(cell.batch_size, 1, cell.pooling, cell.embedding_dim, constants)
    return cell.num_tables * one.total / 1000
