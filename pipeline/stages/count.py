"""``count``: columns/ -> counts/, how often each category is looked up in the training part.

Exact. Memory holds the distinct categories, never the log; where even they do not fit, the largest table is
emptied into a run on disk, and a table's runs are merged at the end: one pass over the log, whatever the
cap. Counts add: where a log grew, only what is new is counted. Which samples are for evaluation is decided
here, once: the last ones in log order, so that nothing of them reaches counts, ids or the hot set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.counting.category_counter import BYTES_PER_TABLE_BYTE, SMALLEST_ENTRIES, CategoryCounter
from ...stats.counting.count_merging import Counts
from ..counting.count_spans import Base, Span, bases_of, describe_spans, has_grown, parts_of, spans_of
from ..counting.merged_counts import counts_in, merged_counts, samples_from
from ..errors import ConfigError
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output, input_of
from ..folders.reopening import Extension
from ..formats.arrow_files import read_batch, validity_of, values_of, write_batch
from ..formats.category_texts import text_features, top_categories, write_top_texts
from ..formats.tables import lookups_of, mark_of
from ..runtime.memory import room_for, spill_errors_explained
from ..runtime.tasks import Advance, ProgressCallback, num_workers, run_tasks, silent
from ..sizes import MIB

VERSION = 1
_GROUPS_PER_WORKER = 2
_LEAST_ROOM = 8 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class CountConfig:
    """What a run of the count stage may vary; part of its fingerprint."""

    eval_fraction: float = 1 / 7
    """Share of the log, its last samples, kept for evaluation, in [0, 1). 0 keeps none."""

    eval_files: int = 0
    """Keep this many of the last raw files for evaluation instead of a fraction of the log."""

    count_last: int = 0
    """Count only this many of the last raw files of the training part, 0 all: ids and hot rows come from
    these. What is before stays in training; categories that only it has share the oov row."""

    texts: int = 1000
    """Of the most frequent categories of each text column this many keep their text, for people to read."""

    def __post_init__(self) -> None:
        if not 0 <= self.eval_fraction < 1:
            raise ConfigError(f"eval_fraction must be in [0, 1), got {self.eval_fraction}")
        if self.eval_files < 0:
            raise ConfigError(f"eval_files must be 0 or more, got {self.eval_files}")
        if self.count_last < 0:
            raise ConfigError(f"count_last must be 0 or more, got {self.count_last}")
        if self.texts < 0:
            raise ConfigError(f"texts must be 0 or more, got {self.texts}")


def count(
    config: CountConfig,
    columns: Manifest,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """columns -> counts: occurrences of each category of each table in the training samples.

    Reads:   ``*.arrow``, C* uint32 or uint64 with nulls, or lists of uint64
    Writes:  ``{feature}.arrow``: category uint32 or uint64, ascending; count int64, look-ups; of a window of
             several files also ``file{f}-{feature}.arrow``, the same of each file; of text columns
             ``{feature}.texts.arrow``: category, text

    Counts that are there already are gone on from where the log has only grown since.
    """
    grown = Extension(lambda *_: True, keeps_files=False, is_wanted=has_grown(columns, out))
    output = Output.begin("count", VERSION, config, [input_of(columns)], out, extension=grown)
    if isinstance(output, Manifest):
        return output
    num_train = num_training_samples(config, columns)
    spans = spans_of(num_train, config.count_last, columns.totals["raw"])
    log = _Log(columns, output, spans, bases_of(spans, columns, output.before))
    names = [name for name in columns.totals["sparse"] if not output.has(f"{name}.arrow")]
    num_groups = _GROUPS_PER_WORKER * num_workers(workers)
    groups = [group for first in range(num_groups) if (group := names[first::num_groups])]
    needed = needed_bytes(len(columns.totals["sparse"]), workers)
    room = room_for("count", memory_bytes, needed, workers=workers) // num_workers(workers)
    total, done = log.num_new_samples * len(names), 0

    def advance(num_lookups: int) -> None:
        nonlocal done
        done += num_lookups
        progress("count", done, total)

    tasks = ((group, log, room, Advance(advance)) for group in groups)
    for _ in run_tasks(_count_group, tasks, workers=workers):
        pass
    if config.texts:
        wanted = {name: _top(config, name, output) for name in text_features(columns)}
        write_top_texts(output, columns, wanted)
    tables = [_facts_of(name, columns, output.finished[f"{name}.arrow"]) for name in columns.totals["sparse"]]
    totals = {"num_samples": columns.num_samples, "num_train_samples": num_train, "tables": tables}
    window = {"num_counted_samples": sum(s.stop - s.first for s in spans)} if config.count_last else {}
    return output.seal(totals | window | {"spans": describe_spans(spans, columns)})


def _top(config: CountConfig, name: str, output: Output) -> NDArray[np.uint64]:
    entry = output.finished[f"{name}.arrow"]
    made = Manifest(output.folder, "count", VERSION, {}, [], [entry], {}, "")
    return top_categories(counts_in(made, entry), config.texts)


def _facts_of(name: str, columns: Manifest, entry: FileEntry) -> dict[str, Any]:
    return {"name": name, "num_categories": entry.num_samples} | _kept_facts([entry]) | mark_of(name, columns)


def needed_bytes(num_features: int, workers: int) -> int:
    """The least that `count` can do with: some room for each worker, and small tables of all features."""
    return num_workers(workers) * _LEAST_ROOM + 16 * 5 * SMALLEST_ENTRIES * num_features


@dataclass(frozen=True, slots=True)
class _Log:
    """What is counted, where to, and what of it was counted before."""

    columns: Manifest
    output: Output
    spans: list[Span]
    bases: dict[Span, Base]

    def first_new(self, span: Span) -> int:
        """The first sample of a span that is not counted yet."""
        return self.bases[span].span.stop if span in self.bases else span.first

    @property
    def num_new_samples(self) -> int:
        """Samples to count."""
        return sum(span.stop - self.first_new(span) for span in self.spans)


def _count_group(names: list[str], log: _Log, room: int, advance: Advance) -> None:
    for span in log.spans:
        todo = [name for name in names if not log.output.has(f"{span.prefix}{name}.arrow")]
        if log.first_new(span) == span.stop:
            for name in todo:
                entry = log.bases[span].entry(name)
                facts = _kept_facts([entry]) | span.facts
                log.output.adopt(log.bases[span].counts, entry, f"{span.prefix}{name}.arrow", **facts)
        elif todo:
            _count_span(span, todo, log, room, advance)
    if len(log.spans) > 1:
        for name in names:
            _merge_spans(name, log, room)


def _kept_facts(entries: Sequence[FileEntry]) -> dict[str, int]:
    """Sums of what the entries of one table say of its look-ups."""
    keys = [key for key in ("num_missing", "num_lookups") if key in entries[0].facts]
    return {key: sum(entry.facts[key] for entry in entries) for key in keys}


def _count_span(span: Span, names: list[str], log: _Log, room: int, advance: Advance) -> None:
    tables = _Tables(names, int(room / BYTES_PER_TABLE_BYTE), log.output)
    dtypes = dict.fromkeys(names, np.dtype(np.uint32))
    for entry, low, high in parts_of(log.columns, log.first_new(span), span.stop):
        batch = read_batch(log.columns, entry)
        for name in names:
            array, num_lookups = lookups_of(samples_from(batch.column(name), low), high - low)
            dtypes[name] = np.dtype(array.type.to_pandas_dtype())
            tables.add(name, values_of(array, dtypes[name])[:num_lookups], validity_of(array))
        advance((high - low) * len(names))
    for name in names:
        facts, earlier = {"num_missing": tables.counters[name].num_missing}, []
        if span in log.bases:
            base = log.bases[span]
            earlier.append(counts_in(base.counts, base.entry(name)))
            facts["num_missing"] += base.entry(name).facts["num_missing"]
        categories, counts = tables.result(name, dtypes[name], earlier)
        if mark_of(name, log.columns):
            facts["num_lookups"] = facts["num_missing"] + int(counts.sum())
        written = {"category": pa.array(categories), "count": pa.array(counts)}
        file_name = f"{span.prefix}{name}.arrow"
        with log.output.writing(file_name, categories.shape[0], **facts, **span.facts) as path:
            write_batch(path, written)


def _merge_spans(name: str, log: _Log, room: int) -> None:
    """Add up the counts of one table over all spans."""
    entries = [log.output.finished[f"{span.prefix}{name}.arrow"] for span in log.spans]
    made = Manifest(log.output.folder, "count", VERSION, {}, [], entries, {}, "")
    sources = [counts_in(made, entry) for entry in entries]
    categories, counts = merged_counts(sources, log.output, room, sources[0][0].dtype)
    with log.output.writing(f"{name}.arrow", categories.shape[0], **_kept_facts(entries)) as path:
        write_batch(path, {"category": pa.array(categories), "count": pa.array(counts)})


class _Tables:
    """The tables one worker counts at a time; what they hold beyond ``max_bytes`` goes to runs on disk."""

    def __init__(self, names: list[str], max_bytes: int, output: Output) -> None:
        self.counters = {name: CategoryCounter() for name in names}
        self._max_bytes, self._output = max_bytes, output
        self._run_lengths: dict[str, list[int]] = {name: [] for name in names}

    def add(self, name: str, categories: NDArray[Any], is_valid: NDArray[np.uint8]) -> None:
        self.counters[name].add(categories, is_valid, lambda: self._make_room(name))

    def _make_room(self, name: str) -> None:
        """Grow a full table, emptying larger ones before, or empty it."""
        counter = self.counters[name]
        while (
            sum(other.num_bytes for other in self.counters.values()) + 3 * counter.num_bytes > self._max_bytes
        ):
            largest = max(self.counters, key=lambda other: self.counters[other].num_bytes)
            if self.counters[largest].num_bytes == counter.num_bytes:
                return self._spill(name)
            self._spill(largest)
        return counter.grow()

    def _spill(self, name: str) -> None:
        """Append what a table holds to its file of runs: categories, ascending, then their counts."""
        categories, counts = self.counters[name].take()
        lengths = self._run_lengths[name]
        with (
            spill_errors_explained(self._output),
            self._runs_file(name).open("ab" if lengths else "wb") as file,
        ):
            categories.tofile(file)
            counts.tofile(file)
        lengths.append(categories.shape[0])

    def _runs_file(self, name: str) -> Path:
        return self._output.scratch_path(f"{name}.runs")

    def result(self, name: str, dtype: Any, earlier: list[Counts]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """A table's categories, ascending, and their counts with those ``earlier``; the table is gone."""
        lengths = self._run_lengths[name]
        if not lengths:
            categories, counts = self.counters.pop(name).take()
            if not earlier:
                return categories.astype(dtype), counts
            return merged_counts([*earlier, (categories, counts)], self._output, self._max_bytes, dtype)
        self._spill(name)
        del self.counters[name]
        words = np.memmap(self._runs_file(name), np.uint64, "r")
        runs, start = list(earlier), 0
        for length in lengths:
            middle, stop = start + length, start + 2 * length
            runs.append((words[start:middle], words[middle:stop].view(np.int64)))
            start = stop
        merged = merged_counts(runs, self._output, self._max_bytes, dtype)
        self._runs_file(name).unlink()
        return merged


def num_training_samples(config: CountConfig, columns: Manifest) -> int:
    """Samples of the training part, the first ones of the log.

    Raises:
        ConfigError: every file, or every sample, would be for evaluation.
    """
    num_samples = columns.num_samples
    files = [file["samples"] for file in columns.totals["raw"]]
    if config.eval_files:
        num_train = sum(files[: -config.eval_files])
        wish = f"eval_files {config.eval_files} of {len(files)} files"
    else:
        num_train = num_samples - int(num_samples * config.eval_fraction)
        wish = f"eval_fraction {config.eval_fraction} of {num_samples} samples"
    if num_train == 0:
        raise ConfigError(f"{wish} leaves no sample to train on")
    return int(num_train)
