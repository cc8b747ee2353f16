"""Labels, missing values and dense values of a log, and how long its hot rows stay hot.

For the values one pass reads columns/ and the tags of plan/. Memory is a histogram of 512 KiB per worker and
some kilobytes per feature, whatever the number of samples.

Drift is how a part's hot set serves later parts. A part is a raw file or a time window. Two passes over
samples/: the first counts each training part and marks its hot rows, the second measures all those hot sets
on all parts. Memory is six bytes per row with up to seven parts, whatever the number of samples; threads
share it. Parts of the evaluation choose no hot set, because their categories without an id share a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, SupportsInt

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.drift import (
    MAX_PARTS,
    NUM_BINS,
    ValueSummary,
    count_bits,
    count_common,
    count_rows,
    cut_evenly,
    judge_lookups,
    mark_part,
    marks_dtype,
    mean_by_age,
)
from ...stats.kernel import read_only
from ..errors import ConfigError
from ..folders.disk import is_discarded
from ..folders.manifest import FileEntry, Manifest
from ..folders.totals import ColumnsTotals, PlanSettings, PlanTotals
from ..formats.arrow_files import clicks_and_gaps, offsets_of, read_batch, validity_of, values_of
from ..formats.ids import TableLookups, read_lookups
from ..runtime.tasks import Resources, num_workers, run_tasks, thread_buffer
from ..schema.schema import LABEL, label_column
from .folder import Inspected, Row, share_of

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
KINDS = ("hot", "mixed", "evaluation")
"""Kinds of samples, by number."""


def log_series(inspected: Inspected) -> dict[str, Any]:
    """Summarize labels, missing values and dense values of the log.

    Returns:
        ``labels``: per kind of samples (hot, mixed, evaluation) num_samples, num_clicks, label_rate.
        ``label_rates``, only where the schema has ``labels``: per label, called as in the log, and kind of
        samples num_samples, num_missing, num_clicks, label_rate.
        ``parts``: the same per part of the log, as drift divides it, with its name and is_training.
        ``missing``: per feature its type (dense, sparse or list), the missing_share of the training part and
        evaluation_missing_share, label_rate_missing and label_rate_present of training samples; a list
        without elements, or of missing ones alone, counts as missing.
        ``dense``: per dense feature of the training part transform, num_values, missing_share, zero_share and
        negative_share (of the values), clamped_share (values that the transform makes 0), min, max, mean, and
        quantiles, see `ValueSummary.quantiles`.
        ``dense_bins``: values of each from one power of two up to the next.
        Shares and rates are in [0, 1], None of nothing. Rates are of the samples that have the label; clicks
        and all rates but ``label_rates`` are of the first label. All are empty where columns/ was
        discarded, and clicks None without labels.
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
    rates = [
        {"label": name, "kind": kind, "num_missing": int(lacking), **_label_row(num, clicks, lacking)}
        for name, of_label in zip(log.labels, labels, strict=False)
        for kind, num, (clicks, lacking) in zip(KINDS, sums.kinds, of_label, strict=True)
    ]
    return {
        "labels": [
            {"kind": kind, **_label_row(num, *counts)}
            for kind, num, counts in zip(KINDS, sums.kinds, labels[0], strict=True)
        ],
        **({"label_rates": rates} if rates else {}),
        "parts": [
            {"part": part.name, "is_training": part.is_training, **_label_row(part.num_samples, *counts)}
            for part, counts in zip(parts, of_parts, strict=True)
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
    """(num_labels, 3, 2), clicks and missing labels of them; of one label at least."""
    parts: NDArray[np.int64]
    """(num_parts, 2), clicks and missing labels of the parts of the log, of the first label as below."""
    missing: NDArray[np.int64]
    """(num_features, 2), samples without a value, training and evaluation."""
    missing_clicks: NDArray[np.int64]
    """(num_features, 2), clicks and missing labels of those for training."""
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
    total = None
    for found in run_tasks(_sum_file, tasks, workers=inspected.resources.workers):
        total = found if total is None else total + found
        inspected.resources.progress("log", int(total.kinds.sum()), columns.num_samples)
    assert total is not None, "a log without parts"
    return total


def _sum_file(
    columns: Manifest, plan: Manifest, entry: FileEntry, first: int, num_train: int, bounds: list[int]
) -> _Sums:
    """Sum over one file, whose first sample is ``first``."""
    log = ColumnsTotals.of(columns)
    batch = read_batch(columns, entry)
    num_samples = entry.num_samples
    # Training samples are the first of the log, and may end within this file; without labels no click counts.
    num_own = min(max(num_train - first, 0), num_samples)
    names = [LABEL, *map(label_column, log.labels[1:])] if log.has_label else []
    no_label = np.zeros((2, num_samples), np.bool_)
    labels = [clicks_and_gaps(batch.column(name)) for name in names] or [no_label]

    # Samples and clicks by kind, and clicks by part of the log.
    is_hot = values_of(read_batch(plan, plan.entry(entry.path)).column("is_hot"), np.uint8)
    kind = np.where(is_hot != 0, 0, 1)
    kind[num_own:] = 2
    # Clicks of a part are the difference of a running sum at its two ends within this file.
    starts = np.clip(np.array(bounds) - first, 0, num_samples)
    up_to = np.zeros((num_samples + 1, 2), np.int64)
    np.cumsum(labels[0].T, axis=0, out=up_to[1:])
    # Missing values of every feature; dense ones are summarized, too.
    missing = np.zeros((len(log.dense) + len(log.sparse), 2), np.int64)
    missing_clicks = np.zeros((len(missing), 2), np.int64)
    dense: list[ValueSummary] = []
    for feature, name in enumerate(chain(log.dense, log.sparse)):
        column = batch.column(name)
        is_missing = _missing_samples(column, name in log.lists)
        if is_missing is not None:
            missing[feature] = (
                np.count_nonzero(is_missing[:num_own]),
                np.count_nonzero(is_missing[num_own:]),
            )
            missing_clicks[feature] = np.count_nonzero((is_missing & labels[0])[:, :num_own], axis=1)
        if feature < len(log.dense):
            values = values_of(column, np.float64 if name in log.floats else np.int32)[:num_own]
            room = thread_buffer("value histogram", (NUM_BINS,), np.int64)
            dense.append(ValueSummary.of(values, validity_of(column), room))
    return _Sums(
        kinds=np.bincount(kind, minlength=3),
        labels=np.array(
            [[np.count_nonzero(each[:, kind == of], axis=1) for of in range(3)] for each in labels]
        ),
        parts=np.diff(up_to[starts], axis=0),
        missing=missing,
        missing_clicks=missing_clicks,
        dense=dense,
    )


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


def _label_row(num_samples: SupportsInt, num_clicks: SupportsInt, num_missing: SupportsInt) -> Row:
    """Return samples, clicks and the label rate of those that have the label; -1 clicks mean no labels."""
    found = int(num_samples), int(num_clicks)
    if found[1] < 0:
        return {"num_samples": found[0], "num_clicks": None, "label_rate": None}
    rate = share_of(found[1], found[0] - int(num_missing))
    return {"num_samples": found[0], "num_clicks": found[1], "label_rate": rate}


def _missing(log: ColumnsTotals, sums: _Sums) -> Iterator[Row]:
    # Rates are of training samples: the evaluation part is not looked at before it is scored.
    num_train = int(sums.kinds[:2].sum())
    clicks, lacking = sums.labels[0, :2].sum(axis=0).tolist()
    for feature, name in enumerate(chain(log.dense, log.sparse)):
        kind = "dense" if feature < len(log.dense) else "list" if name in log.lists else "sparse"
        train, evaluation = sums.missing[feature].tolist()
        clicked, lacks_both = sums.missing_clicks[feature].tolist()
        num_present = num_train - train - (lacking - lacks_both)
        yield {
            "feature": name,
            "type": kind,
            "missing_share": share_of(train, num_train),
            "evaluation_missing_share": share_of(evaluation, int(sums.kinds[2])),
            "label_rate_missing": share_of(clicked, train - lacks_both) if log.has_label else None,
            "label_rate_present": share_of(clicks - clicked, num_present) if log.has_label else None,
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
        "missing_share": share_of(num_train - num_values, num_train),
        "zero_share": share_of(num_zero, num_values),
        "negative_share": share_of(num_negative, num_values),
        "clamped_share": share_of(num_negative if transform == "log1p" else 0, num_values),
        "min": low if num_values else None,
        "max": high if num_values else None,
        "mean": share_of(total, num_values),
        "quantiles": dict(zip(map(str, QUANTILES), quantiles, strict=True)),
    }


DEFAULT_PARTS = 6
"""Where the log is one file; with the usual seventh for evaluation all parts are as long."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """A time window of the log, for training or for evaluation."""

    name: str
    first: int
    stop: int
    is_training: bool

    @property
    def num_samples(self) -> int:
        """Samples of the window."""
        return self.stop - self.first


def parts_of_log(columns: Manifest, num_train: int, num_parts: int | None) -> list[LogPart]:
    """Return the parts of a log: its raw files, or equal windows.

    Of more files than a row has marks for, each part is a run of as many files.

    Args:
        columns: what the log became; its files may be discarded.
        num_train: training samples; a raw file of both kinds becomes two parts.
        num_parts: windows of the training part whatever the files; None takes files, or 6.

    Raises:
        ConfigError: ``num_parts`` is more than a row has marks for, or than samples.
    """
    # A log of several files, days perhaps, is compared file by file; a single one in equal windows.
    raw = ColumnsTotals.of(columns).raw
    if num_parts is None and len(raw) > 1:
        firsts = np.cumsum([0, *(log.num_samples for log in raw)]).tolist()
        names = _distinct([log.name for log in raw])
        # One part less than there are marks for, because the end of the training part may cut one in two.
        size = -(-len(raw) // (MAX_PARTS - 2))
        bounds = [(place, min(place + size, len(raw))) for place in range(0, len(raw), size)]
        # A run of files is named by the first and the last of them.
        named = [
            (" to ".join(dict.fromkeys((names[place], names[stop - 1]))), (firsts[place], firsts[stop]))
            for place, stop in bounds
        ]
    else:
        wanted = min(DEFAULT_PARTS, num_train) if num_parts is None else num_parts
        if num_parts is not None and not 1 <= num_parts <= num_train:
            raise ConfigError(f"{num_parts} parts of {num_train} training samples: want 1 to {num_train}")
        ends = list(pairwise(cut_evenly(num_train, max(1, wanted))))
        named = [(f"part {number}", end) for number, end in enumerate(ends, 1)]
        named.append(("evaluation", (num_train, columns.num_samples)))
    # A part that crosses the end of the training part becomes two.
    parts = [part for name, ends in named for part in _cut(name, *ends, num_train) if part.num_samples]
    num_sets = sum(part.is_training for part in parts)
    if num_sets >= MAX_PARTS:
        raise ConfigError(
            f"{num_sets} parts for training: want {MAX_PARTS - 1} at most", hint="give --parts 6"
        )
    return parts


def _distinct(names: list[str]) -> list[str]:
    """Return names of files, numbered where they are equal."""
    return [
        f"{name} ({names[: place + 1].count(name)})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    ]


def _cut(name: str, first: int, stop: int, num_train: int) -> Iterator[LogPart]:
    # A raw file that the split runs through becomes two parts; an empty one is dropped by the caller.
    middle = min(max(num_train, first), stop)
    is_both = first < middle < stop
    yield LogPart(name, first, middle, True)
    yield LogPart(f"{name} (evaluation)" if is_both else name, middle, stop, False)


def drift(inspected: Inspected, budget_bytes: int | None = None) -> dict[str, Any]:
    """Measure how the hot set of each training part serves all parts.

    Args:
        inspected: a folder.
        budget_bytes: of all hot rows of a part, with the plan's row widths; None: the plan's.

    Returns:
        ``budget_bytes``; ``parts``: name, is_training, num_samples, num_hot_rows (None for evaluation), and
        of its lookups and samples plan_hot_lookup_share and plan_hot_sample_share (the plan's hot rows) and
        no_id_share (lookups without an id); ``pairs`` of each hot set and each part: chosen_on, serves, age
        (in parts), common_rows_share (of the rows ``serves`` would choose; None for evaluation),
        hot_lookup_share, hot_sample_share, unseen_lookup_share (rows that ``chosen_on`` never looked up);
        ``by_age``: the means of the last three.

    Raises:
        ConfigError: the log cannot be cut so.
    """
    if budget_bytes is None:
        budget_bytes = PlanSettings.of(inspected.plan).hot_bytes
    num_train = PlanTotals.of(inspected.plan).num_train_samples
    parts = parts_of_log(Manifest.read(inspected.folder / "columns"), num_train, inspected.num_parts)
    run = _Drift(inspected.samples, inspected.plan, parts, budget_bytes)
    num_hot = run.mark(inspected.resources)
    # First pass: what each part would keep hot. Second pass: every hot set on every part, by the marks.
    common_SS = np.zeros((run.num_sets + 1, run.num_sets + 1), np.int64)
    count_common(run.marks_R, run.num_sets + 1, common_SS)
    judged = run.judge(inspected.resources)
    return {
        "budget_bytes": budget_bytes,
        "parts": [_part(part, judged, number, num_hot) for number, part in enumerate(parts)],
        "pairs": list(_pairs(parts, judged, num_hot, common_SS)),
        "by_age": _by_age(judged) if num_hot else [],
    }


@dataclass(frozen=True, slots=True)
class _Judged:
    """Sums over each part by hot set, the plan's last."""

    hot_lookups: NDArray[np.int64]
    """(num_sets, num_parts), lookups of rows in the set."""
    known_lookups: NDArray[np.int64]
    """(num_sets, num_parts), of rows that the set's part looked up; of the plan, of rows with a category."""
    hot_samples: NDArray[np.int64]
    """(num_sets, num_parts), samples all of whose lookups are hot."""
    lookups: NDArray[np.int64]
    """(num_parts,), all there are."""
    samples: NDArray[np.int64]
    """(num_parts,)."""

    @classmethod
    def nothing(cls, num_sets: int, num_parts: int) -> _Judged:
        """Sums to add to."""
        shapes: list[tuple[int, ...]] = [(num_sets, num_parts)] * 3 + [(num_parts,)] * 2
        return cls(*(np.zeros(shape, np.int64) for shape in shapes))


class _Drift:
    """The marks of all rows, and the two passes over the ids."""

    def __init__(self, samples: Manifest, plan: Manifest, parts: list[LogPart], budget_bytes: int) -> None:
        self.samples = samples
        self.parts = parts
        self.budget_bytes = budget_bytes
        self.tables = PlanTotals.of(plan).tables
        self.num_sets = sum(part.is_training for part in parts)
        self.first_row_T = np.cumsum([0, *(table.num_rows for table in self.tables)], dtype=np.int64)
        self.row_bytes_F = np.array(PlanTotals.of(plan).bytes_of_rows, np.int64)
        self.marks_R = np.zeros(int(self.first_row_T[-1]), marks_dtype(self.num_sets + 1))
        """Marks of each row. The plan is a last part: its hot rows, and all rows but the shared ones."""
        self._done = 0
        self._to_do = sum(part.num_samples * (2 if part.is_training else 1) for part in parts)
        """Samples to read: those of training parts are read twice."""

    def mark(self, resources: Resources) -> list[int]:
        """Mark rows by part and plan; return each part's hot rows."""
        counts_R = np.empty(self.marks_R.shape[0], np.int32)
        found = []
        crew = min(num_workers(resources.workers), len(self.tables))
        for number, part in enumerate(self.parts[: self.num_sets]):
            counts_R[:] = 0
            # Workers share the counts: each takes every crew-th table, so no two write the same rows.
            tasks = ((part, range(first, len(self.tables), crew), counts_R) for first in range(crew))
            for _ in run_tasks(self._count_tables, tasks, workers=resources.workers):
                pass
            settings = (self.first_row_T, self.row_bytes_F, self.budget_bytes, number, self.num_sets + 1)
            found.append(mark_part(counts_R, *settings, self.marks_R))
            self._done += part.num_samples
            resources.progress("drift", self._done, self._to_do)
        self._mark_plan()
        return found

    def _mark_plan(self) -> None:
        # A row's word has, from the low end, a bit for each hot set that contains it, then a bit for each
        # part that looked it up. The last bit of both is the plan's: it is set for the plan's hot rows, and
        # for every row except the shared one, whose bits of lookups are cleared for all parts.
        word = self.marks_R.dtype.type
        hot = word(1 << self.num_sets)
        own = word(1 << (2 * self.num_sets + 1))
        known = word(~(((1 << (self.num_sets + 1)) - 1) << (self.num_sets + 1)) & np.iinfo(word).max)
        self.marks_R |= own
        for first, table in zip(self.first_row_T, self.tables, strict=False):
            self.marks_R[first : first + table.num_hot] |= hot
            self.marks_R[first + table.oov_id] &= known  # its categories have no row

    def _count_tables(self, part: LogPart, tables: range, counts_R: NDArray[np.int32]) -> None:
        for lookups in self._lookups_of(part):
            for table in tables:
                count_rows(lookups[table].ids, counts_R[self.first_row_T[table] :])

    def judge(self, resources: Resources) -> _Judged:
        """Every hot set on every part."""
        total = _Judged.nothing(self.num_sets + 1, len(self.parts))
        tasks = (
            (number, lookups) for number, part in enumerate(self.parts) for lookups in self._lookups_of(part)
        )
        for number, found in run_tasks(self._judge, tasks, workers=resources.workers):
            # Every sum has the parts as its last axis, and a task judges samples of one part.
            for name in _Judged.__slots__:
                getattr(total, name)[..., number] += getattr(found, name)[..., 0]
            resources.progress("drift", self._done + int(total.samples.sum()), self._to_do)
        return total

    def _judge(self, number: int, lookups: list[TableLookups]) -> tuple[int, _Judged]:
        num_sets = self.num_sets + 1
        found = _Judged.nothing(num_sets, 1)
        num_samples = lookups[0].num_samples if lookups else 0
        # A sample keeps the bit of a hot set as long as all of its rows have it.
        everywhere_B = np.full(num_samples, ~np.uint64(0))
        # The first half counts hot lookups by set, the second lookups of rows that its part looked up.
        lookups_M = np.zeros(2 * num_sets, np.int64)
        for first, table in zip(self.first_row_T, lookups, strict=False):
            ids = read_only(table.ids)
            judge_lookups(ids, table.offsets, self.marks_R[first:], everywhere_B, lookups_M)
            found.lookups[:] += table.ids.shape[0]
        count_bits(everywhere_B, found.hot_samples[:, 0])
        found.hot_lookups[:, 0] = lookups_M[:num_sets]
        found.known_lookups[:, 0] = lookups_M[num_sets:]
        found.samples[:] = num_samples
        return number, found

    def _lookups_of(self, part: LogPart) -> Iterator[list[TableLookups]]:
        for _, entry, start, stop in self.samples.parts_within(part.first, part.stop):
            yield read_lookups(self.samples, entry, start, stop)


def _ratio(part: SupportsInt, whole: SupportsInt) -> float:
    return int(part) / int(whole) if whole else 0.0


def _part(part: LogPart, judged: _Judged, number: int, num_hot: list[int]) -> Row:
    lookups = judged.lookups[number]
    # The plan is the last hot set.
    plan = (-1, number)
    return {
        "name": part.name,
        "is_training": part.is_training,
        "num_samples": part.num_samples,
        "num_hot_rows": num_hot[number] if part.is_training else None,
        "plan_hot_lookup_share": _ratio(judged.hot_lookups[plan], lookups),
        "plan_hot_sample_share": _ratio(judged.hot_samples[plan], part.num_samples),
        "no_id_share": _ratio(lookups - judged.known_lookups[plan], lookups),
    }


def _pairs(
    parts: list[LogPart], judged: _Judged, num_hot: list[int], common_SS: NDArray[np.int64]
) -> Iterator[Row]:
    for s, number in np.ndindex(len(num_hot), len(parts)):
        lookups = judged.lookups[number]
        is_training = parts[number].is_training
        yield {
            "chosen_on": parts[s].name,
            "serves": parts[number].name,
            "age": number - s,
            # Rows that two hot sets have in common: what a part in evaluation would choose is not known.
            "common_rows_share": _ratio(common_SS[s, number], num_hot[number]) if is_training else None,
            "hot_lookup_share": _ratio(judged.hot_lookups[s, number], lookups),
            "hot_sample_share": _ratio(judged.hot_samples[s, number], judged.samples[number]),
            "unseen_lookup_share": _ratio(lookups - judged.known_lookups[s, number], lookups),
        }


def _by_age(judged: _Judged) -> list[Row]:
    # The plan's set, the last, has no age: only the parts' own sets are averaged.
    # Served and total: lookups, samples, and lookups of unseen rows.
    served = (
        (judged.hot_lookups, judged.lookups),
        (judged.hot_samples, judged.samples),
        (judged.lookups[None, :] - judged.known_lookups, judged.lookups),
    )
    lookups, samples, unseen = (mean_by_age(part[:-1], whole) for part, whole in served)
    return [
        {
            "age": age,
            "hot_lookup_share": float(lookups[age]),
            "hot_sample_share": float(samples[age]),
            "unseen_lookup_share": float(unseen[age]),
        }
        for age in range(judged.lookups.shape[0])
    ]
