"""``count``: columns/ -> counts/, the lookups of each category in training.

Counts are exact. Memory holds distinct categories, never the log. Where even they do not fit, the largest
table is emptied into a run on disk, categories ascending, and a table's runs are merged at the end: one pass
over the log, whatever the cap. `count_tasks` has the tasks.

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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stats.counting import Counts
from ..errors import MIB, ConfigError, ManifestError, check_fields, hint_to_rewrite, require_at_least
from ..folders.manifest import FileEntry, Manifest, is_sealed
from ..folders.output import Output, input_of
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
from ..formats.arrow_files import COUNT_COLUMNS, read_batch, read_file, values_of
from ..formats.columns import tables_of, text_tables, top_categories, write_top_texts
from ..raw.log_files import is_of_group
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, check_cap, crew_size, room_for
from ..schema.schema import SAMPLE_TIME
from .count_tasks import CountedLog, Span, checksum_of_parts, count_tables, least_room


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
    """Return whether the folder ``counts`` was sealed from parts that ``columns`` still has, all of them.

    Small files that were single parts, or in a smaller group, may be in a larger one by now: where there are
    groups, spans of other parts are counted from the start.
    """
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
        and (
            all(_is_same_log(span, columns) for span in spans)
            or any(is_of_group(entry.path) for entry in columns.files)
        )
    )


def _has_same_tables(counts: Manifest, columns: Manifest) -> bool:
    """Return whether the tables of ``counts`` have the features that ``columns`` gives them."""
    tables = CountsTotals.of(counts).tables
    found = {table.name: tuple(each.name for each in by_feature([table])) for table in tables}
    return found == tables_of(columns)


def _is_same_log(span: SpanInfo, columns: Manifest) -> bool:
    """Return whether ``columns`` has the parts that a span was counted from."""
    last = span.first_sample + span.num_samples
    return checksum_of_parts(columns, span.first_sample, last) == span.xxh3_128_of_parts


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


VERSION = 1
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
    log = CountedLog(columns, output, tables, spans, output.before, bases_of(spans, columns, output.before))
    names = [name for name in tables if not output.has(f"{name}.arrow")]
    needed = needed_bytes(len(tables), resources.workers)
    room = room_for("count", resources, needed) // crew_size(resources.workers)
    total = len(names) * sum(span.stop - log.first_new(span) for span in spans)
    done = 0

    def advance(num_lookups: int) -> None:
        nonlocal done
        done += num_lookups
        resources.progress("count", done, total)

    count_tables(names, log, room, resources, advance)
    # Texts are last: which categories are frequent is known only when all are counted.
    if config.texts:
        names = text_tables(columns)
        found = {name: _counts_written(output, output.finished[f"{name}.arrow"]) for name in names}
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
                xxh3_128_of_parts=checksum_of_parts(columns, span.first, span.stop),
            )
            for span in spans
        ),
    )
    return output.seal(totals)


def _counts_written(output: Output, entry: FileEntry) -> Counts:
    batch = read_file(output.folder / entry.path, entry.num_samples, COUNT_COLUMNS)
    return values_of(batch.column("category")), values_of(batch.column("count"), np.int64)


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


def _describe_table(name: str, log: CountedLog, entry: FileEntry) -> CountedTable:
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
    """Return the bytes that `count` needs at least: room for each worker, and small tables of all."""
    return crew_size(workers) * _LEAST_ROOM + least_room(num_tables)


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
