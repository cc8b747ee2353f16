"""Rank rows by peeling: the order under which the most samples are fully hot.

Peeling (see `stats.ranking.peeling`) holds the incidence of rows and samples in memory, so rows that are
certainly hot are left out of it: the ``PEEL_FLOOR`` most looked-up ones, which have most of the lookups, stay
first, by frequency. The greedy choice may make fewer samples fully hot than frequency under one of many
budgets; the hot set of that budget is then the one by frequency, and peeling continues from there.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import read_only
from ...stats.ranking import peeling
from ...stats.ranking.peeling import BYTES_PER_LOOKUP, BYTES_PER_ROW, BYTES_PER_SAMPLE, Incidence, peel
from ..errors import ConfigError, ManifestError, hint_to_verify
from ..folders.manifest import Manifest
from ..folders.totals import PeelInfo
from ..formats.arrow_files import OpenedParts
from ..runtime.memory import room_for
from ..runtime.tasks import Resources, run_tasks
from .row_order import Arrange, Arrangement, RankedTable, lookup_bytes

_BUDGETS_PER_DOUBLING = 4
_MAX_SAMPLES = 2**32 - 1
_MAX_ROWS = 2**31 - 1


def arranged_by(new_places: NDArray[np.int32]) -> Arrange:
    """Return how to arrange a table, given the new place of each row over all tables by frequency."""

    def arrange(table: RankedTable) -> Arrangement:
        places = np.empty(table.num_rows, np.int64)
        table.write_places(places)
        places = new_places[places].astype(np.int64)
        order = np.argsort(places)
        return Arrangement(order, places[order], {})

    return arrange


def peel_order(
    tables: Sequence[RankedTable],
    row_bytes: Sequence[int],
    floor: int,
    columns: Manifest,
    counted: range,
    resources: Resources,
) -> tuple[NDArray[np.int32], PeelInfo]:
    """Rank the rows of all tables by peeling.

    Args:
        tables: with places by frequency, or by lookups per byte where ``row_bytes`` differ.
        row_bytes: per table; only their ratios count.
        floor: rows that stay first, by place.
        columns: what the tables were counted from.
        counted: the samples of the log that were counted.
        resources: workers are threads of this process.

    Returns:
        (num_rows,) the new place of each row, by its place in the order by frequency; and the settings.

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
    return new_places, PeelInfo(floor=floor, cuts=tuple(floor + cut for cut in cuts))


def refuse_peel_order(
    tables: Sequence[RankedTable], floor: int, num_samples: int, resources: Resources
) -> NDArray[np.int64]:
    """Raise ConfigError where `peel_order` would refuse, before the log is read.

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
    needed += lookup_bytes(tables, resources)
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
