"""Which runs of a cell tell its time: those during which the machine had its usual speed.

Other guests of a host, or its clock, make all of a cell slower or quicker for seconds and minutes. A piece of
work between the steps tells by how much, and it alone decides which run counts: never the time of the cell
itself, of which a run could be chosen that suits a prediction.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .run_cell import CellRecord

MOST_OFF = 0.08
"""Logarithm of the piece of work's seconds over its usual ones up to which a run counts as undisturbed. On a
host with other guests a third to a half of all runs are; their times are within 7% of each other, of others
within 14%."""


def usual_probe_seconds(records: Iterable[CellRecord]) -> dict[int, float]:
    """Return the middle of what the piece of work between the steps took, by number of ranks.

    Ranks do it at any time, the threads of one process at the same time. Without records that have it there
    are none.
    """
    known: defaultdict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.probe_seconds > 0:
            known[record.cell.ranks].append(record.probe_seconds)
    return {ranks: float(np.median(seconds)) for ranks, seconds in known.items()}


def how_far_off(ranks: int, probe_seconds: float, usual: Mapping[int, float]) -> float:
    """Return how far the machine was from its usual speed: the size of a logarithm, 0 where nobody knows."""
    if probe_seconds <= 0 or ranks not in usual:
        return 0.0
    return abs(math.log(probe_seconds / usual[ranks]))


def at_one_speed(records: Sequence[CellRecord], usual: Mapping[int, float], share: float) -> list[CellRecord]:
    """Return records as if the machine had always had its usual speed.

    Args:
        records: as measured; those without the piece of work are left as they are.
        usual: seconds of the piece of work at the usual speed, by number of ranks.
        share: power of the ratio of both that times follow, from 0 for not at all to 1.
    """

    def factor(record: CellRecord) -> float:
        if record.probe_seconds <= 0 or record.cell.ranks not in usual:
            return 1.0
        return float((usual[record.cell.ranks] / record.probe_seconds) ** share)

    return [record.scaled(factor(record)) for record in records]


def typical_cells(runs: Sequence[CellRecord], usual: Mapping[int, float] | None = None) -> list[CellRecord]:
    """Return one run of each cell.

    Of several undisturbed ones it is that with the middle time, of two in the middle the quicker; where all
    were disturbed, the least disturbed one. Its parts still add up to its step, as those of a mean over parts
    that were disturbed would not.

    Args:
        runs: of any cells.
        usual: seconds of the piece of work at the usual speed, by number of ranks; None: those of the runs.
    """
    usual = usual_probe_seconds(runs) if usual is None else usual
    by_cell: defaultdict[str, list[CellRecord]] = defaultdict(list)
    for record in runs:
        by_cell[record.cell.key].append(record)
    return [_typical(own, usual) for own in by_cell.values()]


def is_disturbed(record: CellRecord, usual: Mapping[int, float]) -> bool:
    """Whether the machine did not have its usual speed meanwhile."""
    return how_far_off(record.cell.ranks, record.probe_seconds, usual) > MOST_OFF


def _typical(runs: Sequence[CellRecord], usual: Mapping[int, float]) -> CellRecord:
    undisturbed = [record for record in runs if not is_disturbed(record, usual)]
    if not undisturbed:
        return min(runs, key=lambda record: how_far_off(record.cell.ranks, record.probe_seconds, usual))
    ordered = sorted(undisturbed, key=lambda record: record.step_seconds)
    return ordered[(len(ordered) - 1) // 2]
