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

from ...stats.counting.hash_table import (
    find_ids,
    find_short_ids,
    insert_ids,
    insert_short_ids,
    new_short_table,
    new_table,
)
from ...stats.ranking.frequency_ranking import RankedRuns, expand_runs, place_categories
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output
from ..formats.arrow_files import read_batch, validity_of, values_of, write_batch
from ..formats.tables import lookups_of, offsets_of
from ..runtime.memory import array_in
from ..stages.encode import iterate_parts


@dataclass(frozen=True, slots=True)
class RankedTable:
    """One table of counts with its rows in the order by frequency."""

    counts: Manifest
    entry: FileEntry
    facts: dict[str, Any]
    """What the counts say of the table."""
    min_count: int
    runs: RankedRuns
    firsts: NDArray[np.int64]
    """(num_runs,), place over all tables of the first row of each run; the others follow it."""

    @property
    def name(self) -> str:
        """Of the feature."""
        return Path(self.entry.path).stem

    @property
    def num_rows(self) -> int:
        """Rows, those of missing and oov among them."""
        return self.runs.num_rows

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its categories."""
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
        """Write the look-ups of each row to ``counts``, (num_rows,)."""
        expand_runs(self.runs.counts, self.runs.lengths, 0, counts)

    def write_places(self, places: NDArray[np.int64]) -> None:
        """Write the place of each row over all tables to ``places``, (num_rows,)."""
        expand_runs(self.firsts, self.runs.lengths, 1, places)

    def iterate_lookups(
        self, columns: Manifest, samples: range
    ) -> Iterator[tuple[int, NDArray[np.int32], NDArray[np.int32]]]:
        """``samples`` part by part: number of the first among them, offsets of their look-ups, ids.

        Ids are rows by frequency. Holds the table's categories and a hash table of them.
        """
        rows = np.zeros(self.num_rows, self.dtype)
        self.write_categories(rows)
        is_short = rows.dtype == np.uint32
        entries = (new_short_table if is_short else new_table)(rows.shape[0])
        missing, oov = self.runs.missing_id, self.runs.oov_id
        (insert_short_ids if is_short else insert_ids)(rows, 0, missing, oov, entries)
        del rows
        find = find_short_ids if is_short else find_ids
        for first, entry in iterate_parts(columns):
            start, stop = max(first, samples.start), min(first + entry.num_samples, samples.stop)
            if start >= stop:
                continue
            column = read_batch(columns, entry).column(self.name)
            array, _ = lookups_of(column, 0)
            ids = np.empty(len(array), np.int32)
            find(values_of(array, self.dtype), validity_of(array), entries, missing, oov, ids)
            ends = np.arange(stop - first + 1, dtype=np.int32) if array is column else offsets_of(column)
            yield start - samples.start, ends[start - first : stop - first + 1], ids

    def lookup_bytes(self) -> int:
        """What `iterate_lookups` holds besides a part: categories, and a hash table that may be 35 % full."""
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
) -> dict[str, Any]:
    """Write the vocabulary of one table, by frequency if not ``arranged``; what the manifest says of it.

    ``room``: bytes to hold; columns beyond it lie in files.
    """
    missing, oov = table.runs.missing_id, table.runs.oov_id
    if arranged is not None:
        missing, oov = (int(np.flatnonzero(arranged.order == row)[0]) for row in (missing, oov))
    if not output.has(table.entry.path):
        with output.writing(table.entry.path, table.num_rows) as path:
            write_batch(path, _columns(table, arranged, {missing, oov}, output, room))
    found = {"name": table.name, "num_rows": table.num_rows, "oov_id": oov, "missing_id": missing}
    kept = {key: table.facts[key] for key in ("num_lookups", "is_multi_hot") if key in table.facts}
    return found | {"oov_count": table.runs.oov_count} | kept


def _columns(
    table: RankedTable, arranged: Arrangement | None, nulls: set[int], output: Output, room: int
) -> dict[str, Any]:
    """The vocabulary of one table; a third of ``room`` for each column."""
    shape, dtype = (table.num_rows,), table.dtype
    rows = array_in(room // 3, output, shape, dtype)
    totals, places = (array_in(room // 3, output, shape, np.int64) for _ in range(2))
    table.write_categories(rows)
    table.write_counts(totals)
    if arranged is None:
        table.write_places(places)
    else:
        rows, totals, places = rows[arranged.order], totals[arranged.order], arranged.places
    kind = pa.from_numpy_dtype(dtype)
    buffers = [_validity(table.num_rows, nulls), pa.py_buffer(rows)]
    category = pa.Array.from_buffers(kind, table.num_rows, buffers, len(nulls))
    columns = {"category": category, "count": pa.array(totals), "place": pa.array(places)}
    return columns | {name: pa.array(values) for name, values in (arranged.extra if arranged else {}).items()}


def _validity(num_rows: int, nulls: set[int]) -> Any:
    """An Arrow bitmap of all rows but ``nulls``."""
    bitmap = np.full(-(-num_rows // 8), 255, np.uint8)
    bitmap[-1] >>= np.uint8(-num_rows % 8)
    for row in nulls:
        bitmap[row // 8] &= np.uint8(255 - (1 << row % 8))
    return pa.py_buffer(bitmap)
