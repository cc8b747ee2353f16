"""Spans: consecutive training samples whose counts are kept together, and taken over when a log grows.

Without a window all training samples are one span. With one, each raw file of it is a span, so that the next
window counts the new files alone. A span names the parts it was counted from by a checksum of theirs:
counts are taken over where the parts are the same, whatever else became of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from ..errors import ManifestError
from ..folders.manifest import FileEntry, Manifest, checksum_of, is_sealed
from ..folders.reopening import read_before
from ..folders.stage_totals import CountsTotals, SpanInfo


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


@dataclass(frozen=True, slots=True)
class Base:
    """Counts of the first samples of a span, from before the log grew."""

    span: Span
    counts: Manifest

    def entry(self, table: str) -> FileEntry:
        """Return the file of one table."""
        return self.counts.entry(f"{self.span.prefix}{table}.arrow")


def spans_of(num_train: int, count_last: int, samples_of_files: Sequence[int]) -> list[Span]:
    """Cut the training part, the first ``num_train`` samples, into spans.

    Args:
        num_train: samples.
        count_last: only so many of the last raw files that have training samples; 0 takes them all.
        samples_of_files: samples of each raw file.
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


def describe_spans(spans: Iterable[Span], columns: Manifest) -> tuple[SpanInfo, ...]:
    """Describe the spans as the manifest of counts has them."""
    return tuple(
        SpanInfo(
            file=span.file,
            first_sample=span.first,
            num_samples=span.stop - span.first,
            xxh3_128_of_parts=_checksum_of_parts(columns, span.first, span.stop),
        )
        for span in spans
    )


def bases_of(spans: Sequence[Span], columns: Manifest, before: Manifest | None) -> dict[Span, Base]:
    """Find the spans whose first samples, or all of them, were counted before from the same parts."""
    bases: dict[Span, Base] = {}
    if before is None:
        return bases
    # The same span has the same first sample, whatever the log has gained behind it.
    by_first = {span.first: span for span in spans}
    for known in CountsTotals.of(before).spans:
        old = Span(known.first_sample, known.first_sample + known.num_samples, known.file)
        span = by_first.get(old.first)
        # Counts can only be added to: a span that has lost samples is counted from the start.
        if span is None or old.stop > span.stop:
            continue
        if _is_same_log(known, columns):
            bases[span] = Base(old, before)
    return bases


def has_grown(columns: Manifest, counts: Path) -> bool:
    """Whether the folder ``counts`` was sealed from parts that ``columns`` still has, all of them."""
    before = Manifest.read(counts) if is_sealed(counts) else read_before(counts)
    if before is None:
        return False
    try:
        spans = CountsTotals.of(before).spans
    except ManifestError:  # a manifest that no run of this version wrote
        return False
    return bool(spans) and all(_is_same_log(span, columns) for span in spans)


def _is_same_log(span: SpanInfo, columns: Manifest) -> bool:
    """Whether ``columns`` has the parts that a span was counted from."""
    last = span.first_sample + span.num_samples
    return _checksum_of_parts(columns, span.first_sample, last) == span.xxh3_128_of_parts


def parts_of(columns: Manifest, first: int, stop: int) -> Iterator[tuple[FileEntry, int, int]]:
    """Yield each part with samples of ``[first, stop)``, and which of its own those are."""
    # Parts carry no position of their own: it is the sum of the samples before them.
    start = 0
    for entry in columns.files:
        low = max(first - start, 0)
        high = min(stop - start, entry.num_samples)
        if low < high:
            yield entry, low, high
        start += entry.num_samples


def _checksum_of_parts(columns: Manifest, first: int, stop: int) -> str:
    parts = [
        [entry.path, entry.num_samples, entry.xxh3_128] for entry, _, _ in parts_of(columns, first, stop)
    ]
    return checksum_of({"parts": parts})
