"""Curves of a folder's counts: what the first rows of a table serve, the budgets to look at, and which tables
take the plan's fast memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ...stats.curves import coverage_points, top_shares
from ..folders.stage_totals import PlanTotals, SamplesTotals
from .inspected_folder import Inspected

POINTS_PER_DECADE = 6
SMALLEST_BUDGET = 1 << 14


class CoverageRow(TypedDict):
    """The lookups that the most looked-up rows of a table serve."""

    table: str
    num_rows: int
    lookup_share: float
    """Share of the table's lookups, in [0, 1]."""


def coverage(names: Sequence[str], counts: Sequence[NDArray[np.int64]]) -> list[CoverageRow]:
    """Per table and number of its most looked-up rows: table, num_rows, lookup_share in [0, 1]."""
    found: list[CoverageRow] = []
    for name, count in zip(names, counts, strict=True):
        # Sorting millions of counts is what takes time here, and by frequency they fall already.
        falling = count if bool((count[1:] <= count[:-1]).all()) else np.sort(count)[::-1]
        points = coverage_points(falling.shape[0], POINTS_PER_DECADE)
        shares = top_shares(falling, points)
        found += [
            {"table": name, "num_rows": rows, "lookup_share": share}
            for rows, share in zip(points, shares, strict=True)
        ]
    return found


def budgets_up_to(num_bytes: int, also: Sequence[int] = ()) -> list[int]:
    """Budgets for a curve: every half power of two from 16 KiB, and the bytes of all rows."""
    sizes = {num_bytes, *also}
    size = float(SMALLEST_BUDGET)
    while size < num_bytes:
        sizes.add(round(size))
        size *= 2**0.5
    return sorted(sizes)


class HotTableRow(TypedDict):
    """A table's share of the plan's fast memory, and what it gives for it, see `hot_tables`."""

    table: str
    num_rows: int
    num_hot_rows: int
    hot_bytes: int
    hot_bytes_share: float | None
    lookup_share: float | None
    hot_lookup_share: float | None
    cold_lookup_share: float | None
    oov_share: float | None
    evaluation_oov_share: float | None


def hot_tables(inspected: Inspected) -> list[HotTableRow]:
    """Per table what it takes of the plan's fast memory, and what it gives; shares are in [0, 1].

    Returns:
        ``table``, num_rows, num_hot_rows, hot_bytes, hot_bytes_share (of the bytes of all hot rows),
        lookup_share (of the lookups of all tables), hot_lookup_share (of the table's own), cold_lookup_share
        (of the cold lookups of all tables), and oov_share and evaluation_oov_share (of the lookups of either
        part, None of none). Lookups are those of the training part, of the model's where ids were adopted.
    """
    plan = PlanTotals.of(inspected.plan)
    num_hot = [table.num_hot for table in plan.tables]
    hot_bytes = [hot * width for hot, width in zip(num_hot, plan.bytes_of_rows, strict=True)]
    lookups = [int(count.sum()) for count in inspected.counts]
    # Hot rows are the first ids of a table.
    hot_lookups = [int(count[:hot].sum()) for count, hot in zip(inspected.counts, num_hot, strict=True)]
    # Lookups that the plan leaves cold, over all tables: what more memory would be for.
    num_cold = sum(lookups) - sum(hot_lookups)
    num_evaluation = inspected.samples.num_samples - inspected.num_train
    return [
        {
            "table": table.name,
            "num_rows": table.num_rows,
            "num_hot_rows": num_hot[number],
            "hot_bytes": hot_bytes[number],
            "hot_bytes_share": _share(hot_bytes[number], sum(hot_bytes)),
            "lookup_share": _share(lookups[number], sum(lookups)),
            "hot_lookup_share": _share(hot_lookups[number], lookups[number]),
            "cold_lookup_share": _share(lookups[number] - hot_lookups[number], num_cold),
            "oov_share": _share(table.oov_train, _num_lookups(table.lookups_train, inspected.num_train)),
            "evaluation_oov_share": _share(
                table.oov_evaluation, _num_lookups(table.lookups_evaluation, num_evaluation)
            ),
        }
        for number, table in enumerate(SamplesTotals.of(inspected.samples).tables)
    ]


def _num_lookups(recorded: int | None, num_samples: int) -> int:
    """Return the lookups of a table in a part of the log; only those of lists are recorded."""
    return num_samples if recorded is None else recorded


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
