"""The most looked-up categories of every table by name, with the label rate of their samples.

One pass over samples/ and the labels of columns/; memory is two bytes per row.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ...stats.curves import most_frequent
from ...stats.value_summary import count_labels_of_rows
from ..folders.discard import is_discarded
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ColumnsTotals
from ..formats.arrow_files import read_batch, values_of
from ..formats.lookups import read_lookups
from ..runtime.tasks import run_tasks
from .inspected_folder import Inspected
from .table_rows import open_table

NUM_CATEGORIES = 8
"""Categories of a table."""


class CategoryRow(TypedDict):
    """A category with many lookups, see `top_categories`."""

    table: str
    id: int
    category: str
    num_lookups: int
    lookup_share: float
    is_hot: bool | None
    label_rate: float | None


def top_categories(inspected: Inspected) -> list[CategoryRow]:
    """The categories of each table with the most lookups, from the most to the least.

    Returns:
        ``table``, ``id``, ``category`` (as the log writes it; (missing) and (oov) are rows, too),
        num_lookups, lookup_share (of the table's) and is_hot, from the counts; and ``label_rate``, the share
        of the category's lookups in the training part that a clicked sample made: None without labels or
        lookups, or where columns/ was discarded. Shares are in [0, 1].
    """
    # The first ids are not always the most frequent rows: other orders, merged categories and missing values
    # stand between.
    most = [most_frequent(counts, NUM_CATEGORIES) for counts in inspected.counts]
    chosen = [ids[counts[ids] > 0] for ids, counts in zip(most, inspected.counts, strict=True)]
    rates = _label_rates(inspected, chosen)
    found: list[CategoryRow] = []
    for table, ids, rates_of_ids in zip(inspected.tables, chosen, rates, strict=True):
        rows = open_table(inspected.folder, table.name).rows(ids.tolist())
        found += [
            {
                "table": table.name,
                "id": row["id"],
                "category": row["category"],
                "num_lookups": row["count"],
                "lookup_share": row["share"],
                "is_hot": row["is_hot"],
                "label_rate": rate,
            }
            for row, rate in zip(rows, rates_of_ids, strict=True)
        ]
    return found


def _label_rates(inspected: Inspected, chosen: list[NDArray[np.int64]]) -> list[list[float | None]]:
    """Return the label rates of the chosen rows of each table."""
    columns = Manifest.read(inspected.folder / "columns")
    has_label = ColumnsTotals.of(columns).has_label and not is_discarded(columns.folder)
    lookups = _nothing(chosen)
    clicks = _nothing(chosen)
    if has_label:
        # The position of each chosen row in the sums of its table.
        slots = [np.full(table.num_rows, -1, np.int16) for table in inspected.tables]
        for slot_of_row, ids in zip(slots, chosen, strict=True):
            slot_of_row[ids] = np.arange(ids.shape[0])
        tasks = (
            (columns, inspected.samples, entry, min(inspected.num_train - first, entry.num_samples), slots)
            for first, entry in inspected.samples.parts()
            if first < inspected.num_train
        )
        for of_file in run_tasks(_count_labels, tasks, workers=inspected.resources.workers):
            for total, found in zip((lookups, clicks), of_file, strict=True):
                for sums, more in zip(total, found, strict=True):
                    sums += more
    # A row without lookups in the training part has no rate.
    return [
        [int(clicked) / int(number) if number else None for clicked, number in zip(c, n, strict=True)]
        for c, n in zip(clicks, lookups, strict=True)
    ]


def _nothing(chosen: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    return [np.zeros(ids.shape[0], np.int64) for ids in chosen]


def _count_labels(
    columns: Manifest, samples: Manifest, entry: FileEntry, num_own: int, slots: list[NDArray[np.int16]]
) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    """Count the lookups of the chosen rows by the first samples of a file, and those of clicked samples."""
    label = values_of(read_batch(columns, columns.entry(entry.path)).column("label"), np.uint8)[:num_own]
    tables = read_lookups(samples, entry, 0, num_own)
    # One sum for each chosen row, found by its slot; all other rows have the slot -1.
    lookups = [np.zeros(int(slot_of_row.max(initial=-1)) + 1, np.int64) for slot_of_row in slots]
    clicks = [np.zeros_like(sums) for sums in lookups]
    for table, slot_of_row, *sums in zip(tables, slots, lookups, clicks, strict=True):
        count_labels_of_rows(table.ids, table.offsets, label, slot_of_row, *sums)
    return lookups, clicks
