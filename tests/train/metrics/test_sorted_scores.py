"""Sorting scores in parts: the counts are those of one sort, and memory does not grow."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import HotsetError
from hotset.stats.metrics import RankCounts, close_tie, count_sorted
from hotset.train.metrics.sorted_scores import SortedScores


def counted_at_once(words: list[int]) -> RankCounts:
    counts = RankCounts.none()
    count_sorted(np.sort(np.array(words, np.uint64)), counts)
    close_tie(counts)
    return counts


@settings(derandomize=True, max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 2**35 - 1) | st.integers(0, 40), max_size=60), st.data())
def test_parts_of_any_size_give_the_counts_of_one_sort(words: list[int], data: st.DataObject) -> None:
    scores = SortedScores(part_words=data.draw(st.integers(1, 70)))
    start = 0
    while start < len(words):
        stop = start + data.draw(st.integers(1, 20))
        scores.add(np.array(words[start:stop], np.uint64))
        start = stop
    for found, wanted in zip(scores.count(), counted_at_once(words), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_parts_that_are_read_piece_by_piece_are_merged_in_order(rng: np.random.Generator) -> None:
    words = rng.integers(0, 3000, 20_000).tolist()
    scores = SortedScores(part_words=2_600)
    scores.add(np.array(words, np.uint64))
    for found, wanted in zip(scores.count(), counted_at_once(words), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_memory_does_not_grow_with_the_samples(rng: np.random.Generator) -> None:
    scores = SortedScores(part_words=1 << 14)
    part = rng.integers(0, 2**35, 1 << 14).astype(np.uint64)
    scores.add(part[:100])
    tracemalloc.start()
    for _ in range(40):
        scores.add(part)
    assert scores.count().counts_G3[0, 1] == 100 + 40 * (1 << 14)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * (1 << 14) * 6  # of 41 parts


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    scores = SortedScores(tmp_path / "none", part_words=2)
    with pytest.raises(HotsetError, match="none has no room for the scores"):
        scores.add(np.arange(9, dtype=np.uint64))


def test_the_file_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    scores = SortedScores(part_words=2)
    scores.add(np.arange(9, dtype=np.uint64))
    assert list(tmp_path.iterdir()) == []
    scores.close()
    assert scores.count().counts_G3.sum() == 0
