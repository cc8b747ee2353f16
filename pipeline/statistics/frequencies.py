"""Access frequencies of a preprocessed folder, as plain data.

Tables, JSON and reports are made from them. A series is one function of the opened folder that returns lists
of flat dictionaries, so any of them is a table. `SERIES` names them all; a view requests those it shows. The
series of the most looked-up categories adds the label rate of their samples, in one pass over samples/ and
the labels of columns/ and two bytes per row.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.curves import falling, most_frequent, rows_for_shares, top_shares
from ..errors import (
    ConfigError,
    HotsetError,
    ManifestError,
    SystemFaultError,
    first_line,
    format_byte_size,
    raise_system_fault,
)
from ..folders.disk import is_discarded
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import (
    ColumnsTotals,
    PlanSettings,
    PlanTotals,
    SamplesTotals,
    ShardSettings,
    ShardsTotals,
    VocabularyTable,
    VocabularyTotals,
    by_feature,
    multi_hot,
)
from ..formats.arrow_files import DAMAGE, clicks_and_gaps, read_batch
from ..formats.ids import read_lookups
from ..runtime.limits import available_bytes
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, run_tasks
from ..schema.schema import LABEL
from .coverage import budgets, coverage, hot_samples, hot_tables, unique_rows
from .folder import Inspected, Row, find_leaks, open_table, provenance, read_shards
from .log import drift, log_series
from .traffic import EPOCH_LOOKUPS, default_runs, miss_ratios

NUM_CATEGORIES = 8
"""Categories of a table."""


def top_categories(inspected: Inspected) -> list[Row]:
    """Return the categories of each table with the most lookups.

    Returns:
        ``table``, ``id``, ``category`` (as the log writes it; (missing) and (oov) are rows, too),
        num_lookups, lookup_share (of the table's) and is_hot, from the counts; and ``label_rate``, the share
        of the category's lookups in the training part that a clicked sample made, of those by samples with a
        label: None without labels or lookups, or where columns/ was discarded. Shares are in [0, 1].
    """
    # The first ids are not always the most frequent rows: other orders, merged categories and missing values
    # stand between.
    most = [most_frequent(counts, NUM_CATEGORIES) for counts in inspected.counts]
    chosen = [ids[counts[ids] > 0] for ids, counts in zip(most, inspected.counts, strict=True)]
    rates = _label_rates(inspected, chosen)
    found: list[Row] = []
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
            (columns, inspected.samples, entry, num_own, slots)
            for _, entry, num_own in inspected.train_parts()
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
    """Count lookups and clicks of the chosen rows in one file."""
    column = read_batch(columns, columns.entry(entry.path)).column(LABEL)
    labels = clicks_and_gaps(column)[:, :num_own]
    tables = read_lookups(samples, entry, 0, num_own)
    lookups: list[NDArray[np.int64]] = []
    clicks: list[NDArray[np.int64]] = []
    for table, slot_of_row in zip(tables, slots, strict=True):
        # One sum for each chosen row, found by its slot; all other rows have the slot -1.
        slots_N = slot_of_row[table.ids]
        of_lookups = np.repeat(labels, np.diff(table.offsets), axis=1) if table.offsets.size else labels
        clicks_N, lacks_label_N = of_lookups
        is_chosen = (slots_N >= 0) & ~lacks_label_N
        num_slots = int(slot_of_row.max(initial=-1)) + 1
        lookups.append(np.bincount(slots_N[is_chosen], minlength=num_slots))
        clicks.append(np.bincount(slots_N[is_chosen], clicks_N[is_chosen], num_slots).astype(np.int64))
    return lookups, clicks


TOPS = (1, 10, 100, 1000)
SHARES = (0.8, 0.9, 0.95, 0.99)
_ROW_BYTES = 24
"""Memory that the series of the shuffled order take at least for each row."""
_LOOKUP_BYTES = 16
"""Memory that they take at least for each lookup of a trace. 4 M samples of 4 M rows took 460 MiB, where
these two add up to 349 MiB."""


def frequency_statistics(
    folder: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    series: Sequence[str] | None = None,
    num_parts: int | None = None,
) -> dict[str, Any]:
    """Access frequencies of the training part of a preprocessed folder.

    Args:
        folder: preprocessed as far as its plan.
        series: names out of SERIES; None takes all.
        num_parts: parts of the training part whose hot sets are compared; None takes raw files, or 6.

    Returns:
        ``provenance``, see there; num_samples, num_train_samples, num_features, num_tables, num_rows,
        embedding_dim, row_bytes, mode, num_hot_rows; ``samples``: hot, mixed, evaluation, evaluation_hot;
        ``calibration``, the plan's record of FAE's sampling, or None; ``batches``: hot_only, mixed,
        evaluation, batch_size, or None before they are packed; ``oov``: oov_train, oov_evaluation,
        evaluation_share; ``warnings`` and ``left_out``, a line each; and each series under its name, see
        `SERIES`.

    Raises:
        ConfigError: there is no such series.
        ManifestError: the folder has not been preprocessed as far as its plan, or is damaged.
    """
    # Names are refused before anything is read.
    wanted = list(SERIES) if series is None else list(series)
    for name in wanted:
        if name not in SERIES:
            raise ConfigError(f"no series {name!r}", hint=f"use one of {', '.join(SERIES)}")
    try:
        # Compute series in the order of SERIES, not in the requested one: the output does not depend on
        # it.
        inspected = Inspected.open(folder, resources, num_parts=num_parts)
        if not set(wanted) <= set(QUICK):
            _check_memory(inspected)
        found = {name: SERIES[name](inspected) for name in SERIES if name in wanted}
        totals = _totals(inspected)
        return {**totals, "left_out": inspected.left_out, **found}
    # Our own errors are some of DAMAGE's types, and name their file already.
    except HotsetError:
        raise
    except DAMAGE as error:
        raise_system_fault(folder, error)
        raise ManifestError(
            f"{folder} is damaged: {first_line(error)}",
            hint=f"`hotset verify {shlex.quote(str(folder))}` reports which file",
        ) from error


def _check_memory(inspected: Inspected) -> None:
    """Raise SystemFaultError where memory cannot suffice.

    Libraries that cannot start a thread for want of memory end the process without a message.
    """
    num_rows = VocabularyTotals.of(inspected.vocabulary).num_rows
    num_lookups = min(inspected.num_train * len(by_feature(inspected.tables)), EPOCH_LOOKUPS)
    # An estimate from below: what the largest arrays take together.
    needed = _ROW_BYTES * num_rows + _LOOKUP_BYTES * num_lookups
    free = available_bytes()
    if free is not None and free < needed:
        raise SystemFaultError(
            f"{inspected.folder}: statistics of {num_rows:,} rows and {num_lookups:,} lookups take at least "
            f"{format_byte_size(needed)} of memory, {format_byte_size(free)} are free",
            hint=f"free memory, raise the limit `ulimit -v`, or ask for less: `--series {' '.join(QUICK)}`",
        )


def _totals(inspected: Inspected) -> dict[str, Any]:
    plan = inspected.plan
    totals = PlanTotals.of(plan)
    settings = PlanSettings.of(plan)
    calibration = totals.calibration
    return {
        "provenance": provenance(inspected.folder),
        "num_samples": inspected.samples.num_samples,
        "num_train_samples": inspected.num_train,
        "num_features": len(by_feature(inspected.tables)),
        "num_tables": len(inspected.tables),
        "num_rows": VocabularyTotals.of(inspected.vocabulary).num_rows,
        "embedding_dim": settings.embedding_dim,
        "row_bytes": totals.row_bytes,
        "samples": totals.samples.to_json(),
        "mode": settings.mode,
        "num_hot_rows": totals.num_hot_rows,
        "calibration": None if calibration is None else calibration.to_json(),
        "batches": _batches(inspected.folder),
        "oov": _oov(inspected),
        "warnings": find_leaks(inspected.folder),
    }


def features(inspected: Inspected) -> list[Row]:
    """Return name, num_rows, num_lookups and skew of each table.

    ``top_share`` has the share of lookups by number of top rows, ``rows_for_share`` these rows by share.
    """
    return [_feature(table, count) for table, count in zip(inspected.tables, inspected.counts, strict=True)]


def _feature(table: VocabularyTable, counts: NDArray[np.int64]) -> Row:
    counts = falling(counts)
    rows = rows_for_shares(counts, SHARES)
    return {
        "name": table.name,
        "num_rows": table.num_rows,
        "num_lookups": int(counts.sum()),
        "top_share": dict(zip(map(str, TOPS), top_shares(counts, TOPS), strict=True)),
        "rows_for_share": dict(zip(map(str, SHARES), rows, strict=True)),
    }


def _batches(folder: Path) -> dict[str, Any] | None:
    shards = read_shards(folder)
    if shards is None:
        return None
    return ShardsTotals.of(shards).batches.to_json() | {"batch_size": ShardSettings.of(shards).batch_size}


def _oov(inspected: Inspected) -> dict[str, Any]:
    """Count lookups of oov rows; with lists, evaluation_share is None."""
    tables = SamplesTotals.of(inspected.samples).tables
    num_evaluation = inspected.samples.num_samples - inspected.num_train
    oov_evaluation = sum(table.oov_evaluation for table in tables)
    # How many lookups a list has in the evaluation part is not recorded, so there is nothing to divide by.
    num_lookups = 0 if multi_hot(tables) else num_evaluation * len(tables)
    return {
        "oov_train": sum(table.oov_train for table in tables),
        "oov_evaluation": oov_evaluation,
        "evaluation_share": oov_evaluation / num_lookups if num_lookups else None,
    }


SERIES: dict[str, Callable[[Inspected], object]] = {
    "features": features,
    "budgets": budgets,
    "coverage": coverage,
    "hot_samples": hot_samples,
    "miss_ratios": miss_ratios,
    "default_runs": default_runs,
    "unique_rows": unique_rows,
    "drift": drift,
    "hot_tables": hot_tables,
    "log": log_series,
    "categories": top_categories,
}
"""Each series: what it says of a folder."""
QUICK = ("features", "budgets")
"""The series that the terminal shows by default."""
