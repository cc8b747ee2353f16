"""Rank tables by frequency, by FAE's sampled counts, or by peeling.

By frequency, a table is a few thousand runs of equal counts; categories, counts and places are made from them
on demand, and never for all tables together.

The order over all tables decides which rows get fast memory, and so the hot rows under any budget. With rows
of one embedding_dim it is the vocabulary's order. With several, a vocabulary by frequency is read by density,
lookups per byte: still a prefix of every table, because all rows of a table have one embedding_dim. A
vocabulary in another order already accounts for them, and is used unchanged.

FAE's order is for comparison. Ids are ranks by counts of a sample of the log, so FAE's hot rows are a prefix
of every table. Ties, which most rows are in, are ordered by category, independently of the real counts:
missing first, oov last. FAE's calibrator looks at stretches of a table in the order of first appearance in
the log, so each id's position in that order is written, too.

Peeling (see `stats.ranking.peeling`) holds the incidence of rows and samples in memory, so rows that are
certainly hot are left out of it: the ``PEEL_FLOOR`` most looked-up ones, which have most of the lookups, stay
first, by frequency. The greedy choice may make fewer samples fully hot than frequency under one of many
budgets; the hot set of that budget is then the one by frequency, and peeling continues from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids
from ...stats.kernel import read_only
from ...stats.ranking import peeling
from ...stats.ranking.fae_sampling import add_drawn, draw_samples, number_by_appearance
from ...stats.ranking.peeling import BYTES_PER_LOOKUP, BYTES_PER_ROW, BYTES_PER_SAMPLE, Incidence, peel
from ...stats.ranking.ranking import (
    RankedRuns,
    expand_runs,
    first_places,
    num_hot_of_runs,
    num_hot_of_tables,
    place_categories,
    runs_by_density,
    runs_of,
)
from ..errors import ConfigError, ManifestError, hint_to_verify
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output
from ..folders.temporary_files import array_in
from ..folders.totals import CountedTable, VocabularyTable, VocabularyTotals
from ..formats.arrow_files import (
    OpenedParts,
    lookups_of,
    offsets_of,
    read_batch,
    validity_of,
    values_of,
    write_batch,
)
from ..runtime.memory import room_for
from ..runtime.tasks import Resources, num_workers, run_tasks, thread_buffer


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
        # Read once: the type is that of the counts, whose file is opened and checked for it.
        dtype = self.dtype
        rows = np.zeros(self.num_rows, dtype)
        self.write_categories(rows)
        missing = self.runs.missing_id
        oov = self.runs.oov_id
        entries = build_id_table(rows, 0, missing, oov)
        del rows
        one_each = np.arange(1, dtype=np.int32)
        for first, entry in columns.parts():
            # A part may have samples outside the requested range: look up all, then cut by offsets.
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

    ``room``: bytes to hold in memory; columns beyond it are in files.
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
        self._places = [] if by_density else read_tables(vocabulary, "place")
        if by_density:
            runs = [runs_of(counts) for counts in read_tables(vocabulary, "count")]
            self._table_of_run, self._lengths = runs_by_density(runs, self._row_bytes)

    def num_hot(self, budget_bytes: int) -> tuple[list[int], int]:
        """Hot rows of each table under a budget, and of all."""
        # A log without tables has no positions either, and nothing is hot.
        if self._places or not self._row_bytes:
            return num_hot_of_tables(self._places, self._row_bytes, budget_bytes)
        return num_hot_of_runs(self._table_of_run, self._lengths, self._row_bytes, budget_bytes)


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
    """Position in the order of first lookups in the log; rows without lookups are last."""


@dataclass(frozen=True, slots=True)
class SampledOrder:
    """The places of rows by sampled counts."""

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
    """Rank the rows of all tables by their lookups in a sample of the log; ties are by table.

    Args:
        tables: by frequency.
        columns: what they were counted from.
        counted: the samples of the log that were counted.
        rate: share of them that is drawn.
        seed: seed of the draw.
        with_replacement: see `stats.ranking.fae_sampling.draw_samples`.
        resources: workers are threads of this process; progress reports lookups as they are read.

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
    """Raise ConfigError where `row_order` would refuse, before the log is read."""
    sizes = sorted((table.num_rows for table in tables), reverse=True)[: num_workers(resources.workers)]
    lookups = sorted((table.lookup_bytes() for table in tables), reverse=True)[
        : num_workers(resources.workers)
    ]
    # Peak memory of this order: the draw, every table's result, and the work of the largest tables.
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


_BUDGETS_PER_DOUBLING = 4
_MAX_SAMPLES = 2**32 - 1
_MAX_ROWS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PeeledOrder:
    """The places of rows by peeling."""

    new_places: NDArray[np.int32]
    """(num_rows,), by place in the order by frequency."""
    floor: int
    """Rows that stay first, by frequency."""
    cuts: list[int]
    """Numbers of rows whose hot set is that by frequency."""

    def arrange(self, table: RankedTable) -> Arrangement:
        """One table's rows in their new order."""
        places = np.empty(table.num_rows, np.int64)
        table.write_places(places)
        places = self.new_places[places].astype(np.int64)
        order = np.argsort(places)
        return Arrangement(order, places[order], {})


def peel_order(
    tables: Sequence[RankedTable],
    row_bytes: Sequence[int],
    floor: int,
    columns: Manifest,
    counted: range,
    resources: Resources,
) -> PeeledOrder:
    """Rank the rows of all tables by peeling.

    Args:
        tables: with places by frequency, or by lookups per byte where ``row_bytes`` differ.
        row_bytes: per table; only their ratios count.
        floor: rows that stay first, by place.
        columns: what the tables were counted from.
        counted: the samples of the log that were counted.
        resources: workers are threads of this process; progress reports lookups as they are read.

    Raises:
        ConfigError: the cap cannot be kept, or there are too many samples.
        ManifestError: the counts were not made from these columns.
    """
    num_samples = len(counted)
    floor = min(floor, sum(table.num_rows for table in tables))
    starts = refuse_peel_order(tables, floor, num_samples, resources)
    # Fill the lists, order rows for entry into the peeling, and peel under every budget's bound.
    num_rows = len(starts) - 1
    found = _incidence(tables, starts, floor, columns, counted, resources)
    width_of_row, widths = _widths(tables, row_bytes, floor, num_rows)
    budgets = _budgets(tables, row_bytes, floor)
    places, cuts = _never_worse(found, width_of_row, widths, _entries(found), budgets)
    new_places = np.arange(floor + num_rows, dtype=np.int32)
    new_places[floor:] = places + np.int32(floor)
    return PeeledOrder(new_places, floor, [floor + cut for cut in cuts])


def refuse_peel_order(
    tables: Sequence[RankedTable], floor: int, num_samples: int, resources: Resources
) -> NDArray[np.int64]:
    """Raise ConfigError where `row_order` would refuse, before the log is read.

    Returns:
        Where the samples of each row above the floor begin, (num_rows + 1,).
    """
    total = sum(table.num_rows for table in tables)
    floor = min(floor, total)
    if num_samples > _MAX_SAMPLES or total > _MAX_ROWS:
        raise ConfigError(
            f"peeling supports up to {_MAX_SAMPLES} training samples and {_MAX_ROWS} rows, "
            f"but there are {num_samples} and {total}",
            hint="use --rank-by frequency",
        )
    # The lists of samples are as long as the counts say, so memory is known before anything is read.
    starts = _starts(tables, floor)
    num_rows = total - floor
    needed = BYTES_PER_LOOKUP * int(starts[-1]) + BYTES_PER_ROW * (num_rows + floor)
    needed += BYTES_PER_SAMPLE * num_samples
    lookups = sorted((table.lookup_bytes() for table in tables), reverse=True)[
        : num_workers(resources.workers)
    ]
    needed += sum(lookups) + _SCRATCH_BYTES * num_workers(resources.workers)
    room_for("rank --rank-by peel", replace(resources, workers=1), needed)
    return starts


def _starts(tables: Sequence[RankedTable], floor: int) -> NDArray[np.int64]:
    """Return where the samples of each row above the floor begin, rows by position: (num_rows + 1,)."""
    # Runs of all tables in the order of their first positions, spelled out row by row above the floor.
    firsts = np.concatenate([table.firsts for table in tables])
    order = np.argsort(firsts)
    counts = np.concatenate([table.runs.counts for table in tables])[order]
    lengths = np.concatenate([table.runs.lengths for table in tables])[order]
    return np.concatenate([[0], np.cumsum(np.repeat(counts, lengths)[floor:])])


def _incidence(
    tables: Sequence[RankedTable],
    starts: NDArray[np.int64],
    floor: int,
    columns: Manifest,
    counted: range,
    resources: Resources,
) -> Incidence:
    # Each row's list is filled from its start; a row of another table is never touched, so threads need no
    # lock.
    ends = starts[:-1].copy()
    row_samples = np.empty(int(starts[-1]), np.uint32)
    done = 0
    opened = OpenedParts()
    tasks = ((table, floor, starts, ends, row_samples, columns, counted, opened) for table in tables)
    for _ in run_tasks(_append_table, tasks, workers=resources.workers, shares_memory=True):
        done += len(counted)
        resources.progress("rank", done, len(tables) * len(counted))
    # The same lookups the other way round: the rows of each sample.
    sample_starts = np.zeros(len(counted) + 1, np.int64)
    sample_rows = np.empty(int((ends - starts[:-1]).sum()), np.int32)
    peeling.list_rows(starts, ends, row_samples, sample_starts, sample_rows)
    return Incidence(starts, ends, row_samples, sample_starts, sample_rows)


def _append_table(
    table: RankedTable,
    floor: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    row_samples: NDArray[np.uint32],
    columns: Manifest,
    counted: range,
    opened: OpenedParts,
) -> None:
    """Add the lookups of one table to the lists of its rows; no other table has those rows."""
    places = np.empty(table.num_rows, np.int64)
    table.write_places(places)
    # Rows above the floor are the last ids of a table, because positions rise with ids.
    first_id = int(np.searchsorted(places, floor))
    if first_id == table.num_rows:
        return
    rows = (places[first_id:] - floor).astype(np.int32)
    del places
    for first, offsets, ids in table.iterate_lookups(columns, counted, opened):
        ids, offsets = read_only(ids), read_only(offsets)
        if not peeling.append_samples(ids, offsets, first, first_id, rows, starts, ends, row_samples):
            raise ManifestError(
                f"{table.counts.folder} counts fewer lookups of {table.name} than {columns.folder} has",
                hint=hint_to_verify(columns.folder),
            )


def _entries(found: Incidence) -> NDArray[np.int32]:
    """Return the order in which rows enter the peeling."""
    order = np.empty(found.row_ends.shape[0], np.int32)
    peeling.entry_order(*found[:3], found.sample_starts.shape[0] - 1, order)
    return order


def _widths(
    tables: Sequence[RankedTable], row_bytes: Sequence[int], floor: int, num_rows: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the number of the width of each row above the floor, and the widths, widest first."""
    widths = sorted(set(row_bytes), reverse=True)
    width_of_row = np.zeros(num_rows, np.uint8)
    # Rows of one width need no marks, which saves a pass over all positions.
    if len(widths) > 1:
        for table, width in zip(tables, row_bytes, strict=True):
            places = np.empty(table.num_rows, np.int64)
            table.write_places(places)
            width_of_row[places[places >= floor] - floor] = widths.index(width)
    return width_of_row, np.array(widths, np.int64)


def _budgets(tables: Sequence[RankedTable], row_bytes: Sequence[int], floor: int) -> NDArray[np.int64]:
    """Return the budgets where peeling must be no worse, less the bytes of the floor."""
    total = 0
    taken = 0
    for table, width in zip(tables, row_bytes, strict=True):
        # Number of rows of each run below the floor: all, none, or those before it.
        inside = np.clip(floor - table.firsts, 0, table.runs.lengths)
        total += table.num_rows * width
        taken += int(inside.sum()) * width
    # Powers of two, and some between them.
    powers = np.arange(_BUDGETS_PER_DOUBLING * (total.bit_length() + 1)) / _BUDGETS_PER_DOUBLING
    budgets = np.unique((2.0**powers).astype(np.int64)) - taken
    return budgets[(budgets >= 0) & (budgets < total - taken)]


def _never_worse(
    found: Incidence,
    width_of_row: NDArray[np.uint8],
    widths: NDArray[np.int64],
    entries: NDArray[np.int32],
    budgets: NDArray[np.int64],
) -> tuple[NDArray[np.int32], list[int]]:
    """Return the new position of each row, and the numbers of first rows kept as those by frequency."""
    # The fully hot samples that each budget must reach: those of the order by frequency.
    num_rows = width_of_row.shape[0]
    ends = _ends(width_of_row, widths)
    reached = np.searchsorted(ends, budgets, side="right")
    wanted = np.empty_like(budgets)
    peeling.hot_samples_of_prefixes(found.sample_starts, found.sample_rows, reached, wanted)
    # With a cut at every row the order is that by frequency, so the loop ends there at the latest.
    cuts = {0, num_rows}
    order = np.empty(num_rows, np.int32)
    hot = np.empty_like(budgets)
    peeled: set[tuple[int, int]] = set()
    workspace = np.empty(2 * num_rows + found.sample_rows.shape[0], np.int32)
    while True:
        # Peel each part between cuts by itself, unless it was before; the row dropped first is the least
        # important one.
        for first, stop in set(itertools.pairwise(sorted(cuts))) - peeled:
            before, whole = (int(ends[cut - 1]) if cut else 0 for cut in (first, stop))
            own = slice(*np.searchsorted(budgets, [before, whole]))
            dropped = np.empty(stop - first, np.int32)
            arguments = (width_of_row, widths, entries, first, stop, budgets[own] - before)
            peel(found, *arguments, workspace, dropped, hot[own])
            order[first:stop] = dropped[::-1]
            peeled.add((first, stop))
        # Where some budget does worse than by frequency, its hot set becomes a cut, and its part is peeled
        # again.
        worse = set(reached[hot < wanted].tolist())
        if not worse:
            places = np.empty(num_rows, np.int32)
            places[order] = np.arange(num_rows, dtype=np.int32)
            return places, sorted(cuts - {0, num_rows})
        cuts |= worse


def _ends(width_of_row: NDArray[np.uint8], widths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the rows up to each one, itself included, (num_rows,)."""
    num_rows = width_of_row.shape[0]
    # Rows of one width have no marks that would have to be read.
    of_rows = np.full(num_rows, widths[0]) if widths.shape[0] == 1 else widths[width_of_row]
    ends: NDArray[np.int64] = np.cumsum(of_rows)
    return ends
