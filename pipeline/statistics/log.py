"""Labels, missing values and dense values of a log.

One pass reads columns/ and the tags of plan/. Memory is a histogram of 512 KiB per worker and some kilobytes
per feature, whatever the number of samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.value_summary import NUM_BINS, ValueSummary
from ..folders.disk import is_discarded
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import ColumnsTotals
from ..formats.arrow_files import offsets_of, read_batch, validity_of, values_of
from ..runtime.tasks import run_tasks, thread_buffer
from .drift import LogPart, parts_of_log
from .folder import Inspected, Row

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
KINDS = ("hot", "mixed", "evaluation")
"""Kinds of samples, by number."""


def log_series(inspected: Inspected) -> dict[str, Any]:
    """Summarize labels, missing values and dense values of the log.

    Returns:
        ``labels``: per kind of samples (hot, mixed, evaluation) num_samples, num_clicks, label_rate.
        ``parts``: the same per part of the log, as drift divides it, with its name and is_training.
        ``missing``: per feature its type (dense, sparse or list), the missing_share of the training part and
        evaluation_missing_share, label_rate_missing and label_rate_present of training samples; a list
        without elements, or of missing ones alone, counts as missing.
        ``dense``: per dense feature of the training part transform, num_values, missing_share, zero_share and
        negative_share (of the values), clamped_share (values that the transform makes 0), min, max, mean, and
        quantiles, see `ValueSummary.quantiles`.
        ``dense_bins``: values of each from one power of two up to the next.
        Shares and rates are in [0, 1], None of nothing. All are empty where columns/ was discarded, and
        clicks None without labels.
    """
    columns = Manifest.read(inspected.folder / "columns")
    if is_discarded(columns.folder):
        inspected.left_out.append(
            "labels, missing values and dense features: the columns were discarded "
            "(hotset preprocess without --shards-only keeps them)"
        )
        return {"labels": [], "parts": [], "missing": [], "dense": [], "dense_bins": []}
    parts = parts_of_log(columns, inspected.num_train, inspected.num_parts)
    sums = _sum_log(columns, inspected, parts)
    # Without labels no number of clicks is right, so -1 means none.
    log = ColumnsTotals.of(columns)
    labels = sums.labels if log.has_label else np.full_like(sums.labels, -1)
    of_parts = sums.parts if log.has_label else np.full_like(sums.parts, -1)
    return {
        "labels": [
            {"kind": kind, **_label_row(int(num), int(clicks))}
            for kind, num, clicks in zip(KINDS, sums.kinds, labels, strict=True)
        ],
        "parts": [
            {
                "part": part.name,
                "is_training": part.is_training,
                **_label_row(part.num_samples, int(clicks)),
            }
            for part, clicks in zip(parts, of_parts, strict=True)
        ],
        "missing": list(_missing(log, sums)),
        "dense": [_dense(log, name, of, sums) for name, of in zip(log.dense, sums.dense, strict=True)],
        "dense_bins": [
            {"feature": name, "low": low, "high": high, "num_values": number}
            for name, of in zip(log.dense, sums.dense, strict=True)
            for low, high, number in of.by_power_of_two()
        ],
    }


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over some files of a log."""

    kinds: NDArray[np.int64]
    """(3,), samples by KINDS."""
    labels: NDArray[np.int64]
    """(3,), clicks of them."""
    parts: NDArray[np.int64]
    """(num_parts,), clicks of the parts of the log."""
    missing: NDArray[np.int64]
    """(num_features, 2), samples without a value, training and evaluation."""
    missing_clicks: NDArray[np.int64]
    """(num_features,), clicks of those for training."""
    dense: list[ValueSummary]
    """Summary of each dense feature in the training part."""

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.kinds + other.kinds,
            self.labels + other.labels,
            self.parts + other.parts,
            self.missing + other.missing,
            self.missing_clicks + other.missing_clicks,
            [mine + more for mine, more in zip(self.dense, other.dense, strict=True)],
        )


def _sum_log(columns: Manifest, inspected: Inspected, parts: Sequence[LogPart]) -> _Sums:
    """Sum over all files, in their order."""
    # Parts of the log are ranges of samples, in any files.
    bounds = [part.first for part in parts] + [columns.num_samples]
    tasks = (
        (columns, inspected.plan, entry, first, inspected.num_train, bounds)
        for first, entry in columns.parts()
    )
    total = _nothing(ColumnsTotals.of(columns), len(parts))
    done = 0
    for num_samples, found in run_tasks(_sum_file, tasks, workers=inspected.resources.workers):
        total += found
        done += num_samples
        inspected.resources.progress("log", done, columns.num_samples)
    return total


def _nothing(log: ColumnsTotals, num_parts: int) -> _Sums:
    num_features = len(log.dense) + len(log.sparse)
    # Sums are filled in place, so no two of them may share an array.
    three = np.zeros(3, np.int64)
    return _Sums(
        three,
        three.copy(),
        np.zeros(num_parts, np.int64),
        np.zeros((num_features, 2), np.int64),
        np.zeros(num_features, np.int64),
        [ValueSummary.nothing() for _ in log.dense],
    )


def _sum_file(
    columns: Manifest, plan: Manifest, entry: FileEntry, first: int, num_train: int, bounds: list[int]
) -> tuple[int, _Sums]:
    """Sum over one file, whose first sample is ``first``."""
    log = ColumnsTotals.of(columns)
    batch = read_batch(columns, entry)
    sums = _nothing(log, len(bounds) - 1)
    num_samples = entry.num_samples
    # Training samples are the first of the log, and may end within this file; without labels no click counts.
    num_own = min(max(num_train - first, 0), num_samples)
    label = values_of(batch.column("label"), np.uint8) if log.has_label else np.zeros(num_samples, np.uint8)

    # Samples and clicks by kind, and clicks by part of the log.
    is_hot = values_of(read_batch(plan, plan.entry(entry.path)).column("is_hot"), np.uint8)
    kind = np.where(is_hot != 0, 0, 1)
    kind[num_own:] = 2
    sums.kinds[:] = np.bincount(kind, minlength=3)
    sums.labels[:] = np.bincount(kind[label != 0], minlength=3)
    # Clicks of a part are the difference of a running sum at its two ends within this file.
    starts = np.clip(np.array(bounds) - first, 0, num_samples)
    clicks_up_to = np.concatenate([[0], np.cumsum(label, dtype=np.int64)])
    sums.parts[:] = np.diff(clicks_up_to[starts])

    # Missing values of every feature; dense ones are summarized, too.
    for feature, name in enumerate(chain(log.dense, log.sparse)):
        column = batch.column(name)
        is_missing = _missing_samples(column, name in log.lists)
        if is_missing is not None:
            sums.missing[feature] = (
                np.count_nonzero(is_missing[:num_own]),
                np.count_nonzero(is_missing[num_own:]),
            )
            sums.missing_clicks[feature] = np.count_nonzero(is_missing[:num_own] & (label[:num_own] != 0))
        if feature < len(log.dense):
            values = values_of(column, np.float64 if name in log.floats else np.int32)[:num_own]
            room = thread_buffer("value histogram", (NUM_BINS,), np.int64)
            sums.dense[feature] = ValueSummary.of(values, validity_of(column), room)
    return num_samples, sums


def _missing_samples(column: pa.Array, is_list: bool) -> NDArray[np.bool_] | None:
    """Return (num_samples,) whether a value is missing; None where none is."""
    values = column.values if is_list else column
    validity = validity_of(values)
    if not is_list:
        return None if not validity.shape[0] else ~_as_bools(validity, len(values))
    is_valid = _as_bools(validity, len(values)) if validity.shape[0] else np.ones(len(values), np.bool_)
    # A list is missing where no element between its offsets is there, none at all included.
    valid_up_to = np.concatenate([[0], np.cumsum(is_valid)])[offsets_of(column)]
    is_missing: NDArray[np.bool_] = np.diff(valid_up_to) == 0
    return is_missing


def _as_bools(bitmap: NDArray[np.uint8], length: int) -> NDArray[np.bool_]:
    return np.unpackbits(bitmap, count=length, bitorder="little").astype(np.bool_)


def _label_row(num_samples: int, num_clicks: int) -> Row:
    """Return samples, clicks and label rate; -1 clicks mean no labels."""
    if num_clicks < 0:
        return {"num_samples": num_samples, "num_clicks": None, "label_rate": None}
    return {
        "num_samples": num_samples,
        "num_clicks": num_clicks,
        "label_rate": _share(num_clicks, num_samples),
    }


def _share(part: float, whole: int) -> float | None:
    return float(part) / whole if whole else None


def _missing(log: ColumnsTotals, sums: _Sums) -> Iterator[Row]:
    # Rates are of training samples: the evaluation part is not looked at before it is scored.
    num_train = int(sums.kinds[:2].sum())
    clicks = int(sums.labels[:2].sum())
    for feature, name in enumerate(chain(log.dense, log.sparse)):
        kind = "dense" if feature < len(log.dense) else "list" if name in log.lists else "sparse"
        train, evaluation = sums.missing[feature].tolist()
        clicked = int(sums.missing_clicks[feature])
        yield {
            "feature": name,
            "type": kind,
            "missing_share": _share(train, num_train),
            "evaluation_missing_share": _share(evaluation, int(sums.kinds[2])),
            "label_rate_missing": _share(clicked, train) if log.has_label else None,
            "label_rate_present": _share(clicks - clicked, num_train - train) if log.has_label else None,
        }


def _dense(log: ColumnsTotals, name: str, of: ValueSummary, sums: _Sums) -> Row:
    num_values, num_zero, num_negative = of.counts.tolist()
    # Only log1p makes negative values 0; other features keep them.
    transform = "none" if name in log.untransformed else "log1p"
    total, low, high = of.numbers.tolist()
    # A column without values has no quantiles, but its row has their places.
    quantiles: list[float | None] = [*of.quantiles(QUANTILES)] or [None] * len(QUANTILES)
    num_train = int(sums.kinds[:2].sum())
    return {
        "feature": name,
        "type": "float" if name in log.floats else "integer",
        "transform": transform,
        "num_values": num_values,
        "missing_share": _share(num_train - num_values, num_train),
        "zero_share": _share(num_zero, num_values),
        "negative_share": _share(num_negative, num_values),
        "clamped_share": _share(num_negative if transform == "log1p" else 0, num_values),
        "min": low if num_values else None,
        "max": high if num_values else None,
        "mean": _share(total, num_values),
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
    }
