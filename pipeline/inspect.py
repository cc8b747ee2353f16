"""What a preprocessed folder says of access frequencies, as plain data for tables, JSON and reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.coverage import rows_for_shares, top_shares
from ..stats.hot_rows import count_by_prefix
from .arrow_files import DAMAGE, fixed_lists, read_batch
from .discard import is_discarded, refuse_discarded
from .encode import iterate_parts
from .errors import HotsetError, ManifestError
from .hot_order import HotOrder, read_tables, row_bytes_of
from .manifest import FileEntry, Manifest, first_line
from .sizes import GIB, MIB
from .tasks import ProgressCallback, run_tasks, silent

BUDGETS = tuple(int(size) for size in (MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB))
TOPS = (1, 10, 100, 1000)
SHARES = (0.8, 0.9, 0.95, 0.99)


def frequency_statistics(
    folder: Path, *, workers: int = 0, progress: ProgressCallback = silent
) -> dict[str, Any]:
    """Access frequencies of the training part of a preprocessed folder.

    Returns:
        ``features``: per table name, num_rows, num_lookups, top_share (share of look-ups by number of rows),
        rows_for_share; ``budgets``: bytes, num_hot_rows, hot_lookup_share, hot_sample_share, is_chosen;
        ``batches``: hot_only and mixed, None before they are packed; and totals.

    Raises:
        ManifestError: the folder has not been preprocessed as far as its plan, or is damaged.
    """
    try:
        return _statistics(folder, workers, progress)
    except HotsetError:
        raise
    except DAMAGE as error:
        raise ManifestError(
            f"{folder} is damaged: {first_line(error)}", hint="hotset verify says which file"
        ) from error


def _statistics(folder: Path, workers: int, progress: ProgressCallback) -> dict[str, Any]:
    vocabulary, samples, plan = (Manifest.read(folder / name) for name in ("vocabulary", "samples", "plan"))
    redo = "ingest" if is_discarded(folder / "columns") else "encode"
    refuse_discarded(samples.folder, "stats", redo)
    counts = read_row_counts(vocabulary)
    features = [
        _feature(table, count) for table, count in zip(vocabulary.totals["tables"], counts, strict=True)
    ]
    return {
        "num_samples": samples.num_samples,
        "num_train_samples": vocabulary.totals["num_train_samples"],
        "num_rows": vocabulary.totals["num_rows"],
        "embedding_dim": plan.config["embedding_dim"],
        "row_bytes": plan.totals["row_bytes"],
        "features": features,
        "budgets": _budgets(vocabulary, samples, plan, counts, workers, progress),
        "samples": plan.totals["samples"],
        "batches": _batches(folder),
        "oov": _oov(samples),
    }


def read_row_counts(vocabulary: Manifest) -> list[NDArray[np.int64]]:
    """Per table (num_rows,), look-ups of each row in the training part, in the order of ids; mapped."""
    return read_tables(vocabulary, "count")


def _feature(table: dict[str, Any], counts: NDArray[np.int64]) -> dict[str, Any]:
    rows = rows_for_shares(counts, SHARES)
    return {
        "name": table["name"],
        "num_rows": table["num_rows"],
        "num_lookups": int(counts.sum()),
        "top_share": dict(zip(map(str, TOPS), top_shares(counts, TOPS), strict=True)),
        "rows_for_share": dict(zip(map(str, SHARES), rows, strict=True)),
    }


def _budgets(
    vocabulary: Manifest,
    samples: Manifest,
    plan: Manifest,
    counts: Sequence[NDArray[np.int64]],
    workers: int,
    progress: ProgressCallback,
) -> list[dict[str, Any]]:
    chosen = int(plan.config["hot_bytes"])
    budgets = sorted({*BUDGETS, chosen})
    order = HotOrder(vocabulary, row_bytes_of(plan.totals))
    found = [order.num_hot(budget) for budget in budgets]
    num_hot = np.array([hot for hot, _ in found], np.int64)
    num_train = vocabulary.totals["num_train_samples"]
    hot_samples = count_hot_samples(samples, num_hot, num_train, workers, progress)
    num_lookups = max(1, sum(int(count.sum()) for count in counts))
    return [
        {
            "bytes": budget,
            "num_hot_rows": rows,
            "hot_lookup_share": sum(int(c[:n].sum()) for c, n in zip(counts, hot, strict=True)) / num_lookups,
            "hot_sample_share": int(hot_samples[position]) / max(1, num_train),
            "is_chosen": budget == chosen,
        }
        for position, (budget, (hot, rows)) in enumerate(zip(budgets, found, strict=True))
    ]


def count_hot_samples(
    samples: Manifest, num_hot: NDArray[np.int64], num_train: int, workers: int, progress: ProgressCallback
) -> NDArray[np.int64]:
    """(num_budgets,): fully hot training samples under each budget, in one pass over the ids."""
    total, done = np.zeros(num_hot.shape[0], np.int64), 0
    tasks = (
        (entry, num_train - first, samples, num_hot)
        for first, entry in iterate_parts(samples)
        if first < num_train
    )
    for hot_samples in run_tasks(_count_part, tasks, workers=workers):
        total += hot_samples
        done += 1
        progress("stats", done, len(samples.files))
    return np.cumsum(total)


def _count_part(
    entry: FileEntry, num_train: int, samples: Manifest, num_hot: NDArray[np.int64]
) -> NDArray[np.int64]:
    ids = fixed_lists(read_batch(samples, entry).column("ids"), num_hot.shape[1], np.int32)
    hot_lookups, hot_samples = np.zeros(num_hot.shape[0], np.int64), np.zeros(num_hot.shape[0], np.int64)
    count_by_prefix(ids[:num_train], num_hot, hot_lookups, hot_samples)
    return hot_samples


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


def _oov(samples: Manifest) -> dict[str, int]:
    tables = samples.totals["tables"]
    return {key: sum(table[key] for table in tables) for key in ("oov_train", "oov_evaluation")}
