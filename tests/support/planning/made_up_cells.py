"""Cells of a sweep as the made-up machine takes them."""

from __future__ import annotations

from hotset.stats.step_model.part_model import PartModel
from hotset.tests.support.planning.made_up_machine import CONSTANTS, WEIGHTS
from hotset.workflows.characterise.cell_work import work_of
from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.run_cell import CellRecord

TINY = Cell(
    batch_size=64, num_dense=3, num_tables=3, rows_of_table=300, embedding_dim=4,
    bottom_mlp=(8,), top_mlp=(8,),
)  # fmt: skip


def made_up_record(cell: Cell) -> CellRecord:
    """What the made-up machine takes for a cell."""
    times = PartModel(CONSTANTS, WEIGHTS, 0.5).predict(work_of(cell, 2))
    parts = {part: seconds for part, seconds in times.parts.items() if not part.startswith("beside")}
    return CellRecord(
        cell=cell,
        threads=2,
        num_steps=6,
        step_seconds=times.seconds,
        parts=parts,
        beside={name: times.parts[f"beside {name}"] for name in ("load", "transfers")},
        distinct_rows=1.0,
        to_fast_rows=0.0,
        to_slow_rows=0.0,
        initialized_rows=0.0,
        link_bytes={},
        memory_bytes=1,
    )
