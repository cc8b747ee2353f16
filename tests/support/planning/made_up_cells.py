"""Cells of a sweep as the made-up machine takes them."""

from __future__ import annotations

from hotset.stats.step_model.part_model import SUMMED_PARTS, PartModel, PartTimes
from hotset.stats.step_model.step_work import StepWork
from hotset.tests.support.planning.made_up_machine import CONSTANTS, WEIGHTS
from hotset.workflows.characterise.cell_work import work_of
from hotset.workflows.characterise.cells import Cell
from hotset.workflows.characterise.run_cell import CellRecord

TINY = Cell(
    batch_size=64, num_dense=3, num_tables=3, rows_of_table=300, embedding_dim=4,
    bottom_mlp=(8,), top_mlp=(8,),
)  # fmt: skip
_CONTENTION = 0.5


def measured_parts(times: PartTimes, work: StepWork, contention: float) -> dict[str, float]:
    """The parts of a step as watches have them: those of the loop with what it loses to other threads."""
    load, transfers = (times.parts[f"beside {name}"] for name in ("load", "transfers"))
    beside = contention / work.threads * max(load + work.is_ahead * transfers - times.alone_seconds, 0.0)
    # While the loop waits for the others it loses nothing to them.
    slowed = 1 / (1 - beside / times.seconds)
    found = {part: slowed * times.parts[part] for part in SUMMED_PARTS}
    waits = {"load": times.parts["load"]} if times.parts["load"] else {}
    return found | waits | {"beside load": load, "beside transfers": transfers}


def made_up_record(cell: Cell) -> CellRecord:
    """Return the record of a cell on the made-up machine."""
    work = work_of(cell, 2)
    times = PartModel(CONSTANTS, WEIGHTS, _CONTENTION).predict(work)
    parts = measured_parts(times, work, _CONTENTION)
    return CellRecord(
        cell=cell,
        threads=2,
        num_steps=6,
        step_seconds=times.seconds,
        parts={part: seconds for part, seconds in parts.items() if not part.startswith("beside")},
        beside={name: parts[f"beside {name}"] for name in ("load", "transfers")},
        distinct_rows=1.0,
        to_fast_rows=0.0,
        to_slow_rows=0.0,
        initialized_rows=0.0,
        link_bytes={},
        memory_bytes=1,
    )
