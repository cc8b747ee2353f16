"""Tables of a vocabulary, their rows in order of importance, and what is hot under a budget.

By frequency, a table is a few thousand runs of equal counts; categories, counts and places are made from them
on demand, and never for all tables together.

The order over all tables decides which rows get fast memory, and so the hot rows under any budget. With rows
of one embedding_dim it is the vocabulary's order. With several, a vocabulary by frequency is read by density,
lookups per byte: still a prefix of every table, because all rows of a table have one embedding_dim. A
vocabulary in another order already accounts for them, and is used unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids
from ...stats.kernel import read_only
from ...stats.ranking import (
    RankedRuns,
    bytes_of_prefix_serving,
    expand_runs,
    levels_of_prefixes,
    num_hot_of_tables,
    place_categories,
    prefixes_of_places,
    prefixes_of_runs,
    raise_levels,
    runs_of,
)
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output, array_in
from ..folders.totals import CountedTable, TableInfo, VocabularyTable, VocabularyTotals, by_feature
from ..formats.arrow_files import (
    OpenedParts,
    lookups_of,
    numpy_type,
    offsets_of,
    read_batch,
    validity_of,
    values_of,
    write_batch,
)
from ..formats.ids import ONE_EACH, TableLookups, join_lookups, read_lookups
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, run_tasks, thread_buffer, threads_here

_SCRATCH_BYTES = 24 << 20
"""A part's lookups, for each worker."""


@dataclass(frozen=True, slots=True)
class RankedTable:
    """One table of counts with its rows in the order by frequency."""

    counts: Manifest
    entry: FileEntry
    counted: CountedTable
    """The table as the counts describe it."""
    min_count: int
    runs: RankedRuns
    firsts: NDArray[np.int64]
    """(num_runs,), place over all tables of the first row of each run; the others follow it."""

    @property
    def name(self) -> str:
        """Name of the table."""
        return Path(self.entry.path).stem

    @property
    def num_rows(self) -> int:
        """Rows, those of missing and oov among them."""
        return self.runs.num_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its categories."""
        return numpy_type(self._batch().schema.field("category").type)

    def _batch(self) -> Any:
        return read_batch(self.counts, self.entry)

    def write_categories(self, rows: NDArray[Any]) -> None:
        """Write the category of each row to ``rows``, (num_rows,); those of missing and oov are left."""
        batch = self._batch()
        categories = values_of(batch.column("category"), self.dtype)
        occurrences = values_of(batch.column("count"), np.int64)
        place_categories(categories, occurrences, self.min_count, self.runs, rows)

    def write_counts(self, counts: NDArray[np.int64]) -> None:
        """Write the lookups of each row to ``counts``, (num_rows,)."""
        expand_runs(self.runs.counts, self.runs.lengths, 0, counts)

    def write_places(self, places: NDArray[np.int64]) -> None:
        """Write the place of each row over all tables to ``places``, (num_rows,)."""
        expand_runs(self.firsts, self.runs.lengths, 1, places)

    def iterate_lookups(
        self, columns: Manifest, samples: range, opened: OpenedParts
    ) -> Iterator[tuple[int, NDArray[np.int32], NDArray[np.int32]]]:
        """Yield ``samples`` part by part: number of the first among them, offsets of their lookups, ids.

        Ids are rows by frequency; they are the thread's until the next part. Holds the table's categories and
        a hash table of them. ``opened``: parts that were read for other tables, and will be for the next.
        """
        # Read once: the type is that of the counts, whose file is opened and checked for it.
        dtype = self.dtype
        rows = np.zeros(self.num_rows, dtype)
        self.write_categories(rows)
        missing = self.runs.missing_id
        oov = self.runs.oov_id
        entries = build_id_table(rows, 0, missing, oov)
        del rows
        features = by_feature([self.counted])
        for first, entry, low, high in columns.parts_within(samples.start, samples.stop):
            # A part may have samples outside the requested range: look up all, then cut by offsets.
            batch = opened.read(columns, entry)
            found = []
            for number, feature in enumerate(features):
                column = batch.column(feature.name)
                array, _ = lookups_of(column, 0)
                ids = thread_buffer(f"looked up {number}", (len(array),), np.int32)
                # Hex digits of a table that has lists of them, too, are narrower than its categories.
                is_wide = numpy_type(array.type).itemsize > dtype.itemsize
                categories = values_of(array, dtype if is_wide else None)
                find_ids(categories, validity_of(array), entries, missing, oov, ids)
                # A one-hot column comes back as it is, with one lookup per sample; of lists the offsets are
                # their bounds.
                found.append(TableLookups(ids, ONE_EACH if array is column else offsets_of(column)))
            lookups = join_lookups(found)
            yield first + low - samples.start, lookups.all_offsets[low : high + 1], lookups.ids

    def lookup_bytes(self) -> int:
        """Return what `iterate_lookups` holds besides a part: categories, a hash table perhaps 35% full."""
        return self.num_rows * self.dtype.itemsize * (1 + 6)


def lookup_bytes(tables: Sequence[RankedTable], resources: Resources) -> int:
    """Return the most that all workers hold while each iterates over the lookups of a table."""
    workers = threads_here(resources.workers)
    largest = sorted((table.lookup_bytes() for table in tables), reverse=True)[:workers]
    return sum(largest) + workers * _SCRATCH_BYTES


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Another order of one table's rows."""

    order: NDArray[np.int64]
    """(num_rows,), the row by frequency that each id gets."""
    places: NDArray[np.int64]
    """(num_rows,), place over all tables of each id; rising."""
    extra: dict[str, NDArray[np.int64]]
    """Further columns, by id."""


Arrange = Callable[[RankedTable], Arrangement]
"""Returns the order of one table's rows, where it is not the one by frequency."""


def write_table(table: RankedTable, arrange: Arrange | None, output: Output, room: int) -> VocabularyTable:
    """Write the vocabulary of one table, by frequency without ``arrange``; return its description.

    ``room``: bytes to hold in memory; columns beyond it are in files.
    """
    arranged = arrange(table) if arrange is not None else None
    # Find where an arrangement put the two rows that have no category.
    missing = table.runs.missing_id
    oov = table.runs.oov_id
    if arranged is not None:
        missing, oov = (int(np.flatnonzero(arranged.order == row)[0]) for row in (missing, oov))
    if not output.has(table.entry.path):
        with output.writing(table.entry.path, table.num_rows) as path:
            write_batch(path, _columns(table, arranged, {missing, oov}, output, room))
    return VocabularyTable(
        name=table.name,
        num_rows=table.num_rows,
        oov_id=oov,
        missing_id=missing,
        oov_count=table.runs.oov_count,
        num_lookups=table.counted.num_lookups,
        is_multi_hot=table.counted.is_multi_hot,
        features=table.counted.features,
    )


def _columns(
    table: RankedTable, arranged: Arrangement | None, nulls: set[int], output: Output, room: int
) -> dict[str, Any]:
    """Build the columns of one table's vocabulary; a third of ``room`` for each."""
    shape = (table.num_rows,)
    dtype = table.dtype
    rows = array_in(room // 3, output, shape, dtype)
    totals, places = (array_in(room // 3, output, shape, np.int64) for _ in range(2))
    table.write_categories(rows)
    table.write_counts(totals)
    if arranged is None:
        table.write_places(places)
    else:
        # By frequency first, then rearranged: the runs know no other order.
        rows = rows[arranged.order]
        totals = totals[arranged.order]
        places = arranged.places
    # Missing and oov hold no category: they are null in the bitmap, and their values are never read.
    kind = pa.from_numpy_dtype(dtype)
    buffers = [_validity(table.num_rows, nulls), pa.py_buffer(rows)]
    category = pa.Array.from_buffers(kind, table.num_rows, buffers, len(nulls))
    columns = {"category": category, "count": pa.array(totals), "place": pa.array(places)}
    return columns | {name: pa.array(values) for name, values in (arranged.extra if arranged else {}).items()}


def _validity(num_rows: int, nulls: set[int]) -> Any:
    """Build an Arrow bitmap of all rows but ``nulls``."""
    bitmap = np.full(-(-num_rows // 8), 255, np.uint8)
    # The last byte's bits beyond the last row are 0, as Arrow wants them.
    bitmap[-1] >>= np.uint8(-num_rows % 8)
    for row in nulls:
        bitmap[row // 8] &= np.uint8(255 - (1 << row % 8))
    return pa.py_buffer(bitmap)


def read_tables(
    vocabulary: Manifest, column: Literal["count", "place", "sampled", "appearance"]
) -> list[NDArray[np.int64]]:
    """Per table (num_rows,): one column of its rows, by id; mapped."""
    names = [table.name for table in VocabularyTotals.of(vocabulary).tables]
    batches = [read_batch(vocabulary, vocabulary.entry(f"{name}.arrow")) for name in names]
    return [values_of(batch.column(column), np.int64) for batch in batches]


class HotOrder:
    """Rows of all tables, the first to be hot first."""

    def __init__(self, vocabulary: Manifest, row_bytes: Sequence[int]) -> None:
        """``row_bytes``: per table, bytes of a row with its optimizer state."""
        self._row_bytes = list(row_bytes)
        # Positions are an order by lookups; with several widths the one by lookups per byte differs.
        by_density = len(set(row_bytes)) > 1 and VocabularyTotals.of(vocabulary).rank_by == "frequency"
        columns = read_tables(vocabulary, "count" if by_density else "place")
        self._num_rows = sum(column.shape[0] for column in columns)
        if by_density:
            self._rows_of = prefixes_of_runs([runs_of(counts) for counts in columns], row_bytes)
        else:
            self._rows_of = prefixes_of_places(columns)

    def num_hot(self, budget_bytes: int) -> tuple[list[int], int]:
        """Hot rows of each table under a budget, and of all."""
        return num_hot_of_tables(self._rows_of, self._num_rows, self._row_bytes, budget_bytes)

    def bytes_serving(self, counts: Sequence[NDArray[np.int64]], percent: int) -> int:
        """Bytes of the first rows that serve ``percent`` of all lookups; ``counts``: of each table's rows."""
        return bytes_of_prefix_serving(self._rows_of, self._num_rows, self._row_bytes, counts, percent)


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
    """Count what is hot of the first ``num_train`` samples under each order and budget. Exact."""
    # One level more than budgets: rows and samples that no budget makes hot are counted there.
    total = np.zeros((len(orders), 2, num_budgets + 1), np.int64)
    done = 0
    parts = [(entry, num_own) for _, entry, _, num_own in samples.parts_within(0, num_train)]
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
            raise_levels(read_only(table.ids), table.offsets, level_T, level_B, counts_2L[1])
        counts_2L[0] = np.bincount(level_B, minlength=num_budgets + 1)
    return found
