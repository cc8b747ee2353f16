"""Counts against dictionaries: of one counter, of both kinds of tables, of merged runs, and estimates."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats import counting
from hotset.stats.counting import (
    CategoryCounter,
    Counts,
    add_counts,
    category_bounds,
    compact_entries,
    copy_entries,
    distinct_at,
    merge_chunks,
    merge_counts,
    rows_within,
    take_valid,
)
from hotset.stats.id_tables import HALF, LOW_HALF, MAX_LOAD, most_used, new_table, shift_of
from hotset.stats.kernel import read_only
from hotset.tests.support.compiled import compiled_only
from hotset.tests.support.hashed_categories import ALL_VALID, COLLIDING, bitmap, entries_of

_ALL_VALID = np.zeros(0, np.uint8)


def counted(counter: CategoryCounter) -> dict[int, int]:
    categories, counts = counter.take()
    assert categories.dtype == np.uint64 and counts.dtype == np.int64
    assert (np.diff(categories.astype(object)) > 0).all()
    return dict(zip(categories.tolist(), counts.tolist(), strict=True))


def skewed(num_lookups: int, rng: np.random.Generator) -> NDArray[np.uint32]:
    return (rng.zipf(1.2, num_lookups) % 2**32).astype(np.uint32)


@pytest.mark.parametrize("num_lookups", [0, 1, 7, 4096, 30_000])
def test_counts_agree_with_a_counter(num_lookups: int, rng: np.random.Generator) -> None:
    categories = skewed(num_lookups, rng)
    counter = CategoryCounter()
    for chunk in np.array_split(categories, 3):
        counter.add(chunk, _ALL_VALID)
    assert counted(counter) == dict(Counter(categories.tolist()))
    assert counter.num_missing == 0


def test_a_table_that_grows_within_a_chunk_loses_nothing(rng: np.random.Generator) -> None:
    categories = rng.choice(2**32, 20_000, replace=False).astype(np.uint32)
    is_valid = np.packbits(rng.random(20_000) < 0.9, bitorder="little")
    counter = CategoryCounter()
    counter.add(categories, is_valid)
    counter.add(categories[::-1], _ALL_VALID)
    present = np.unpackbits(is_valid, count=20_000, bitorder="little").astype(np.bool_)
    wanted = Counter(categories[present].tolist()) + Counter(categories.tolist())
    assert counted(counter) == dict(wanted)
    assert counter.num_missing == 20_000 - int(present.sum())


def test_counts_and_categories_beyond_32_bits_are_exact() -> None:
    counter = CategoryCounter()
    most = 2**32 - 1
    counter.add(np.array([7, 8, 7, most, 0], np.uint32), _ALL_VALID)
    counter._table[counter._table == (7 << 32 | 2)] += np.uint64(most - 3)  # 7 was seen 2**32 - 2 times
    counter.add(np.array([7], np.uint32), _ALL_VALID)
    assert counter._table.ndim == 1
    counter.add(np.array([9, 7, 8, 7, 7], np.uint32), np.array([0b01111], np.uint8))
    assert counter._table.ndim == 2 and counter.num_missing == 1
    counter.add(np.array([2**63, 8], np.uint64), _ALL_VALID)
    assert counted(counter) == {0: 1, 7: 2**32 + 1, 8: 3, 9: 1, most: 1, 2**63: 1}


@compiled_only
def test_a_large_table_doubles() -> None:
    counter = CategoryCounter()
    categories = np.arange(250_000, dtype=np.uint32)
    counter.add(categories, _ALL_VALID)
    assert counter.num_bytes == 8 * 2**19
    assert counted(counter) == dict.fromkeys(range(250_000), 1)


def test_the_place_to_go_on_from_is_a_whole_number() -> None:
    """As 0 is, where the first call begins: one of another type would be compiled for by itself."""
    categories = read_only(np.arange(9, dtype=np.uint32))
    for table in (np.zeros(16, np.uint64), np.zeros((16, 2), np.uint64)):
        stopped, _ = add_counts(categories, 0, table, shift_of(table), 0, 4)
        assert stopped == 4 and isinstance(stopped, int)


@pytest.mark.parametrize("num_runs", [1, 2, 5])
def test_runs_of_an_emptied_counter_add_up(num_runs: int, rng: np.random.Generator) -> None:
    categories = skewed(9000, rng)
    counter = CategoryCounter()
    runs = []
    for chunk in np.array_split(categories, num_runs):
        counter.add(chunk, _ALL_VALID)
        runs.append(counter.take())
    runs.insert(1, counter.take())
    merged = np.zeros(9000, np.uint32)
    counts = np.zeros(9000, np.int64)
    num_categories = merge_counts(runs, merged, counts)
    wanted = sorted(Counter(categories.tolist()).items())
    found = zip(merged[:num_categories].tolist(), counts[:num_categories].tolist(), strict=True)
    assert list(found) == wanted


def test_a_counter_that_is_emptied_begins_anew() -> None:
    counter = CategoryCounter()
    is_valid = np.full(1125, 255, np.uint8)
    is_valid[0] = 0
    counter.add(np.arange(9000, dtype=np.uint32), is_valid)
    num_bytes = counter.num_bytes
    assert len(counter.take()[0]) == 8992 and counter.num_bytes < num_bytes
    assert len(counter.take()[0]) == 0 and counter.num_missing == 8


@pytest.mark.parametrize("num_entries", [0, 1, 11, 12, 716, 717, 718, 100_000])
def test_a_new_table_has_room(num_entries: int) -> None:
    capacity = new_table(num_entries).shape[0]
    assert capacity & (capacity - 1) == 0 and capacity >= 16
    assert num_entries <= MAX_LOAD * capacity
    # The smallest such table that is no smaller than sixteen entries.
    assert num_entries <= most_used(capacity)
    assert capacity == 16 or num_entries > most_used(capacity // 2)


def test_a_table_in_the_cache_keeps_more_of_its_entries_free_than_a_large_one() -> None:
    free = {capacity: 1 - most_used(capacity) / capacity for capacity in (1 << bits for bits in range(4, 30))}
    assert all(free[capacity] >= 0.8 for capacity in free if capacity <= 1 << 15)
    assert all(0.29 < free[capacity] < 0.31 for capacity in free if capacity > 1 << 15)


@settings(max_examples=60, deadline=None)
@given(
    lookups=st.lists(st.sampled_from([0, 1, 2**32 - 1, 2**64 - 1, *COLLIDING]), max_size=60),
    room=st.integers(0, 15),
)
def test_counts_agree_with_a_counter_up_to_the_room(lookups: list[int], room: int) -> None:
    categories = read_only(np.array(lookups, np.uint64))
    table = new_table(0)
    stopped, num_used = add_counts(categories, 0, table, shift_of(table), 0, room)
    seen: dict[int, int] = {}
    assert (stopped, num_used) == counted_one_by_one(lookups, 0, seen, room)
    assert entries_of(table) == seen


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_counting_goes_on_where_it_stopped(dtype: type, rng: np.random.Generator) -> None:
    categories: NDArray[Any] = read_only((rng.zipf(1.3, 3000) % 400).astype(dtype))
    table = new_table(0)
    done = 0
    num_used = 0
    while done < categories.shape[0]:
        max_used = int(MAX_LOAD * table.shape[0])
        done, num_used = add_counts(categories, done, table, shift_of(table), num_used, max_used)
        larger = np.zeros((2 * table.shape[0], 2), np.uint64)
        copy_entries(table, larger)
        assert entries_of(larger) == entries_of(table)
        table = larger
    assert entries_of(table) == dict(Counter(categories.tolist()))
    assert num_used == len(set(categories.tolist()))


@pytest.mark.parametrize("words", [(), (2,)])
def test_taken_entries_move_to_the_front(words: tuple[int, ...], rng: np.random.Generator) -> None:
    table = np.zeros((500, *words), np.uint64)
    rows = np.flatnonzero(rng.random(500) < 0.4)
    table[rows] = rng.integers(1, 2**63, (rows.shape[0], *words)).astype(np.uint64)
    wanted = table[rows].copy()
    assert compact_entries(table) == rows.shape[0]
    np.testing.assert_array_equal(table[: rows.shape[0]], wanted)


@given(
    st.floats(0, 1e10),
    st.integers(0, 10**6),
    st.lists(st.integers(0, 10**6), min_size=3, max_size=3).map(sorted),
)
def test_it_is_never_more_than_lookups_nor_fewer_than_seen(
    num_lookups: float, num_sampled: int, distinct: list[int]
) -> None:
    found = distinct_at(num_lookups, distinct, num_sampled)
    assert 0 <= found <= max(num_lookups, distinct[2] + 1)
    if num_lookups >= max(num_sampled, distinct[2], 1) and num_sampled:
        assert found >= max(1, distinct[2]) or found == num_lookups
        assert distinct_at(2 * num_lookups, distinct, num_sampled) >= found


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("skew", [1.1, 1.3, 1.7, 2.5])
@pytest.mark.parametrize("times", [1, 3, 30])
def test_skewed_draws_are_told_within_a_factor_of_two(
    skew: float, times: int, rng: np.random.Generator
) -> None:
    draws = rng.zipf(skew, 20_000 * times) % 10**7
    sample = draws[:20_000]
    prefixes = [np.unique(sample[: 20_000 // part]).shape[0] for part in (4, 2, 1)]
    found = distinct_at(draws.shape[0], prefixes, 20_000)
    actual = np.unique(draws).shape[0]
    assert 0.5 < found / actual < 2


def test_a_small_table_is_seen_whole() -> None:
    assert distinct_at(10**9, [10, 10, 10], 1000) == 10
    assert distinct_at(100, [50, 70, 100], 1000) < 100


def counts_in(table: NDArray[np.uint64]) -> dict[int, int]:
    """Return the count of each category in a table of either kind."""
    if table.ndim == 2:
        return entries_of(table)
    return {int(word >> HALF): int(word & LOW_HALF) for word in table if word != 0}


def counted_one_by_one(
    categories: list[int], start: int, known: dict[int, int], room: int
) -> tuple[int, int]:
    """Count into ``known`` up to ``room`` categories; where it stopped, and categories."""
    for i in range(start, len(categories)):
        if categories[i] not in known and len(known) == room:
            return i, len(known)
        known[categories[i]] = known.get(categories[i], 0) + 1
    return len(categories), len(known)


@given(st.lists(st.booleans(), max_size=40))
def test_what_is_there_is_kept_in_its_order(is_there: list[bool]) -> None:
    categories = read_only(np.arange(100, 100 + len(is_there), dtype=np.uint32))
    taken = np.empty_like(categories)
    num_taken = take_valid(categories, bitmap(is_there), taken)
    assert taken[:num_taken].tolist() == categories[np.array(is_there, np.bool_)].tolist()


@pytest.mark.parametrize("share_missing", [0.0, 0.3, 0.95, 1.0])
def test_chunks_without_what_is_missing_add_up(share_missing: float, rng: np.random.Generator) -> None:
    categories = skewed(3 * counting._CHUNK + 70, rng)
    is_there = np.greater_equal(rng.random(categories.shape[0]), share_missing)
    counter = CategoryCounter()
    counter.add(categories, bitmap(is_there.tolist()) if share_missing else ALL_VALID)
    assert counted(counter) == dict(Counter(categories[is_there].tolist()))
    assert counter.num_missing == np.count_nonzero(~is_there)


@pytest.mark.parametrize(("is_short", "dtype"), [(True, np.uint32), (False, np.uint32), (False, np.uint64)])
def test_a_full_table_stops_at_the_lookup_that_finds_no_room(
    is_short: bool, dtype: type, rng: np.random.Generator
) -> None:
    num_lookups = 3000
    for num_categories, start in ((40, 0), (900, 0), (900, 5), (900, num_lookups)):
        categories: NDArray[Any] = read_only(rng.integers(0, num_categories, num_lookups).astype(dtype))
        num_distinct = len(set(categories.tolist()))
        # No room, some, all but one, just enough, and more.
        for room in (0, 1, num_distinct // 2, num_distinct - 1, num_distinct, num_distinct + 400):
            table = new_table(1500, is_short=is_short)
            known: dict[int, int] = {}
            wanted = counted_one_by_one(categories.tolist(), start, known, room)
            assert add_counts(categories, start, table, shift_of(table), 0, room) == wanted
            assert counts_in(table) == known


def test_a_full_count_stops_in_the_middle_of_a_chunk() -> None:
    categories = read_only(np.full(2000, 5, np.uint32))
    table = new_table(1, is_short=True)
    add_counts(categories[:1], 0, table, shift_of(table), 0, 8)
    table[table != 0] += np.uint64(2**32 - 2 - 300)  # room for 300 more
    assert add_counts(categories, 0, table, shift_of(table), 1, 8) == (300, 1)
    assert counts_in(table) == {5: 2**32 - 1}


@pytest.mark.parametrize("num_lookups", [1, 7, 1025])
@pytest.mark.parametrize(("is_short", "dtype"), [(True, np.uint32), (False, np.uint64)])
def test_room_for_all_new_categories_but_one_is_too_little(
    is_short: bool, dtype: type, num_lookups: int
) -> None:
    categories: NDArray[Any] = read_only(np.arange(num_lookups, dtype=dtype))
    for room in (num_lookups - 1, num_lookups):
        table = new_table(2000, is_short=is_short)
        assert add_counts(categories, 0, table, shift_of(table), 0, room) == (room, room)


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
    before = counting.CHUNK_ROWS
    counting.CHUNK_ROWS = chunk_rows
    try:
        sources = [source(day, dtype) for day in days]
        assert merged(sources, dtype) == naive_merge(days)
        share = max(min(chunk_rows, 512), chunk_rows // max(1, len(days)))
        assert all(chunk.shape[0] <= share * len(days) for chunk, _ in merge_chunks(sources))
    finally:
        counting.CHUNK_ROWS = before


def test_sources_of_both_widths_and_the_largest_categories(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {1: 2, 2**32: 3, 2**63: 5, 2**64 - 1: 7}
    short = {0: 11, 1: 13, 2**32 - 1: 17}
    sources = [source(long, np.uint64), source(short, np.uint32), source({}, np.uint64)]
    for chunk_rows in (1, 2, 4, 100):
        monkeypatch.setattr(counting, "CHUNK_ROWS", chunk_rows)
        assert merged(sources) == naive_merge([long, short])


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.dictionaries(st.integers(0, 300) | st.integers(0, 2**32 - 1), st.just(1)), max_size=7),
    st.integers(1, 60),
    st.booleans(),
)
def test_ranges_have_few_rows_and_each_row_is_in_one(
    days: list[dict[int, int]], most_rows: int, is_short: bool
) -> None:
    sources = [source(day, np.uint32 if is_short else np.uint64) for day in days]
    bounds = category_bounds([categories for categories, _ in sources], most_rows)
    assert bounds == sorted(set(bounds))
    most = max(most_rows, 3 * len(days))
    found: list[tuple[int, int]] = []
    for low, high in zip([0, *bounds], [*bounds, None], strict=True):
        ranges = [rows_within(each, low, high) for each in sources]
        assert sum(categories.shape[0] for categories, _ in ranges) <= most
        found += merged(ranges)
    assert found == naive_merge(days)


def test_a_range_ends_before_its_bound_for_categories_of_any_width() -> None:
    top = 2**64 - 1
    for dtype, known in ((np.uint32, [0, 5, 2**32 - 1]), (np.uint64, [0, 5, 2**32, top])):
        each = source(dict.fromkeys(known, 3), dtype)
        for low, high in ((0, None), (0, 5), (5, 6), (6, None), (2**32, None), (2**32 + 1, top), (top, None)):
            wanted = [one for one in known if low <= one and (high is None or one < high)]
            categories, counts = rows_within(each, low, high)
            assert categories.tolist() == wanted and counts.tolist() == [3] * len(wanted)
