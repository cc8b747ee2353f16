"""``count``: columns/ -> counts/, the lookups of each category in training.

Counts are exact. Memory holds the distinct categories, never the log. Where even they do not fit, the largest
table is emptied into a run on disk, categories ascending, and a table's runs are merged at the end: one pass
over the log, whatever the cap.

This stage decides which samples are for evaluation: the last ones in log order, without splitting the samples
of one time, so that nothing of them reaches counts, ids or the hot set. The first of these may be for
validation, the others are the test part.

Counts add, so if a log grew, only what is new is counted. A span is a range of consecutive training samples
whose counts are kept together. Without a window all training samples are one span. With one, each raw file of
it is a span, so that the next window counts only the new files. A span names its parts by a checksum, and
counts are reused where the parts are the same, whatever else changed in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.counting import (
    BYTES_PER_TABLE_BYTE,
    SMALLEST_ENTRIES,
    CategoryCounter,
    Counts,
    count_distinct,
    merge_counts,
)
from ..errors import MIB, ConfigError, ManifestError, check_fields, hint_to_rewrite, require_at_least
from ..folders.manifest import FileEntry, Manifest, checksum_of, is_sealed
from ..folders.output import Output, array_in, input_of, map_arrays, remove_arrays, write_arrays
from ..folders.resume import Continuation, read_before, unless_none
from ..folders.totals import (
    ColumnsFacts,
    ColumnsTotals,
    CountedTable,
    CountsFacts,
    CountsTotals,
    SpanInfo,
    TableFeature,
    by_feature,
)
from ..formats.arrow_files import (
    COUNT_COLUMNS,
    lookups_of,
    numpy_type,
    read_batch,
    read_file,
    validity_of,
    values_of,
    write_batch,
)
from ..formats.columns import tables_of, text_tables, top_categories, write_top_texts
from ..runtime.memory import check_cap, room_for
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, num_processes, num_workers, run_tasks
from ..schema.schema import SAMPLE_TIME


@dataclass(frozen=True, slots=True)
class Span:
    """Samples ``[first, stop)`` of the log."""

    first: int
    stop: int
    file: int | None
    """Number of the raw file in whose name the counts are kept; None where there is one span alone."""

    @property
    def prefix(self) -> str:
        """Beginning of the names of its files."""
        return "" if self.file is None else f"file{self.file:04}-"


def spans_of(num_train: int, count_last: int, samples_of_files: Sequence[int]) -> list[Span]:
    """Cut the training part, the first ``num_train`` samples, into spans.

    ``count_last``: only so many of the last raw files that have training samples; 0 takes them all.
    """
    if not count_last:
        return [Span(0, num_train, None)]
    # Files that reach into the training part, cut where evaluation begins.
    stops = list(accumulate(samples_of_files))
    files = [
        Span(stop - length, min(stop, num_train), number)
        for number, (length, stop) in enumerate(zip(samples_of_files, stops, strict=True))
        if stop - length < num_train
    ]
    # A file of evaluation samples only has no span; a window of one file needs no name in its files.
    spans = [span for span in files[-count_last:] if span.first < span.stop]
    return [Span(spans[0].first, spans[0].stop, None)] if len(spans) == 1 else spans


def bases_of(spans: Sequence[Span], columns: Manifest, before: Manifest | None) -> dict[Span, Span]:
    """Return the counted span that each span begins with, if ``before`` counted one from the same parts."""
    bases: dict[Span, Span] = {}
    if before is None or not _has_same_tables(before, columns):
        return bases
    # The same span has the same first sample, whatever was added to the log after it.
    by_first = {span.first: span for span in spans}
    for known in CountsTotals.of(before).spans:
        old = Span(known.first_sample, known.first_sample + known.num_samples, known.file)
        span = by_first.get(old.first)
        # Counts can only be added to: a span that has lost samples is counted from the start.
        if span is None or old.stop > span.stop:
            continue
        if _is_same_log(known, columns):
            bases[span] = old
    return bases


def has_grown(columns: Manifest, counts: Path) -> bool:
    """Return whether the folder ``counts`` was sealed from parts that ``columns`` still has, all of them."""
    before = Manifest.read(counts) if is_sealed(counts) else read_before(counts)
    if before is None:
        return False
    try:
        spans = CountsTotals.of(before).spans
    except ManifestError:  # a manifest that no run of this version wrote
        return False
    return (
        bool(spans)
        and _has_same_tables(before, columns)
        and all(_is_same_log(span, columns) for span in spans)
    )


def _has_same_tables(counts: Manifest, columns: Manifest) -> bool:
    """Return whether the tables of ``counts`` have the features that ``columns`` gives them."""
    tables = CountsTotals.of(counts).tables
    found = {table.name: tuple(each.name for each in by_feature([table])) for table in tables}
    return found == tables_of(columns)


def _is_same_log(span: SpanInfo, columns: Manifest) -> bool:
    """Return whether ``columns`` has the parts that a span was counted from."""
    last = span.first_sample + span.num_samples
    return _checksum_of_parts(columns, span.first_sample, last) == span.xxh3_128_of_parts


def _checksum_of_parts(columns: Manifest, first: int, stop: int) -> str:
    parts = [
        [entry.path, entry.num_samples, entry.xxh3_128]
        for _, entry, _, _ in columns.parts_within(first, stop)
    ]
    return checksum_of({"parts": parts})


def counts_written(output: Output, entry: FileEntry) -> Counts:
    """Map one file of a counts folder that is not sealed yet."""
    return _counts_of(read_file(output.folder / entry.path, entry.num_samples, COUNT_COLUMNS))


def _counts_of(batch: Any) -> Counts:
    array = batch.column("category")
    return values_of(array), values_of(batch.column("count"), np.int64)


def merged_counts(
    sources: list[Counts], output: Output, room: int, dtype: Any
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Add up sources: in memory where even disjoint ones fit, else on disk, after counting the distinct."""
    # Counting the distinct costs another pass over all sources, so it is done only where it may save a file.
    most = sum(categories.shape[0] for categories, _ in sources)
    num_rows = most if most * (np.dtype(dtype).itemsize + 8) <= room else count_distinct(sources)
    categories = array_in(room // 2, output, (num_rows,), dtype)
    counts = array_in(room // 2, output, (num_rows,), np.int64)
    # The arrays may be longer than what was found: sources that share categories add up to fewer rows.
    num_categories = merge_counts(sources, categories, counts)
    return categories[:num_categories], counts[:num_categories]


def first_of_time(columns: Manifest, sample: int) -> int:
    """Return the first sample with the time of this one; the sample itself where samples have no times.

    Raises:
        ManifestError: a part is not in the order of time.
    """
    if not ColumnsTotals.of(columns).has_time or not 0 < sample < columns.num_samples:
        return sample
    parts = [(first, entry) for first, entry in columns.parts() if entry.num_samples]
    number = next(i for i, (first, entry) in enumerate(parts) if first + entry.num_samples > sample)
    first, entry = parts[number]
    times = _times_of(columns, entry)
    time = int(times[sample - first])
    position = int(np.searchsorted(times, time))
    # Samples of this time may begin in a part before it.
    while position == 0 and number and columns.facts_of(ColumnsFacts, parts[number - 1][1]).last_time == time:
        number -= 1
        first, entry = parts[number]
        position = int(np.searchsorted(_times_of(columns, entry), time))
    return first + position


def _times_of(columns: Manifest, entry: FileEntry) -> NDArray[np.int64]:
    """(num_samples,): the time of each sample of a part, seconds since 1970."""
    times: NDArray[np.int64] = values_of(read_batch(columns, entry).column(SAMPLE_TIME), np.int64)
    if (np.diff(times) < 0).any():
        raise ManifestError(
            f"{columns.folder / entry.path} is damaged: its times are not in order",
            hint=hint_to_rewrite(columns.folder),
        )
    return times


class SpilledCounts:
    """The tables one worker counts at a time; what they hold beyond ``max_bytes`` goes to runs on disk."""

    def __init__(self, names: list[str], max_bytes: int, output: Output) -> None:
        self.counters = {name: CategoryCounter() for name in names}
        self._max_bytes = max_bytes
        self._output = output
        self._run_lengths: dict[str, list[int]] = {name: [] for name in names}

    def add(self, name: str, categories: NDArray[Any], is_valid: NDArray[np.uint8]) -> None:
        """Count the lookups of one part in one table."""
        self.counters[name].add(categories, is_valid, lambda: self._make_room(name))

    def _make_room(self, name: str) -> None:
        """Grow a full table, after emptying larger ones, or empty it."""
        counter = self.counters[name]
        # To grow, a table of twice the size is allocated next to the old one: at most three times its bytes.
        while (
            sum(other.num_bytes for other in self.counters.values()) + 3 * counter.num_bytes > self._max_bytes
        ):
            # The largest frees the most for one run to merge; of equal ones the table that asks is emptied
            # itself.
            largest = max(self.counters, key=lambda other: self.counters[other].num_bytes)
            if self.counters[largest].num_bytes == counter.num_bytes:
                return self._spill(name)
            self._spill(largest)
        return counter.grow()

    def _spill(self, name: str) -> None:
        """Append what a table holds to its file of runs: categories, ascending, then their counts."""
        categories, counts = self.counters[name].take()
        lengths = self._run_lengths[name]
        # What a killed run left under this name is overwritten by the first run.
        write_arrays(self._path(name), [categories, counts], appends=bool(lengths))
        lengths.append(categories.shape[0])

    def _path(self, name: str) -> Path:
        """Return the file of a table's runs."""
        return self._output.temporary_path(f"{name}.runs")

    def result(self, name: str, dtype: Any, earlier: list[Counts]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return a table's categories, ascending, and their counts with those ``earlier``; drop the table."""
        lengths = self._run_lengths[name]
        if not lengths:
            categories, counts = self.counters.pop(name).take()
            if not earlier:
                return categories.astype(dtype), counts
            return merged_counts([*earlier, (categories, counts)], self._output, self._max_bytes, dtype)
        # The rest becomes the last run, so that its memory is free while the runs are merged.
        self._spill(name)
        del self.counters[name]
        # A run is its categories and then its counts, both of 64 bits: one mapping cut in two for each run.
        words = map_arrays(self._path(name), np.uint64)
        runs = list(earlier)
        start = 0
        for length in lengths:
            middle = start + length
            stop = middle + length
            runs.append((words[start:middle], words[middle:stop].view(np.int64)))
            start = stop
        # The earlier counts are merged as if they were one more run; the file goes only when the sums are
        # out.
        merged = merged_counts(runs, self._output, self._max_bytes, dtype)
        remove_arrays(self._path(name))
        return merged


VERSION = 1
_GROUPS_PER_WORKER = 2
_LEAST_ROOM = 8 * MIB
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountConfig:
    """The settings of the count stage; part of its fingerprint."""

    eval_fraction: float = 1 / 7
    """Share of the log, in [0, 1), whose samples are kept for evaluation: the last ones. 0 keeps none."""

    eval_files: int = 0
    """Number of raw files, the last ones, to keep for evaluation instead of a fraction of the log."""

    valid_fraction: float | None = unless_none()
    """Share of the log, in (0, 1), that is kept for validation: the samples just before those for evaluation,
    which decide when training stops and which weights are best. By default none."""

    valid_files: int | None = unless_none()
    """Number of raw files, the last ones before those of --eval-files, to keep for validation instead of a
    fraction of the log; 0 keeps none."""

    count_last: int = 0
    """Number of raw files, the last ones of the training part, that are counted and decide ids and hot rows;
    0 counts all. Earlier files stay in training, but categories that occur only there share the
    out-of-vocabulary row."""

    texts: int = 1000
    """Number of categories per text column, the most frequent ones, that keep their text."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.eval_fraction < 1:
            raise ConfigError(f"eval_fraction must be in [0, 1), got {self.eval_fraction}")
        require_at_least("eval_files", self.eval_files, 0)
        if self.valid_fraction is not None and not 0 < self.valid_fraction < 1:
            raise ConfigError(f"valid_fraction must be in (0, 1), got {self.valid_fraction}")
        require_at_least("valid_files", self.valid_files, 0)
        if self.valid_files == 0:  # one spelling of equal settings
            object.__setattr__(self, "valid_files", None)
        if self.valid_fraction is not None and self.valid_files is not None:
            raise ConfigError(
                "valid_files and valid_fraction are two ways to say one thing: give one of them"
            )
        if self.valid_files is not None and not self.eval_files and self.eval_fraction:
            raise ConfigError(
                "valid_files needs a test part that begins at a file too",
                hint="give --eval-files too, or --eval-fraction 0 for no test part",
            )
        require_at_least("count_last", self.count_last, 0)
        require_at_least("texts", self.texts, 0)


def count(
    config: CountConfig, columns: Manifest, out: Path, resources: Resources = DEFAULT_RESOURCES
) -> Manifest:
    """columns -> counts: occurrences of each category of each table in the training samples.

    Reads:   ``*.arrow``, C* uint32 or uint64 with nulls, or lists of uint64
    Writes:  ``{table}.arrow``: category uint32 or uint64, ascending; count int64, lookups of all features of
             the table; of a window of several files also ``file{f}-{table}.arrow``, the same of each file;
             of text columns ``{table}.texts.arrow``: category, text

    Existing counts are continued if the log has only grown since.
    """
    if not is_sealed(out):
        check_count(config, columns, resources)
    output = Output.begin(
        "count", VERSION, config, [input_of(columns)], out, continuation=grown_counts(columns, out)
    )
    if output.sealed is not None:
        return output.sealed
    num_train, first_of_test = evaluation_parts(config, columns)
    _warn_of_empty_parts(config, num_train, first_of_test, columns.num_samples)
    tables = tables_of(columns)
    # Spans decide what is counted; bases, which of it is there already.
    spans = spans_of(num_train, config.count_last, _samples_of_files(columns))
    log = _Log(columns, output, tables, spans, output.before, bases_of(spans, columns, output.before))
    names = [name for name in tables if not output.has(f"{name}.arrow")]
    # Tables are counted in groups, each with one pass over the log: more groups than workers even out the
    # load, and a group's tables share its room.
    num_groups = _GROUPS_PER_WORKER * num_workers(resources.workers)
    groups = [group for first in range(num_groups) if (group := names[first::num_groups])]
    needed = needed_bytes(len(tables), resources.workers)
    room = room_for("count", resources, needed) // num_workers(resources.workers)
    total = len(names) * sum(span.stop - log.first_new(span) for span in spans)
    done = 0

    def advance(num_lookups: int) -> None:
        nonlocal done
        done += num_lookups
        resources.progress("count", done, total)

    # Threads report each part; of another process a group is reported when it ends.
    is_remote = num_processes(resources.workers) > 0
    tasks = ((group, log, room, None if is_remote else advance) for group in groups)
    for num_lookups in run_tasks(_count_group, tasks, workers=resources.workers):
        if is_remote:
            advance(num_lookups)
    # Texts are last: which categories are frequent is known only when all are counted.
    if config.texts:
        names = text_tables(columns)
        found = {name: counts_written(output, output.finished[f"{name}.arrow"]) for name in names}
        wanted = {name: top_categories(counts, config.texts) for name, counts in found.items()}
        write_top_texts(output, columns, wanted)
    totals = CountsTotals(
        num_samples=columns.num_samples,
        num_train_samples=num_train,
        num_valid_samples=first_of_test - num_train,
        tables=tuple(_describe_table(name, log, output.finished[f"{name}.arrow"]) for name in tables),
        num_counted_samples=sum(s.stop - s.first for s in spans) if config.count_last else None,
        spans=tuple(
            SpanInfo(
                file=span.file,
                first_sample=span.first,
                num_samples=span.stop - span.first,
                xxh3_128_of_parts=_checksum_of_parts(columns, span.first, span.stop),
            )
            for span in spans
        ),
    )
    return output.seal(totals)


def _warn_of_empty_parts(config: CountConfig, num_train: int, first_of_test: int, num_samples: int) -> None:
    """Warn of a requested part without samples, such as a file without rows."""
    parts = {
        "evaluation": (config.eval_files or config.eval_fraction, num_samples - first_of_test),
        "validation": (config.valid_files or config.valid_fraction, first_of_test - num_train),
    }
    for part, (is_wanted, num_kept) in parts.items():
        if is_wanted and not num_kept:
            _log.warning(f"no sample is for {part}: its files, or its share of the log, have none")


def check_count(config: CountConfig, columns: Manifest, resources: Resources) -> None:
    """Raise ConfigError where `count` would refuse, before it writes anything."""
    evaluation_parts(config, columns)
    check_cap("count", resources, needed_bytes(len(tables_of(columns)), resources.workers))


def grown_counts(columns: Manifest, counts: Path) -> Continuation:
    """Return how counts continue: if ``columns`` still has all that was counted, only new parts are."""
    return Continuation(lambda *_: True, keeps_files=False, is_wanted=has_grown(columns, counts))


def _describe_table(name: str, log: _Log, entry: FileEntry) -> CountedTable:
    facts = entry.read_facts(CountsFacts)
    lists = ColumnsTotals.of(log.columns).lists
    features = log.tables[name]
    return CountedTable(
        name=name,
        num_categories=entry.num_samples,
        num_missing=facts.num_missing,
        num_lookups=facts.num_lookups,
        is_multi_hot=log.is_multi_hot(name),
        features=tuple(TableFeature(name=each, is_multi_hot=each in lists) for each in features)
        if features != (name,)
        else (),
    )


def needed_bytes(num_tables: int, workers: int) -> int:
    """Return the bytes that `count` needs at least: room for each worker, and small tables."""
    return num_workers(workers) * _LEAST_ROOM + 16 * 5 * SMALLEST_ENTRIES * num_tables


@dataclass(frozen=True, slots=True)
class _Log:
    """The samples to count, the output, and the counts that exist already."""

    columns: Manifest
    output: Output
    tables: dict[str, tuple[str, ...]]
    """The features of each table."""
    spans: list[Span]
    before: Manifest | None
    """The counts from before the log grew."""
    bases: dict[Span, Span]
    """Spans of those counts that spans begin with."""

    def first_new(self, span: Span) -> int:
        """Return the first sample of a span that is not counted yet."""
        return self.bases[span].stop if span in self.bases else span.first

    def is_multi_hot(self, table: str) -> bool:
        """Return whether samples may look a table up other than once."""
        features = self.tables[table]
        return len(features) > 1 or features[0] in ColumnsTotals.of(self.columns).lists

    def counted_before(self, span: Span, table: str) -> tuple[Manifest, FileEntry]:
        """Return the counts that a span begins with, and their file of one table."""
        assert self.before is not None
        return self.before, self.before.entry(f"{self.bases[span].prefix}{table}.arrow")


def _count_group(names: list[str], log: _Log, room: int, advance: Callable[[int], None] | None) -> int:
    """Count some tables; return their lookups, of which ``advance`` hears part by part."""
    num_counted = 0
    for span in log.spans:
        # A span whose counts are there already is kept file by file; any other is counted from where its
        # base ends.
        todo = [name for name in names if not log.output.has(f"{span.prefix}{name}.arrow")]
        if log.first_new(span) == span.stop:
            for name in todo:
                before, entry = log.counted_before(span, name)
                facts = _sum_facts([entry], span.file)
                log.output.adopt(before, entry, f"{span.prefix}{name}.arrow", facts)
        elif todo:
            _count_span(span, todo, log, room, advance)
            num_counted += (span.stop - log.first_new(span)) * len(todo)
    # A window of several files: its counts are the sum of theirs, which are kept for the next window.
    if len(log.spans) > 1:
        for name in names:
            _merge_spans(name, log, room)
    return num_counted


def _sum_facts(entries: Sequence[FileEntry], file: int | None) -> CountsFacts:
    """Add up the facts of the counts of several spans of one table."""
    facts = [entry.read_facts(CountsFacts) for entry in entries]
    lookups = [found.num_lookups for found in facts if found.num_lookups is not None]
    num_missing = sum(found.num_missing for found in facts)
    return CountsFacts(num_missing=num_missing, num_lookups=sum(lookups) if lookups else None, file=file)


def _count_span(
    span: Span, names: list[str], log: _Log, room: int, advance: Callable[[int], None] | None
) -> None:
    tables = SpilledCounts(names, int(room / BYTES_PER_TABLE_BYTE), log.output)
    dtypes = dict.fromkeys(names, np.dtype(np.uint32))
    # Read each part once for all tables of the group.
    for _, entry, low, high in log.columns.parts_within(log.first_new(span), span.stop):
        batch = read_batch(log.columns, entry)
        for name in names:
            for feature in log.tables[name]:
                column = batch.column(feature)
                # Kernels want columns that begin at offset 0.
                column = column if low == 0 else column.take(pa.array(np.arange(low, len(column))))
                array, num_lookups = lookups_of(column, high - low)
                # Hex digits have 32 bits, and in lists 64: a table of both has the wider ones.
                dtypes[name] = max(dtypes[name], numpy_type(array.type), key=lambda dtype: dtype.itemsize)
                tables.add(name, values_of(array)[:num_lookups], validity_of(array))
        if advance is not None:
            advance((high - low) * len(names))
    for name in names:
        # Write each table with what was counted before of the same span.
        num_missing = tables.counters[name].num_missing
        earlier = []
        if span in log.bases:
            before, entry = log.counted_before(span, name)
            earlier.append(_counts_of(read_batch(before, entry)))
            num_missing += before.facts_of(CountsFacts, entry).num_missing
        categories, counts = tables.result(name, dtypes[name], earlier)
        total = num_missing + int(counts.sum()) if log.is_multi_hot(name) else None
        facts = CountsFacts(num_missing=num_missing, num_lookups=total, file=span.file)
        written = {"category": pa.array(categories), "count": pa.array(counts)}
        file_name = f"{span.prefix}{name}.arrow"
        with log.output.writing(file_name, categories.shape[0], facts) as path:
            write_batch(path, written)


def _merge_spans(name: str, log: _Log, room: int) -> None:
    """Add up the counts of one table over all spans."""
    entries = [log.output.finished[f"{span.prefix}{name}.arrow"] for span in log.spans]
    sources = [counts_written(log.output, entry) for entry in entries]
    categories, counts = merged_counts(sources, log.output, room, sources[0][0].dtype)
    with log.output.writing(f"{name}.arrow", categories.shape[0], _sum_facts(entries, None)) as path:
        write_batch(path, {"category": pa.array(categories), "count": pa.array(counts)})


def _samples_of_files(columns: Manifest) -> list[int]:
    return [file.num_samples for file in ColumnsTotals.of(columns).raw]


def check_num_files(config: CountConfig, num_files: int) -> None:
    """Raise ConfigError where evaluation and validation take all files, so that none is left to train on."""
    kept = config.eval_files + (config.valid_files or 0)
    if kept and kept >= num_files:
        raise ConfigError(
            f"eval_files and valid_files take the last {kept} files of {num_files}: none is left to train on",
            hint="give the files of all parts in their order, or keep a share of the log: "
            "--eval-files 0 --valid-files 0",
        )


def evaluation_bounds(config: CountConfig, files: Sequence[int]) -> tuple[int, int]:
    """Return the bounds of `evaluation_parts` for files of so many samples, which have no times."""
    num_samples = sum(files)
    first_of_test = num_samples - int(num_samples * config.eval_fraction)
    if config.eval_files:
        first_of_test = num_samples - sum(files[-config.eval_files :])
    if config.valid_files is None:
        return first_of_test - int(num_samples * (config.valid_fraction or 0)), first_of_test
    return first_of_test - sum(files[: len(files) - config.eval_files][-config.valid_files :]), first_of_test


def evaluation_parts(config: CountConfig, columns: Manifest) -> tuple[int, int]:
    """Return the first samples of the validation part and of the test part; those before them train.

    Where samples have times, a part that is a fraction of the log begins with all samples of one time.

    Raises:
        ConfigError: every file, or every sample, would be for evaluation or validation.
    """
    files = _samples_of_files(columns)
    first, first_of_test = evaluation_bounds(config, files)
    if not config.eval_files:
        first_of_test = first_of_time(columns, first_of_test)
    # Files begin anywhere in time: only a part that is a fraction is moved.
    if config.valid_files is None:
        first = min(first, first_of_test)
    if config.valid_fraction is not None:
        first = first_of_time(columns, first)
    if first <= 0:
        wanted = ("eval_files" if config.eval_files else "eval_fraction", "valid_files", "valid_fraction")
        values = {name: getattr(config, name) for name in wanted}
        wishes = [f"{name} {value}" for name, value in values.items() if value is not None]
        by_file = config.eval_files or config.valid_files
        whole = f"{len(files)} files" if by_file else f"{columns.num_samples} samples"
        verb = "leaves" if len(wishes) == 1 else "leave"
        raise ConfigError(f"{' and '.join(wishes)} of {whole} {verb} no sample to train on")
    return first, first_of_test
