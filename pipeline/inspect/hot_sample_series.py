"""How much is hot under each budget of fast memory, in the order of the folder's ids and in others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ..folders.manifest import Manifest
from ..folders.stage_totals import PlanTotals, SamplesTotals, VocabularyTotals
from ..formats.stage_settings import PlanSettings
from ..hot_rows.hot_curve import HotCurve, Levels, hot_curves, levels_of_tables
from ..runtime.resources import Resources
from ..sizes import GIB, MIB
from .coverage_series import budgets_up_to
from .inspected_folder import Inspected
from .other_orders import counted_levels, peeled_levels, sampled_levels

BUDGETS = tuple(int(size) for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB))


class BudgetRow(TypedDict):
    """The rows and samples that a budget makes hot."""

    bytes: int
    num_hot_rows: int
    hot_lookup_share: float
    """Share of the training lookups, in [0, 1]."""
    hot_sample_share: float
    """Share of the training samples that are fully hot, in [0, 1]."""


class ListedBudgetRow(BudgetRow):
    """A budget of the list that the terminal shows."""

    is_chosen: bool
    """Whether it is the plan's."""


class OrderRow(BudgetRow):
    """The rows and samples that a budget makes hot under one order of rows."""

    order: str


def budgets(inspected: Inspected) -> list[ListedBudgetRow]:
    """Per budget: bytes, num_hot_rows, hot_lookup_share, hot_sample_share, is_chosen (by the plan)."""
    chosen = PlanSettings.of(inspected.plan).hot_bytes
    sizes = sorted({*BUDGETS, chosen})
    return [
        {**row, "is_chosen": size == chosen}
        for row, size in zip(hot_by_budget(inspected, sizes), sizes, strict=True)
    ]


def hot_by_budget(inspected: Inspected, sizes: Sequence[int]) -> list[BudgetRow]:
    """Count what is hot under each of the budgets, which rise: bytes, num_hot_rows, shares in [0, 1]."""
    num_hot, num_rows = _prefixes(inspected, sizes)
    (curve,) = _curves(inspected, [levels_of_tables(num_hot, inspected.tables)], len(sizes))
    if not inspected.num_train:  # adopted ids: what the model's own log looked up
        lookups = [
            sum(int(c[:n].sum()) for c, n in zip(inspected.counts, hot, strict=True)) for hot in num_hot
        ]
        curve = HotCurve(curve.samples, np.array(lookups, np.int64), inspected.num_lookups)
    return _as_rows(inspected, sizes, curve, num_rows)


def _prefixes(inspected: Inspected, sizes: Sequence[int]) -> tuple[NDArray[np.int64], list[int]]:
    """(num_budgets, num_tables) hot rows of each table, and of all."""
    found = [inspected.hot_order.num_hot(size) for size in sizes]
    num_hot = np.array([hot for hot, _ in found], np.int64).reshape(len(sizes), len(inspected.tables))
    return num_hot, [rows for _, rows in found]


def _curves(inspected: Inspected, orders: list[Levels], num_budgets: int) -> list[HotCurve]:
    return hot_curves(inspected.samples, orders, num_budgets, inspected.num_train, inspected.resources)


def _as_rows(
    inspected: Inspected, sizes: Sequence[int], curve: HotCurve, num_rows: Sequence[int]
) -> list[BudgetRow]:
    num_lookups = max(1, curve.num_lookups)
    return [
        {
            "bytes": size,
            "num_hot_rows": rows,
            "hot_lookup_share": int(lookups) / num_lookups,
            "hot_sample_share": int(samples) / max(1, inspected.num_train),
        }
        for size, rows, lookups, samples in zip(sizes, num_rows, curve.lookups, curve.samples, strict=True)
    ]


def hot_samples(inspected: Inspected) -> list[OrderRow]:
    """Per order and budget: order, and what `hot_by_budget` says.

    The first order is that of the folder's ids; the others are ``frequency``, ``peel`` where `peeled_levels`
    can be had (``left_out`` says why not), and ``fae``, which counts 5 % of the training samples.
    """
    own = VocabularyTotals.of(inspected.vocabulary).rank_by
    widths = PlanTotals.of(inspected.plan).bytes_of_rows
    sizes = budgets_up_to(sum(t.num_rows * width for t, width in zip(inspected.tables, widths, strict=True)))
    num_hot, _ = _prefixes(inspected, sizes)
    # All orders are collected first, so that one pass over samples/ serves them all.
    orders: dict[str, Levels] = {own: levels_of_tables(num_hot, inspected.tables)}
    # The order by frequency for comparison, or peeling where the folder's own order is by frequency.
    if own != "frequency":
        orders["frequency"] = counted_levels(inspected.counts, widths, sizes)
    else:
        folder = inspected.folder
        vocabulary = inspected.vocabulary
        peeled = peeled_levels(folder, vocabulary, widths, sizes, inspected.resources)
        if isinstance(peeled, str):
            inspected.left_out.append(f"the curve of peeled rows: {peeled}")
        else:
            orders["peel"] = peeled
    # FAE's order is drawn anew, unless the ids follow such an order themselves.
    if own != "sampled":
        num_train = inspected.num_train
        orders["fae"] = sampled_levels(
            inspected.samples, widths, sizes, num_train, workers=inspected.resources.workers
        )
    curves = _curves(inspected, list(orders.values()), len(sizes))
    return [
        {"order": order, **row}
        for (order, levels), curve in zip(orders.items(), curves, strict=True)
        for row in _as_rows(inspected, sizes, curve, _rows_by_level(levels, len(sizes)))
    ]


def _rows_by_level(levels: Levels, num_budgets: int) -> list[int]:
    """Hot rows under each budget."""
    # A row is hot from its level on, so rows of each level are added up.
    found = sum(
        (np.bincount(level, minlength=num_budgets + 1) for level in levels),
        np.zeros(num_budgets + 1, np.int64),
    )
    return [int(rows) for rows in np.cumsum(found)[:num_budgets]]


def count_hot_samples(
    samples: Manifest, num_hot: NDArray[np.int64], num_train: int, resources: Resources
) -> NDArray[np.int64]:
    """(num_budgets,): fully hot training samples where each table's first ``num_hot`` rows are hot."""
    levels = levels_of_tables(num_hot, SamplesTotals.of(samples).tables)
    (curve,) = hot_curves(samples, [levels], num_hot.shape[0], num_train, resources)
    return curve.samples
