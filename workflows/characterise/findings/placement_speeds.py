"""Samples per second of each placement, model by model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ..cells import Cell
from ..grid import FACTORS, value_of
from ..run_cell import CellRecord


def speed_of(record: CellRecord) -> float:
    """Return the samples per second of a cell."""
    return record.cell.batch_size / record.step_seconds


def placement_speeds(records: Sequence[CellRecord]) -> dict[str, dict[str, float]]:
    """Return samples per second by model and placement, of the models that have two placements or more.

    A model is named by what it has otherwise than `Cell`; the least changed ones come first. Cells of several
    ranks are left out.
    """
    base = Cell()
    names = [factor for factor in FACTORS if factor != "placement"]
    by_model: defaultdict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for record in records:
        cell = record.cell
        if cell.ranks > 1:
            continue
        # Cells that differ in nothing but the placement have the same model.
        values = ((number, value_of(cell, factor)) for number, factor in enumerate(names))
        changed = tuple(each for each in values if each[1] != value_of(base, names[each[0]]))
        by_model[changed][cell.placement] = speed_of(record)
    several = sorted((len(model), model, speeds) for model, speeds in by_model.items() if len(speeds) > 1)
    return {
        ", ".join(f"{names[number]} {value}" for number, value in model) or "base": speeds
        for _, model, speeds in several
    }


def best_placements(speeds: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return the fastest placement of those that hold a part of the rows, by model; two or more of each.

    Args:
        speeds: as `placement_speeds` returns them.
    """
    found = {}
    for name, own in speeds.items():
        # all-fast needs memory for all rows, so where it fits there is nothing to choose.
        others = {placement: speed for placement, speed in own.items() if placement != "all-fast"}
        if len(others) > 1:
            found[name] = max(others, key=lambda placement: others[placement])
    return found
