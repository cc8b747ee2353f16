"""Counts of several sources added up, in chunks of any size, against a dictionary."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats import count_merging as merging
from hotset.stats.count_merging import Counts, count_distinct, merge_chunks, merge_counts

_LIMITS = (0, 1, 2, 3, 77, 2**31, 2**32 - 1)


def source(counts: dict[int, int], dtype: Any) -> Counts:
    rows = sorted(counts.items())
    return np.array([c for c, _ in rows], dtype), np.array([n for _, n in rows], np.int64)


def merged(sources: list[Counts], dtype: Any = np.uint64) -> list[tuple[int, int]]:
    room = sum(categories.shape[0] for categories, _ in sources)
    categories = np.zeros(room, dtype)
    counts = np.zeros(room, np.int64)
    num_distinct = merge_counts(sources, categories, counts)
    return list(zip(categories[:num_distinct].tolist(), counts[:num_distinct].tolist(), strict=True))


def naive_merge(days: list[dict[int, int]]) -> list[tuple[int, int]]:
    total: Counter[int] = Counter()
    for day in days:
        total.update(day)
    return sorted(total.items())


_DAY = st.dictionaries(
    st.sampled_from(_LIMITS) | st.integers(0, 40) | st.integers(0, 2**32 - 1), st.integers(1, 10**9)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_DAY, max_size=6), st.sampled_from([1, 2, 7, 1 << 17]), st.booleans())
def test_sources_agree_with_a_dictionary(days: list[dict[int, int]], chunk_rows: int, is_short: bool) -> None:
    dtype = np.uint32 if is_short else np.uint64
    before = merging.CHUNK_ROWS
    merging.CHUNK_ROWS = chunk_rows
    try:
        sources = [source(day, dtype) for day in days]
        assert merged(sources, dtype) == naive_merge(days)
        assert count_distinct(sources) == len(naive_merge(days))
        share = max(1, chunk_rows // max(1, len(days)))
        assert all(chunk.shape[0] <= share * len(days) for chunk, _ in merge_chunks(sources))
    finally:
        merging.CHUNK_ROWS = before


def test_sources_of_both_widths_and_the_largest_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {1: 2, 2**32: 3, 2**63: 5, 2**64 - 1: 7}
    short = {0: 11, 1: 13, 2**32 - 1: 17}
    sources = [source(long, np.uint64), source(short, np.uint32), source({}, np.uint64)]
    for chunk_rows in (1, 2, 4, 100):
        monkeypatch.setattr(merging, "CHUNK_ROWS", chunk_rows)
        assert merged(sources) == naive_merge([long, short])


def test_no_source_gives_no_category() -> None:
    assert merged([]) == [] and merged([source({}, np.uint32)]) == []


def test_many_skewed_sources_agree(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "CHUNK_ROWS", 500)
    days = [dict(Counter((rng.zipf(1.3, 2000) % 2**32).tolist())) for _ in range(9)]
    assert merged([source(day, np.uint32) for day in days], np.uint32) == naive_merge(days)
