"""Orders of a vocabulary's rows other than by frequency: peeling, and FAE's sample.

The order by peeling makes the most samples fully hot. Peeling (see `stats.peeling`) holds the
incidence of rows and samples in memory, so rows that are certainly hot are left out of it: the ``PEEL_FLOOR``
most looked-up ones, which have most of the lookups, stay first, by frequency. The greedy choice may make
fewer samples fully hot than frequency under one of many budgets; the hot set of that budget is then the one
by frequency, and peeling continues from there.

FAE's order and its hot rows are for comparison. Ids are ranks by counts of a sample of the log, so FAE's hot
rows are a prefix of every table. Ties, which most rows are in, are ordered by category, independently of the
real counts: missing first, oov last.

The counter array, whose chunks the paper samples, is in the order of first appearance in the log, as FAE's
preprocessing numbers categories; so each id's position in that order is written, too. Frequent rows appear
early and so are adjacent: a chunk has many of them or none, and the intervals cover the truth less often than
they claim.

Source: FAE (Adnan et al., PVLDB 15(1), section 4).
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats import peeling
from ...stats.kernel import read_only
from ...stats.peeling import BYTES_PER_LOOKUP, BYTES_PER_ROW, BYTES_PER_SAMPLE, Incidence, peel
from ...stats.ranking import (
    LARGE_TABLE_BYTES,
    ProfiledTable,
    add_drawn,
    draw_samples,
    estimate_bytes,
    expand_runs,
    find_threshold,
    first_places,
    is_permutation,
    num_hot_of_tables,
    number_by_appearance,
    prefixes_of_runs,
    runs_of,
)
from ..errors import ConfigError, ManifestError, format_byte_size, hint_to_rewrite, hint_to_verify
from ..folders.manifest import Manifest
from ..folders.totals import (
    CalibrationInfo,
    ExactHotRows,
    PeelInfo,
    SamplingInfo,
    SamplingSettings,
    VocabularyTable,
    VocabularyTotals,
)
from ..formats.arrow_files import OpenedParts
from ..runtime.tasks import Resources, room_for, run_tasks, threads_here
from .row_order import (
    Arrange,
    Arrangement,
    HotOrder,
    Levels,
    RankedTable,
    hot_curves,
    lookup_bytes,
    read_tables,
)

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
    starts = check_peel_order(tables, floor, num_samples, resources)
    # Fill the lists, order rows for entry into the peeling, and peel under every budget's bound.
    num_rows = len(starts) - 1
    found = _incidence(tables, starts, floor, columns, counted, resources)
    width_of_row, widths = _widths(tables, row_bytes, floor, num_rows)
    budgets = _budgets(tables, row_bytes, floor)
    places, cuts = _never_worse(found, width_of_row, widths, peeling.entry_order(found), budgets)
    new_places = np.arange(floor + num_rows, dtype=np.int32)
    new_places[floor:] = places + np.int32(floor)
    return new_places, PeelInfo(floor=floor, cuts=tuple(floor + cut for cut in cuts))


def check_peel_order(
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
    room_for("rank --rank-by peel", resources, needed, here=True)
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
    ends = np.cumsum(widths[width_of_row])
    reached = np.searchsorted(ends, budgets, side="right")
    wanted = peeling.hot_samples_of_prefixes(found, reached)
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
            dropped, hot[own] = peel(
                found, width_of_row, widths, entries, first, stop, budgets[own] - before, workspace
            )
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


_BYTES_PER_ROW = 24
_BYTES_PER_ROW_AT_WORK = 56


def sampled_order(
    tables: Sequence[RankedTable],
    columns: Manifest,
    counted: range,
    resources: Resources,
    rate: float,
    seed: int,
    with_replacement: bool,
) -> tuple[Arrange, SamplingInfo]:
    """Rank the rows of all tables by their lookups in a sample of the log; ties are by table.

    ``tables`` are by frequency; ``counted`` are the samples of ``columns`` that were counted, of which the
    share ``rate`` is drawn as by `draw_samples`. Workers are threads of this process.

    Raises:
        ConfigError: the cap cannot be kept.
    """
    check_sampled_order(tables, len(counted), resources)
    # Draw samples first, then count every table's lookups in those drawn.
    times = np.zeros(len(counted), np.uint8)
    num_drawn = draw_samples(len(counted), rate, seed, with_replacement, times)
    found: dict[str, tuple[NDArray[np.int64], ...]] = {}
    opened = OpenedParts()
    tasks = ((table, columns, counted, opened, times) for table in tables)
    ordered = run_tasks(_order_table, tasks, workers=resources.workers, shares_memory=True)
    for done, (table, columns_of_table) in enumerate(zip(tables, ordered, strict=True), 1):
        found[table.name] = columns_of_table
        resources.progress("rank", done * len(counted), len(tables) * len(counted))
    # Places over all tables follow from runs of equal sampled counts.
    runs = {name: runs_of(counts) for name, (_, counts, _) in found.items()}
    firsts = dict(zip(found, first_places([*runs.values()], [1] * len(tables)), strict=True))

    def arrange(table: RankedTable) -> Arrangement:
        order, sampled, appearances = found[table.name]
        places = np.empty(table.num_rows, np.int64)
        expand_runs(firsts[table.name], runs[table.name][1], 1, places)
        return Arrangement(order, places, {"sampled": sampled, "appearance": appearances})

    return arrange, SamplingInfo(num_drawn_samples=num_drawn)


def check_sampled_order(tables: Sequence[RankedTable], num_samples: int, resources: Resources) -> None:
    """Raise ConfigError where `sampled_order` would refuse, before the log is read."""
    workers = threads_here(resources.workers)
    sizes = sorted((table.num_rows for table in tables), reverse=True)[:workers]
    # Peak memory of this order: the draw, every table's result, and the work of the largest tables.
    needed = num_samples + sum(table.num_rows for table in tables) * _BYTES_PER_ROW
    needed += sum(sizes) * _BYTES_PER_ROW_AT_WORK + lookup_bytes(tables, resources)
    room_for("rank --rank-by sampled", resources, needed, here=True)


def _order_table(
    table: RankedTable, columns: Manifest, counted: range, opened: OpenedParts, times: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return a table's rows in their new order, their sampled lookups, and their places by first lookup."""
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
    return order, sampled[order], appearances[order].astype(np.int64)


def category_order(table: RankedTable) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.integer]]:
    """Return the sort keys of a table's rows: missing first, oov last, then by category."""
    rows = np.zeros(table.num_rows, table.dtype)
    table.write_categories(rows)
    is_oov = np.zeros(rows.shape[0], np.bool_)
    is_not_missing = np.ones(rows.shape[0], np.bool_)
    is_oov[table.runs.oov_id] = True
    is_not_missing[table.runs.missing_id] = False
    return is_oov, is_not_missing, rows


def calibrate(
    mode: str, vocabulary: Manifest, row_bytes: Sequence[int], budget_bytes: int
) -> tuple[list[int], CalibrationInfo]:
    """Choose FAE's hot rows of each table; return how they were chosen, too.

    Args:
        mode: ``fae-paper``, a threshold whose upper estimate fits the budget, small tables whole; or
            ``fae-code``, the rows of most sampled lookups, all tables together, until the budget is full.
        vocabulary: by sampled counts.
        row_bytes: per table.
        budget_bytes: of all hot rows.

    Raises:
        ConfigError: the vocabulary is in another order, or the small tables exceed the budget.
    """
    totals = VocabularyTotals.of(vocabulary)
    if totals.rank_by != "sampled" or totals.sampling is None:
        raise ConfigError(
            f"mode {mode} needs ids by sampled counts, {vocabulary.folder} has them by {totals.rank_by}",
            hint=_rank_by_sample(vocabulary.folder.parent),
        )
    sampled = read_tables(vocabulary, "sampled")
    facts: dict[str, Any] = {}
    if mode == "fae-code":
        num_hot, _ = HotOrder(vocabulary, row_bytes).num_hot(budget_bytes)
    else:
        num_hot, facts = _by_threshold(vocabulary, sampled, row_bytes, budget_bytes)
    # Rows that are hot though the sample never met them: small tables are hot as a whole.
    never_seen = sum(
        int(np.count_nonzero(counts[:hot] == 0)) for counts, hot in zip(sampled, num_hot, strict=True)
    )
    info = CalibrationInfo(
        num_drawn_samples=totals.sampling.num_drawn_samples,
        num_unsampled_hot_rows=never_seen,
        hot_bytes=sum(hot * width for hot, width in zip(num_hot, row_bytes, strict=True)),
        **facts,
    )
    return num_hot, info


def _by_threshold(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], budget_bytes: int
) -> tuple[list[int], dict[str, Any]]:
    """Return the hot rows of each table above a threshold, and the facts about it in `CalibrationInfo`."""
    # Small tables are hot as a whole and leave the rest of the budget to the large ones.
    sizes = [counts.shape[0] * width for counts, width in zip(sampled, row_bytes, strict=True)]
    small = sum(size for size in sizes if size < LARGE_TABLE_BYTES)
    if small > budget_bytes:
        raise ConfigError(
            f"mode fae-paper keeps small tables whole: they take {format_byte_size(small)}, "
            f"hot_bytes is {format_byte_size(budget_bytes)}",
            hint=f"give --hot-bytes {small} or more",
        )
    profiled = _profile(vocabulary, sampled, row_bytes, sizes)
    threshold = find_threshold(list(profiled.values()), budget_bytes - small)
    num_hot = []
    num_covered = 0
    for number, counts in enumerate(sampled):
        if number not in profiled:
            num_hot.append(counts.shape[0])
            continue
        # Sampled counts fall with ids: the hot rows are those down to the cut-off.
        cut_off = profiled[number].cut_off(threshold)
        num_hot.append(int(np.searchsorted(-counts, -cut_off, side="right")))
        estimate = profiled[number].estimate(threshold)
        num_covered += estimate.low <= num_hot[-1] <= estimate.high
    # The estimate is of the large tables alone; the small ones add their exact bytes.
    estimated = estimate_bytes(list(profiled.values()), threshold)
    measured = sum(hot * width for hot, width in zip(num_hot, row_bytes, strict=True))
    ends = (estimated.low, estimated.middle, estimated.high)
    return num_hot, {
        "threshold": threshold,
        "num_large_tables": len(profiled),
        "num_covered_tables": num_covered,
        "estimated_bytes": tuple(round(small + end) for end in ends),
        "is_covered": small + estimated.low <= measured <= small + estimated.high,
    }


def _profile(
    vocabulary: Manifest, sampled: list[NDArray[np.int64]], row_bytes: Sequence[int], sizes: Sequence[int]
) -> dict[int, ProfiledTable]:
    """The large tables by number."""
    # The paper profiles counters in the order of first appearance, and ids are in the order of counts.
    adopted = VocabularyTotals.of(vocabulary).sampling
    if adopted is not None and adopted.sampling_rate is not None:
        rate, seed = adopted.sampling_rate, adopted.sampling_seed
    else:
        sampling = SamplingSettings.of(vocabulary)
        rate, seed = sampling.sampling_rate, sampling.sampling_seed
    counts = read_tables(vocabulary, "count")
    appearances = read_tables(vocabulary, "appearance")
    profiled = {}
    for number, table in enumerate(VocabularyTotals.of(vocabulary).tables):
        if sizes[number] >= LARGE_TABLE_BYTES:
            counters = np.empty_like(sampled[number])
            counters[_appearances(vocabulary, table, appearances[number])] = sampled[number]
            accesses = rate * int(counts[number].sum())
            profiled[number] = ProfiledTable.of(counters, row_bytes[number], accesses, seed + number)
    return profiled


def _appearances(vocabulary: Manifest, table: VocabularyTable, found: NDArray[np.int64]) -> NDArray[np.int64]:
    """(num_rows,), position of each row in the order of first appearance; checked, because it is an index."""
    if not is_permutation(found):
        raise ManifestError(
            f"{vocabulary.folder / table.name}.arrow: its positions in the order of first appearance are no "
            "order of its rows",
            hint=hint_to_rewrite(vocabulary.folder),
        )
    return found


def exact_hot_rows(
    vocabulary: Manifest, samples: Manifest, row_bytes: Sequence[int], budget_bytes: int, *, workers: int
) -> ExactHotRows:
    """Return what exact counts make hot with as many bytes."""
    counts = read_tables(vocabulary, "count")
    # Ids are ranks by sampled counts here, so the order by exact counts is computed here.
    orders = [np.argsort(-each, kind="stable") for each in counts]
    runs = [runs_of(each[order]) for each, order in zip(counts, orders, strict=True)]
    # As many bytes as the sampling used, so that the two differ in the choice alone.
    num_rows = sum(each.shape[0] for each in counts)
    rows_of = prefixes_of_runs(runs, row_bytes)
    num_hot, num_hot_rows = num_hot_of_tables(rows_of, num_rows, row_bytes, budget_bytes)
    levels: Levels = []
    for order, hot in zip(orders, num_hot, strict=True):
        level = np.ones(order.shape[0], np.uint8)
        level[order[:hot]] = 0
        levels.append(level)
    num_train = VocabularyTotals.of(vocabulary).num_train_samples
    (curve,) = hot_curves(samples, [levels], 1, num_train, Resources(workers=workers))
    return ExactHotRows(num_hot_rows=num_hot_rows, hot_samples=int(curve.samples[0]))


def _rank_by_sample(directory: Path) -> str:
    """Return the commands that give ids by sampled counts, and the one that does all of it."""
    path = shlex.quote(str(directory))
    return (
        f"`hotset rank {path} --rank-by sampled --redo && hotset encode {path}` first; "
        "hotset preprocess does both by itself with --mode"
    )
