"""Spans cut the training part at raw files, and parts are cut where a span begins and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.pipeline.counting.count_spans import Span, parts_of, spans_of
from hotset.pipeline.folders.manifest import FileEntry, Manifest


@pytest.mark.parametrize(
    ("num_train", "count_last", "files", "spans"),
    [
        (70, 0, [40, 30, 30], [Span(0, 70, None)]),
        (70, 1, [40, 30, 30], [Span(40, 70, None)]),
        (70, 2, [40, 30, 30], [Span(0, 40, 0), Span(40, 70, 1)]),
        (70, 9, [40, 30, 30], [Span(0, 40, 0), Span(40, 70, 1)]),
        (50, 2, [40, 30, 30], [Span(0, 40, 0), Span(40, 50, 1)]),
        (40, 1, [40, 30], [Span(0, 40, None)]),
        (70, 2, [40, 0, 30, 30], [Span(40, 70, None)]),
        (70, 3, [40, 0, 30, 30], [Span(0, 40, 0), Span(40, 70, 2)]),
    ],
)
def test_spans_are_the_last_files_of_the_training_part(
    num_train: int, count_last: int, files: list[int], spans: list[Span]
) -> None:
    assert spans_of(num_train, count_last, files) == spans


def test_files_of_a_span_are_named_by_its_raw_file() -> None:
    assert [Span(0, 9, None).prefix, Span(0, 9, 12).prefix] == ["", "file0012-"]


@pytest.mark.parametrize("first", range(10))
def test_parts_of_a_span_hold_each_of_its_samples_once(first: int) -> None:
    sizes = [3, 0, 4, 1]
    files = [FileEntry(f"part{number}", size, 0, "") for number, size in enumerate(sizes)]
    columns = Manifest(Path("columns"), "ingest", 1, {}, [], files, {}, "")
    samples = [(f"part{number}", own) for number, size in enumerate(sizes) for own in range(size)]
    for stop in range(first, 10):
        found = [
            (entry.path, own)
            for entry, low, high in parts_of(columns, first, stop)
            for own in range(low, high)
        ]
        assert found == samples[first:stop]
