"""What a preprocessed folder says of access frequencies, as plain data for tables, JSON and reports.

A series is one function of the opened folder that returns plain data: lists of flat dictionaries, so that any
of them is a table. `SERIES` names them all; a view asks for those it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.analysis.coverage import falling, rows_for_shares, top_shares
from ..errors import ConfigError, HotsetError, ManifestError
from ..folders.discard import is_discarded, refuse_discarded
from ..folders.leaks import find_leaks
from ..folders.manifest import Manifest, first_line
from ..formats.arrow_files import DAMAGE
from ..formats.tables import multi_hot
from ..hot_rows.hot_curve import HotCurve, Levels, hot_curves, levels_of_tables
from ..hot_rows.hot_order import HotOrder, read_tables, row_bytes_of
from ..runtime.tasks import ProgressCallback, silent
from ..sizes import GIB, MIB
from ..stages.pack import PackConfig
from .coverage_series import budgets_up_to, coverage
from .drift_series import drift
from .miss_ratio_series import miss_ratios
from .other_orders import counted_levels, peeled_levels, sampled_levels
from .unique_rows_series import unique_rows_by_batch_size

BUDGETS = tuple(int(size) for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB))
TOPS = (1, 10, 100, 1000)
BATCH_SIZES = tuple(1 << power for power in range(6, 17))
SHARES = (0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Inspected:
    """A folder that was preprocessed as far as its plan."""

    folder: Path
    vocabulary: Manifest
    samples: Manifest
    plan: Manifest
    num_parts: int | None
    """Of the drift; see `log_drift.parts_of_log`."""
    workers: int
    progress: ProgressCallback
    left_out: list[str]
    """What could not be found out, and why, a line each."""

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        num_parts: int | None = None,
        workers: int = 0,
        progress: ProgressCallback = silent,
    ) -> Inspected:
        """Raises ManifestError where a folder is missing, unfinished or was discarded."""
        vocabulary, samples, plan = (
            Manifest.read(folder / name) for name in ("vocabulary", "samples", "plan")
        )
        redo = "ingest" if is_discarded(folder / "columns") else "encode"
        refuse_discarded(folder / "samples", "stats", redo)
        return cls(folder, vocabulary, samples, plan, num_parts, workers, progress, [])

    @property
    def tables(self) -> list[dict[str, Any]]:
        """What the vocabulary says of each."""
        return list(self.vocabulary.totals["tables"])

    @property
    def num_train(self) -> int:
        """Training samples."""
        return int(self.vocabulary.totals["num_train_samples"])

    @cached_property
    def counts(self) -> list[NDArray[np.int64]]:
        """Per table (num_rows,), look-ups of each row in the training part, in the order of ids."""
        return read_row_counts(self.vocabulary)

    @cached_property
    def num_lookups(self) -> int:
        """Of the training part; of a model's where ids were adopted."""
        return sum(int(count.sum()) for count in self.counts)

    @cached_property
    def hot_order(self) -> HotOrder:
        """The order in which rows get fast memory."""
        return HotOrder(self.vocabulary, row_bytes_of(self.plan.totals))


def frequency_statistics(
    folder: Path,
    *,
    series: Sequence[str] | None = None,
    num_parts: int | None = None,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> dict[str, Any]:
    """Access frequencies of the training part of a preprocessed folder.

    Args:
        folder: preprocessed as far as its plan.
        series: names out of SERIES; None takes all.
        num_parts: parts of the training part whose hot sets are compared; None takes raw files, or 6.

    Returns:
        Totals; ``warnings`` and ``left_out``, a line each; ``batches``: hot_only and mixed, None before they
        are packed; and each series under its name, see `SERIES`.

    Raises:
        ConfigError: there is no such series.
        ManifestError: the folder has not been preprocessed as far as its plan, or is damaged.
    """
    wanted = list(SERIES) if series is None else list(series)
    for name in wanted:
        if name not in SERIES:
            raise ConfigError(f"no series {name!r}", hint=f"one of {', '.join(SERIES)}")
    try:
        inspected = Inspected.open(folder, num_parts=num_parts, workers=workers, progress=progress)
        found = {name: SERIES[name](inspected) for name in SERIES if name in wanted}
        return _totals(inspected) | {"left_out": inspected.left_out} | found
    except HotsetError:
        raise
    except DAMAGE as error:
        raise ManifestError(
            f"{folder} is damaged: {first_line(error)}", hint="hotset verify says which file"
        ) from error


def _totals(inspected: Inspected) -> dict[str, Any]:
    plan, vocabulary = inspected.plan, inspected.vocabulary
    return {
        "num_samples": inspected.samples.num_samples,
        "num_train_samples": inspected.num_train,
        "num_features": len(inspected.tables),
        "num_rows": vocabulary.totals["num_rows"],
        "embedding_dim": plan.config["embedding_dim"],
        "row_bytes": plan.totals["row_bytes"],
        "samples": plan.totals["samples"],
        "mode": plan.config.get("mode", "budget"),
        "num_hot_rows": plan.totals["num_hot_rows"],
        "calibration": plan.totals.get("calibration"),
        "batches": _batches(inspected.folder),
        "oov": _oov(inspected),
        "warnings": find_leaks(inspected.folder),
    }


def read_row_counts(vocabulary: Manifest) -> list[NDArray[np.int64]]:
    """Per table (num_rows,), look-ups of each row in the training part, in the order of ids; mapped."""
    return read_tables(vocabulary, "count")


def features(inspected: Inspected) -> list[dict[str, Any]]:
    """Per table: name, num_rows, num_lookups, top_share (of look-ups, by number of rows), rows_for_share."""
    return [_feature(table, count) for table, count in zip(inspected.tables, inspected.counts, strict=True)]


def _feature(table: dict[str, Any], counts: NDArray[np.int64]) -> dict[str, Any]:
    counts = falling(counts)
    rows = rows_for_shares(counts, SHARES)
    return {
        "name": table["name"],
        "num_rows": table["num_rows"],
        "num_lookups": int(counts.sum()),
        "top_share": dict(zip(map(str, TOPS), top_shares(counts, TOPS), strict=True)),
        "rows_for_share": dict(zip(map(str, SHARES), rows, strict=True)),
    }


def budgets(inspected: Inspected) -> list[dict[str, Any]]:
    """Per budget: bytes, num_hot_rows, hot_lookup_share, hot_sample_share, is_chosen (by the plan)."""
    chosen = int(inspected.plan.config["hot_bytes"])
    sizes = sorted({*BUDGETS, chosen})
    return [
        row | {"is_chosen": size == chosen}
        for row, size in zip(hot_by_budget(inspected, sizes), sizes, strict=True)
    ]


def hot_by_budget(inspected: Inspected, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """What is hot under each of the budgets, which rise: bytes, num_hot_rows and shares in [0, 1]."""
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
    progress, workers = inspected.progress, inspected.workers
    return hot_curves(
        inspected.samples, orders, num_budgets, inspected.num_train, workers=workers, progress=progress
    )


def _as_rows(
    inspected: Inspected, sizes: Sequence[int], curve: HotCurve, num_rows: Sequence[int]
) -> list[dict[str, Any]]:
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


def hot_samples(inspected: Inspected) -> list[dict[str, Any]]:
    """Per order and budget: order, and what `hot_by_budget` says.

    The first order is that of the folder's ids; the others are ``frequency``, ``peel`` where `peeled_levels`
    can be had (``left_out`` says why not), and ``fae``, which counts 5 % of the training samples.
    """
    own = str(inspected.vocabulary.totals.get("rank_by", "frequency"))
    widths, workers = row_bytes_of(inspected.plan.totals), inspected.workers
    sizes = budgets_up_to(
        sum(t["num_rows"] * width for t, width in zip(inspected.tables, widths, strict=True))
    )
    num_hot, _ = _prefixes(inspected, sizes)
    orders = {own: levels_of_tables(num_hot, inspected.tables)}
    if own != "frequency":
        orders["frequency"] = counted_levels(inspected.counts, widths, sizes)
    else:
        folder, vocabulary = inspected.folder, inspected.vocabulary
        peeled = peeled_levels(
            folder, vocabulary, widths, sizes, workers=workers, progress=inspected.progress
        )
        if isinstance(peeled, str):
            inspected.left_out.append(f"hot_samples by peeling: {peeled}")
        else:
            orders["peel"] = peeled
    if own != "sampled":
        num_train = inspected.num_train
        orders["fae"] = sampled_levels(inspected.samples, widths, sizes, num_train, workers=workers)
    curves = _curves(inspected, list(orders.values()), len(sizes))
    return [
        {"order": order} | row
        for (order, levels), curve in zip(orders.items(), curves, strict=True)
        for row in _as_rows(inspected, sizes, curve, _rows_by_level(levels, len(sizes)))
    ]


def _rows_by_level(levels: Levels, num_budgets: int) -> list[int]:
    """Hot rows under each budget."""
    found = sum(
        (np.bincount(level, minlength=num_budgets + 1) for level in levels),
        np.zeros(num_budgets + 1, np.int64),
    )
    return [int(rows) for rows in np.cumsum(found)[:num_budgets]]


def count_hot_samples(
    samples: Manifest, num_hot: NDArray[np.int64], num_train: int, workers: int, progress: ProgressCallback
) -> NDArray[np.int64]:
    """(num_budgets,): fully hot training samples where each table's first ``num_hot`` rows are hot."""
    levels = levels_of_tables(num_hot, samples.totals["tables"])
    (curve,) = hot_curves(samples, [levels], num_hot.shape[0], num_train, workers=workers, progress=progress)
    return curve.samples


def _coverage(inspected: Inspected) -> list[dict[str, Any]]:
    return coverage([table["name"] for table in inspected.tables], inspected.counts)


def _miss_ratios(inspected: Inspected) -> dict[str, Any]:
    batches = _batches(inspected.folder)
    return miss_ratios(
        inspected.vocabulary,
        inspected.samples,
        batches["batch_size"] if batches else PackConfig().batch_size,
        inspected.plan.totals["row_bytes"],
        workers=inspected.workers,
        progress=inspected.progress,
    )


def _unique_rows(inspected: Inspected) -> list[dict[str, Any]]:
    if not inspected.num_train:
        inspected.left_out.append("unique_rows: no sample of the log trains")
        return []
    lists = multi_hot(inspected.samples.totals["tables"])
    if lists:
        names = ", ".join(table["name"] for table in lists)
        inspected.left_out.append(f"unique_rows of list-valued features: {names}")
    return unique_rows_by_batch_size(inspected.folder, BATCH_SIZES)


def _drift(inspected: Inspected) -> dict[str, Any]:
    return drift(
        inspected.folder,
        int(inspected.plan.config["hot_bytes"]),
        num_parts=inspected.num_parts,
        workers=inspected.workers,
        progress=inspected.progress,
    )


def _batches(folder: Path) -> dict[str, Any] | None:
    try:
        shards = Manifest.read(folder / "shards")
    except ManifestError:
        if (folder / "shards" / "manifest.json").exists():
            raise
        return None
    return {key: shards.totals["batches"][key] for key in ("hot_only", "mixed", "evaluation")} | {
        "batch_size": shards.config["batch_size"]
    }


def _oov(inspected: Inspected) -> dict[str, Any]:
    """Look-ups of the oov rows; their share of the evaluation's is None where lists make those uncounted."""
    tables, num_evaluation = (
        inspected.samples.totals["tables"],
        inspected.samples.num_samples - inspected.num_train,
    )
    found = {key: sum(table[key] for table in tables) for key in ("oov_train", "oov_evaluation")}
    num_lookups = 0 if multi_hot(tables) else num_evaluation * len(tables)
    return found | {"evaluation_share": found["oov_evaluation"] / num_lookups if num_lookups else None}


SERIES: dict[str, Callable[[Inspected], Any]] = {
    "features": features,
    "budgets": budgets,
    "coverage": _coverage,
    "hot_samples": hot_samples,
    "miss_ratios": _miss_ratios,
    "unique_rows": _unique_rows,
    "drift": _drift,
}
"""Each series: what it says of a folder."""
QUICK = ("features", "budgets")
"""What a look in the terminal shows."""
