"""The order of rows by counts of a sample of the log, as FAE sees it: for comparison.

Ids are ranks by sampled counts, so that FAE's hot rows are a prefix of every table like any others. Ties, and
most rows are in one, are by category, which knows nothing of the real counts: missing first, oov last.

FAE's calibrator looks at stretches of a table in the order of first appearance in the log, so each id's
position in that order is written, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...stats.ranking.fae_sampling import add_drawn, draw_samples, number_by_appearance
from ...stats.ranking.ranking import expand_runs, first_places, runs_of
from ..folders.manifest import Manifest
from ..formats.opened_parts import OpenedParts
from ..runtime.memory import room_for
from ..runtime.resources import Resources
from ..runtime.tasks import num_workers, run_tasks
from .ranked_tables import Arrangement, RankedTable

_BYTES_PER_ROW = 24
_BYTES_PER_ROW_AT_WORK = 56
_SCRATCH_BYTES = 24 << 20
"""A part's lookups, for each worker."""


@dataclass(frozen=True, slots=True)
class SampledTable:
    """One table's rows in the new order; (num_rows,) each."""

    order: NDArray[np.int64]
    """The row by frequency that each id gets."""
    counts: NDArray[np.int64]
    """Sampled lookups, falling."""
    appearances: NDArray[np.int64]
    """Position in the order of first lookups in the log; rows that none looked up come last."""


@dataclass(frozen=True, slots=True)
class SampledOrder:
    """Where each row goes."""

    num_drawn: int
    """Samples drawn."""
    tables: dict[str, SampledTable]
    """By name."""
    firsts: dict[str, NDArray[np.int64]]
    """By name, of each run of equal sampled counts: the place of its first row over all tables."""

    def arrange(self, table: RankedTable) -> Arrangement:
        """One table's rows in their new order, with columns ``sampled`` and ``appearance``."""
        found = self.tables[table.name]
        places = np.empty(table.num_rows, np.int64)
        expand_runs(self.firsts[table.name], runs_of(found.counts)[1], 1, places)
        extra = {"sampled": found.counts, "appearance": found.appearances}
        return Arrangement(found.order, places, extra)


def sampled_order(
    tables: Sequence[RankedTable],
    columns: Manifest,
    counted: range,
    resources: Resources,
    *,
    rate: float,
    seed: int,
    with_replacement: bool,
) -> SampledOrder:
    """Rank the rows of all tables by their lookups in a sample of the log; over tables ties are by table.

    Args:
        tables: by frequency.
        columns: what they were counted from.
        counted: the samples of the log that were counted.
        rate: share of them that is drawn.
        seed: seed of the draw.
        with_replacement: see `stats.ranking.fae_calibration.draw_samples`.
        resources: workers are threads of this process; progress is told lookups as they are read.

    Raises:
        ConfigError: the cap cannot be kept.
    """
    refuse_sampled_order(tables, len(counted), resources)
    # Draw samples first, then count every table's lookups in those drawn.
    times = np.zeros(len(counted), np.uint8)
    num_drawn = draw_samples(len(counted), rate, seed, with_replacement, times)
    found = {}
    done = 0
    opened = OpenedParts()
    tasks = ((table, columns, counted, opened, times) for table in tables)
    for table, ordered in zip(
        tables, run_tasks(_order_table, tasks, workers=resources.workers, shares_memory=True), strict=True
    ):
        found[table.name] = ordered
        done += len(counted)
        resources.progress("rank", done, len(tables) * len(counted))
    # Positions over all tables follow from runs of equal sampled counts.
    runs = [runs_of(found[table.name].counts) for table in tables]
    firsts = first_places(runs, [1] * len(tables))
    return SampledOrder(num_drawn, found, dict(zip(found, firsts, strict=True)))


def refuse_sampled_order(tables: Sequence[RankedTable], num_samples: int, resources: Resources) -> None:
    """Raise ConfigError where `sampled_order` would refuse, before the log is read."""
    sizes = sorted((table.num_rows for table in tables), reverse=True)[: num_workers(resources.workers)]
    lookups = sorted((table.lookup_bytes() for table in tables), reverse=True)[
        : num_workers(resources.workers)
    ]
    # All that this order holds at once: the draw, every table's result, and the work of the largest tables.
    needed = num_samples + sum(table.num_rows for table in tables) * _BYTES_PER_ROW + sum(lookups)
    needed += sum(sizes) * _BYTES_PER_ROW_AT_WORK + num_workers(resources.workers) * _SCRATCH_BYTES
    room_for("rank --rank-by sampled", replace(resources, workers=1), needed)


def _order_table(
    table: RankedTable, columns: Manifest, counted: range, opened: OpenedParts, times: NDArray[np.uint8]
) -> SampledTable:
    sampled = np.zeros(table.num_rows, np.int64)
    # Parts come in log order whatever the number of workers: a table is one task.
    appearances = np.full(table.num_rows, -1, np.int32)
    num_seen = 0
    for first, offsets, ids in table.iterate_lookups(columns, counted, opened):
        add_drawn(ids, offsets, times[first : first + offsets.shape[0] - 1], sampled)
        num_seen = number_by_appearance(ids[offsets[0] : offsets[-1]], num_seen, appearances)
    # Missing and oov have rows even where no sample has them.
    appearances[appearances < 0] = np.arange(num_seen, table.num_rows)
    # `lexsort` takes its first key last: sampled counts falling, then missing, oov and the category.
    order = np.lexsort((*reversed(category_order(table)), -sampled))
    return SampledTable(order, sampled[order], appearances[order].astype(np.int64))


def category_order(table: RankedTable) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.integer]]:
    """Return the sort keys of a table's rows: missing first, oov last, then by category."""
    rows = np.zeros(table.num_rows, table.dtype)
    table.write_categories(rows)
    is_oov = np.zeros(rows.shape[0], np.bool_)
    is_not_missing = np.ones(rows.shape[0], np.bool_)
    is_oov[table.runs.oov_id] = True
    is_not_missing[table.runs.missing_id] = False
    return is_oov, is_not_missing, rows
