"""Hash tables against dictionaries: counts, growth, ids, and categories that collide.

Tests `cpu_prefetch`, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.counting.hash_table import (
    MAX_LOAD,
    add_counts,
    compact_entries,
    copy_entries,
    find_ids,
    find_short_ids,
    insert_ids,
    insert_short_ids,
    new_short_table,
    new_table,
    settle_unknown,
)
from hotset.stats.cpu_prefetch import AHEAD, prefetch

_ALL_VALID = np.zeros(0, np.uint8)
_INVERSE = pow(0x9E3779B97F4A7C15, -1, 2**64)
COLLIDING = [(number * _INVERSE) % 2**64 for number in range(12)]
"""64-bit categories whose first probe is the same entry."""


def bitmap(is_valid: list[bool]) -> NDArray[np.uint8]:
    return np.packbits(np.array(is_valid, np.bool_), bitorder="little")


def entries_of(table: NDArray[np.uint64]) -> dict[int, int]:
    return {int(category): int(number) for category, number in table if number != 0}


@pytest.mark.parametrize("num_entries", [0, 1, 11, 12, 716, 717, 718, 100_000])
def test_a_new_table_has_room(num_entries: int) -> None:
    capacity = new_table(num_entries).shape[0]
    assert capacity & (capacity - 1) == 0 and capacity >= 16
    assert num_entries <= MAX_LOAD * capacity


@settings(max_examples=100, deadline=None)
@given(
    lookups=st.lists(
        st.tuples(st.sampled_from([0, 1, 2**32 - 1, 2**64 - 1, *COLLIDING]), st.booleans()), max_size=60
    ),
    room=st.integers(0, 15),
)
def test_counts_agree_with_a_counter_up_to_the_room(lookups: list[tuple[int, bool]], room: int) -> None:
    categories = np.array([category for category, _ in lookups], np.uint64)
    is_valid = bitmap([valid for _, valid in lookups]) if lookups else _ALL_VALID
    table = new_table(0)
    stopped, num_used, num_missing = add_counts(categories, is_valid, 0, table, 0, room)
    seen: Counter[int] = Counter()
    wanted = len(lookups)
    for i, (category, valid) in enumerate(lookups):
        if valid and category not in seen and len(seen) == room:
            wanted = i
            break
        seen.update([category] if valid else [])
    assert stopped == wanted
    assert entries_of(table) == dict(seen) and num_used == len(seen)
    assert num_missing == sum(not valid for _, valid in lookups[:wanted])


@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_counting_goes_on_where_it_stopped(dtype: type, rng: np.random.Generator) -> None:
    categories: NDArray[Any] = (rng.zipf(1.3, 3000) % 400).astype(dtype)
    table = new_table(0)
    done = 0
    num_used = 0
    num_missing = 0
    while done < categories.shape[0]:
        max_used = int(MAX_LOAD * table.shape[0])
        done, num_used, missing = add_counts(categories, _ALL_VALID, done, table, num_used, max_used)
        num_missing += missing
        larger = np.zeros((2 * table.shape[0], 2), np.uint64)
        copy_entries(table, larger)
        assert entries_of(larger) == entries_of(table)
        table = larger
    assert entries_of(table) == dict(Counter(categories.tolist()))
    assert num_used == len(set(categories.tolist())) and num_missing == 0


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(st.sampled_from([0, 5, 2**32 - 1, *COLLIDING]), max_size=14, unique=True),
    missing_id=st.integers(-1, 14),
    oov_id=st.integers(-1, 14),
    lookups=st.lists(
        st.tuples(st.sampled_from([0, 5, 6, 2**32 - 1, *COLLIDING, 2**64 - 1]), st.booleans()), max_size=40
    ),
)
def test_ids_agree_with_a_dictionary(
    rows: list[int], missing_id: int, oov_id: int, lookups: list[tuple[int, bool]]
) -> None:
    table = new_table(len(rows))
    categories = np.array(rows, np.uint64)
    insert_ids(categories, 0, missing_id, oov_id, table)
    ids = {category: i for i, category in enumerate(rows) if i not in (missing_id, oov_id)}
    assert entries_of(table) == {category: i + 1 for category, i in ids.items()}
    matrix = np.full((len(lookups), 3), -7, np.int32)
    wanted = [ids.get(category, 101) if valid else 100 for category, valid in lookups]
    looked_up = np.array([category for category, _ in lookups], np.uint64)
    is_valid = bitmap([valid for _, valid in lookups]) if lookups else _ALL_VALID
    find_ids(looked_up, is_valid, table, 100, 101, matrix[:, 1])
    assert matrix[:, 1].tolist() == wanted
    assert (matrix[:, ::2] == -7).all()


def test_taken_entries_move_to_the_front(rng: np.random.Generator) -> None:
    table = np.zeros((500, 2), np.uint64)
    rows = np.flatnonzero(rng.random(500) < 0.4)
    table[rows] = rng.integers(1, 2**63, (rows.shape[0], 2)).astype(np.uint64)
    wanted = table[rows].copy()
    assert compact_entries(table) == rows.shape[0]
    np.testing.assert_array_equal(table[: rows.shape[0]], wanted)


_SHORT = st.sampled_from([0, 1, 5, 2**31, 2**32 - 1, *((number << 27) + 1 for number in range(12))])


@settings(max_examples=100, deadline=None)
@given(
    rows=st.lists(_SHORT, max_size=14, unique=True),
    first_id=st.sampled_from([0, 7, 2**31 - 20]),
    missing=st.integers(-1, 14),
    oov=st.integers(-1, 14),
    lookups=st.lists(st.tuples(_SHORT, st.booleans()), max_size=40),
)
def test_short_tables_agree_with_a_dictionary(
    rows: list[int], first_id: int, missing: int, oov: int, lookups: list[tuple[int, bool]]
) -> None:
    table = new_short_table(len(rows))
    insert_short_ids(np.array(rows, np.uint32), first_id, first_id + missing, first_id + oov, table)
    ids = {category: first_id + i for i, category in enumerate(rows) if i not in (missing, oov)}
    looked_up = np.array([category for category, _ in lookups], np.uint32)
    is_valid = bitmap([valid for _, valid in lookups]) if lookups else _ALL_VALID
    found = np.empty(len(lookups), np.int32)
    find_short_ids(looked_up, is_valid, table, 100, -1, found)
    assert found.tolist() == [ids.get(category, -1) if valid else 100 for category, valid in lookups]


def test_ids_of_uint32_without_missing_values(rng: np.random.Generator) -> None:
    categories = rng.choice(2**32, 5000, replace=False).astype(np.uint32)
    table = new_table(categories.shape[0])
    insert_ids(categories, 0, -1, -1, table)
    order = rng.permutation(categories.shape[0])
    ids = np.empty(categories.shape[0], np.int32)
    find_ids(categories[order], _ALL_VALID, table, -1, -2, ids)
    np.testing.assert_array_equal(ids, order)


@pytest.mark.parametrize("num_lookups", [int(AHEAD) - 1, int(AHEAD), int(AHEAD) + 1, 1000])
def test_asking_ahead_ends_with_the_lookups(num_lookups: int, rng: np.random.Generator) -> None:
    categories = rng.integers(0, 2**32, num_lookups).astype(np.uint32)
    is_valid = bitmap((rng.random(num_lookups) < 0.8).tolist())
    table = new_table(3 << 13)  # large enough for counting to ask
    stopped, num_used, num_missing = add_counts(categories, is_valid, 0, table, 0, num_lookups)
    valid = categories[np.unpackbits(is_valid, count=num_lookups, bitorder="little") == 1]
    assert entries_of(table) == dict(Counter(valid.tolist()))
    assert (stopped, num_used, num_missing) == (num_lookups, len(set(valid)), num_lookups - valid.shape[0])
    rows = np.unique(valid)
    ids = {category: i for i, category in enumerate(rows.tolist())}
    wanted = [ids[category] if category in valid else -5 for category in categories.tolist()]
    long = new_table(rows.shape[0])
    short = new_short_table(rows.shape[0])
    insert_ids(rows, 0, -1, -1, long)
    insert_short_ids(rows, 0, -1, -1, short)
    found = np.empty((2, num_lookups), np.int32)
    find_ids(categories, _ALL_VALID, long, -1, -5, found[0])
    find_short_ids(categories, _ALL_VALID, short, -1, -5, found[1])
    assert found[0].tolist() == wanted and found[1].tolist() == wanted


def test_asking_changes_nothing() -> None:
    table = np.arange(32, dtype=np.uint64).reshape(16, 2)
    prefetch(table, np.uint64(15))
    np.testing.assert_array_equal(table.reshape(-1), np.arange(32))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (50, 4), (50, 26)])
def test_unknown_lookups_get_the_oov_row(shape: tuple[int, int], rng: np.random.Generator) -> None:
    ids = rng.integers(-1, 5, shape).astype(np.int32)
    oov_ids = rng.integers(0, 5, shape[1]).astype(np.int32)
    wanted = np.where(ids < 0, oov_ids, ids)
    num_oov = np.ones(shape[1], np.int64)
    settle_unknown(ids, oov_ids, num_oov)
    np.testing.assert_array_equal(ids, wanted)
    np.testing.assert_array_equal(num_oov, 1 + (wanted == oov_ids).sum(axis=0))
