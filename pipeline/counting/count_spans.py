"""Spans: consecutive training samples whose counts are kept together, and taken over when a log grows.

Without a window all training samples are one span. With one, each raw file of it is a span, so that the next
window counts the new files alone. A span names the parts it was counted from by a checksum of theirs:
counts are taken over where the parts are the same, whatever else became of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..folders.manifest import MANIFEST, FileEntry, Manifest, checksum_of
from ..folders.reopening import read_before


@dataclass(frozen=True, slots=True)
class Span:
    """Samples ``[first, stop)`` of the log."""

    first: int
    stop: int
    file: int | None
    """Number of the raw file in whose name the counts are kept; None where there is one span alone."""

    @property
    def prefix(self) -> str:
        """What the names of its files begin with."""
        return "" if self.file is None else f"file{self.file:04}-"

    @property
    def facts(self) -> dict[str, int]:
        """What the entries of its files say of it."""
        return {} if self.file is None else {"file": self.file}


@dataclass(frozen=True, slots=True)
class Base:
    """Counts of the first samples of a span, from before the log grew."""

    span: Span
    counts: Manifest

    def entry(self, table: str) -> FileEntry:
        """Their file of one table."""
        name = f"{self.span.prefix}{table}.arrow"
        return next(entry for entry in self.counts.files if entry.path == name)


def spans_of(num_train: int, count_last: int, raw: Sequence[dict[str, Any]]) -> list[Span]:
    """The spans of the training part, the first ``num_train`` samples.

    Args:
        num_train: samples.
        count_last: only so many of the last raw files that have training samples; 0 takes them all.
        raw: ``totals["raw"]`` of columns.
    """
    if not count_last:
        return [Span(0, num_train, None)]
    stops = list(accumulate(file["samples"] for file in raw))
    files = [
        Span(stop - file["samples"], min(stop, num_train), number)
        for number, (file, stop) in enumerate(zip(raw, stops, strict=True))
        if stop - file["samples"] < num_train
    ]
    spans = [span for span in files[-count_last:] if span.first < span.stop]
    return [Span(spans[0].first, spans[0].stop, None)] if len(spans) == 1 else spans


def describe_spans(spans: Sequence[Span], columns: Manifest) -> list[dict[str, Any]]:
    """The spans as counts' manifest has them."""
    return [
        {
            "file": span.file,
            "first_sample": span.first,
            "num_samples": span.stop - span.first,
            "xxh3_128_of_parts": _checksum_of_parts(columns, span.first, span.stop),
        }
        for span in spans
    ]


def bases_of(spans: Sequence[Span], columns: Manifest, before: Manifest | None) -> dict[Span, Base]:
    """Spans whose first samples, or all of them, were counted before, from the same parts."""
    bases: dict[Span, Base] = {}
    by_first = {span.first: span for span in spans}
    for facts in before.totals.get("spans", []) if before else []:
        old = Span(facts["first_sample"], facts["first_sample"] + facts["num_samples"], facts["file"])
        span = by_first.get(old.first)
        if span is None or old.stop > span.stop:
            continue
        if _checksum_of_parts(columns, old.first, old.stop) == facts["xxh3_128_of_parts"]:
            assert before is not None
            bases[span] = Base(old, before)
    return bases


def has_grown(columns: Manifest, counts: Path) -> bool:
    """Whether the folder ``counts`` was sealed from parts that ``columns`` still has, all of them."""
    before = Manifest.read(counts) if (counts / MANIFEST).exists() else read_before(counts)
    spans = before.totals.get("spans", []) if before else []
    try:
        return bool(spans) and all(
            _checksum_of_parts(columns, facts["first_sample"], facts["first_sample"] + facts["num_samples"])
            == facts["xxh3_128_of_parts"]
            for facts in spans
        )
    except (LookupError, TypeError):  # a manifest that no run of this version wrote
        return False


def parts_of(columns: Manifest, first: int, stop: int) -> Iterator[tuple[FileEntry, int, int]]:
    """Each part with samples of ``[first, stop)``, and which of its own those are."""
    start = 0
    for entry in columns.files:
        low, high = max(first - start, 0), min(stop - start, entry.num_samples)
        if low < high:
            yield entry, low, high
        start += entry.num_samples


def _checksum_of_parts(columns: Manifest, first: int, stop: int) -> str:
    parts = [
        [entry.path, entry.num_samples, entry.xxh3_128] for entry, _, _ in parts_of(columns, first, stop)
    ]
    return checksum_of({"parts": parts})
