"""Hot lookups and samples under many budgets.

One pass over samples/ serves any number of orders and budgets.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.ranking import levels_of_prefixes, raise_levels
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import TableInfo
from ..formats.ids import read_lookups
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, run_tasks

Levels = list[NDArray[np.uint8]]
"""Per table (num_rows,): the first budget that makes the row hot, num_budgets where none does."""


@dataclass(frozen=True, slots=True)
class HotCurve:
    """Hot samples and lookups of the training part, by budget."""

    samples: NDArray[np.int64]
    """(num_budgets,), fully hot samples."""
    lookups: NDArray[np.int64]
    """(num_budgets,), lookups of hot rows."""
    num_lookups: int
    """Lookups of all rows."""


def levels_of_tables(num_hot: NDArray[np.int64], tables: Sequence[TableInfo]) -> Levels:
    """Return levels where hot rows are prefixes; ``num_hot``: (num_budgets, num_tables), not falling."""
    return [
        levels_of_prefixes(column, table.num_rows) for column, table in zip(num_hot.T, tables, strict=True)
    ]


def hot_curves(
    samples: Manifest,
    orders: Sequence[Levels],
    num_budgets: int,
    num_train: int,
    resources: Resources = DEFAULT_RESOURCES,
) -> list[HotCurve]:
    """Count what is hot of the first ``num_train`` samples under each order and budget. Exact.

    Args:
        samples: written by `encode`.
        orders: the levels of all rows under each order.
        num_budgets: of every order.
        num_train: training samples; they come first.
    """
    # One level more than budgets: rows and samples that no budget makes hot are counted there.
    total = np.zeros((len(orders), 2, num_budgets + 1), np.int64)
    done = 0
    parts = [(entry, min(num_train - first, entry.num_samples)) for first, entry in samples.parts()]
    parts = [(entry, num_samples) for entry, num_samples in parts if num_samples > 0]
    tasks = ((samples, *part, orders, num_budgets) for part in parts)
    # Integer sums do not depend on the order in which parts finish.
    with closing(run_tasks(_count_part, tasks, workers=resources.workers)) as counted:
        for (_, num_samples), found in zip(parts, counted, strict=True):
            total += found
            done += num_samples
            resources.progress("hot", done, num_train)
    # A row that a small budget makes hot is hot under every larger one: sums over levels are the curves.
    curves = np.cumsum(total, axis=2)
    return [
        HotCurve(samples=curve[0, :-1], lookups=curve[1, :-1], num_lookups=int(curve[1, -1]))
        for curve in curves
    ]


def _count_part(
    samples: Manifest, entry: FileEntry, stop: int, orders: Sequence[Levels], num_budgets: int
) -> NDArray[np.int64]:
    """(num_orders, 2, num_budgets + 1): samples and lookups of each level."""
    found = np.zeros((len(orders), 2, num_budgets + 1), np.int64)
    tables = read_lookups(samples, entry, 0, stop)
    for counts_2L, levels in zip(found, orders, strict=True):
        # A sample is hot from the budget that makes the last of its rows hot: the highest of their levels.
        level_B = np.zeros(stop, np.uint8)
        for table, level_T in zip(tables, levels, strict=True):
            raise_levels(table.ids, table.offsets, level_T, level_B, counts_2L[1])
        counts_2L[0] = np.bincount(level_B, minlength=num_budgets + 1)
    return found
