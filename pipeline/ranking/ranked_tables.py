"""Tables on their way from counts to a vocabulary: ranked by frequency, and perhaps arranged anew.

By frequency a table is a few thousand runs of equal counts; categories, counts and places are made from
them when they are wanted, and never for all tables at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids
from ...stats.ranking.ranking import RankedRuns, expand_runs, place_categories
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output
from ..folders.table_info import CountedTable, VocabularyTable
from ..folders.temporary_files import array_in
from ..formats.arrow_files import read_batch, validity_of, values_of, write_batch
from ..formats.opened_parts import OpenedParts
from ..formats.tables import lookups_of, offsets_of
from ..runtime.thread_buffers import thread_buffer


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
        """Name of the feature."""
        return Path(self.entry.path).stem

    @property
    def num_rows(self) -> int:
        """Rows, those of missing and oov among them."""
        return self.runs.num_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its categories."""
        dtype: np.dtype[Any] = np.dtype(self._batch().schema.field("category").type.to_pandas_dtype())
        return dtype

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
        # Asked for once: the type is that of the counts, whose file is opened and checked for it.
        dtype = self.dtype
        rows = np.zeros(self.num_rows, dtype)
        self.write_categories(rows)
        missing = self.runs.missing_id
        oov = self.runs.oov_id
        entries = build_id_table(rows, 0, missing, oov)
        del rows
        one_each = np.arange(1, dtype=np.int32)
        for first, entry in columns.parts():
            # A part may have samples before or behind those asked for: look all up, then cut by offsets.
            start = max(first, samples.start)
            stop = min(first + entry.num_samples, samples.stop)
            if start >= stop:
                continue
            column = opened.read(columns, entry).column(self.name)
            array, _ = lookups_of(column, 0)
            ids = thread_buffer("looked up", (len(array),), np.int32)
            find_ids(values_of(array, dtype), validity_of(array), entries, missing, oov, ids)
            # A one-hot column comes back as it is, with one lookup per sample; of lists the offsets are their
            # bounds.
            if array is column and one_each.shape[0] <= stop - first:
                one_each = np.arange(stop - first + 1, dtype=np.int32)
            ends = one_each if array is column else offsets_of(column)
            yield start - samples.start, ends[start - first : stop - first + 1], ids

    def lookup_bytes(self) -> int:
        """Return what `iterate_lookups` holds besides a part: categories, a hash table perhaps 35% full."""
        return self.num_rows * self.dtype.itemsize * (1 + 6)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Another order of one table's rows."""

    order: NDArray[np.int64]
    """(num_rows,), the row by frequency that each id gets."""
    places: NDArray[np.int64]
    """(num_rows,), place over all tables of each id; rising."""
    extra: dict[str, NDArray[np.int64]]
    """Further columns, by id."""


def write_table(
    table: RankedTable, arranged: Arrangement | None, output: Output, room: int
) -> VocabularyTable:
    """Write the vocabulary of one table, by frequency if not ``arranged``; return its description.

    ``room``: bytes to hold; columns beyond it lie in files.
    """
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
