"""Hash tables of ids against dictionaries, with categories that collide.

The hash everything random is made of: pinned values, and a bijection.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.id_tables import (
    build_id_table,
    find_ids,
    find_long_ids,
    find_short_ids,
    id_table_bytes,
    insert_long_ids,
    insert_short_ids,
    mix64,
    mix64_pair,
    most_rows_within,
    new_short_table,
    new_table,
    settle_unknown,
)
from hotset.stats.kernel import read_only
from hotset.tests.support.hashed_categories import ALL_VALID, COLLIDING, bitmap, entries_of

_SHORT = st.sampled_from([0, 1, 5, 2**31, 2**32 - 1, *((number << 27) + 1 for number in range(12))])


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
    insert_long_ids(categories, 0, missing_id, oov_id, table)
    ids = {category: i for i, category in enumerate(rows) if i not in (missing_id, oov_id)}
    assert entries_of(table) == {category: i + 1 for category, i in ids.items()}
    matrix = np.full((len(lookups), 3), -7, np.int32)
    wanted = [ids.get(category, 101) if valid else 100 for category, valid in lookups]
    looked_up = np.array([category for category, _ in lookups], np.uint64)
    is_valid = bitmap([valid for _, valid in lookups]) if lookups else ALL_VALID
    find_long_ids(read_only(looked_up), is_valid, table, 100, 101, matrix[:, 1])
    assert matrix[:, 1].tolist() == wanted
    assert (matrix[:, ::2] == -7).all()


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
    is_valid = bitmap([valid for _, valid in lookups]) if lookups else ALL_VALID
    found = np.empty(len(lookups), np.int32)
    find_short_ids(read_only(looked_up), is_valid, table, 100, -1, found)
    assert found.tolist() == [ids.get(category, -1) if valid else 100 for category, valid in lookups]


def test_ids_of_uint32_without_missing_values(rng: np.random.Generator) -> None:
    categories = rng.choice(2**32, 5000, replace=False).astype(np.uint32)
    table = new_table(categories.shape[0])
    insert_long_ids(categories, 0, -1, -1, table)
    order = rng.permutation(categories.shape[0])
    ids = np.empty(categories.shape[0], np.int32)
    find_long_ids(read_only(categories[order]), ALL_VALID, table, -1, -2, ids)
    np.testing.assert_array_equal(ids, order)


@pytest.mark.parametrize("shape", [(3, 0), (1, 1), (4, 50), (26, 64), (3, 200)])
def test_unknown_lookups_get_the_oov_row(shape: tuple[int, int], rng: np.random.Generator) -> None:
    ids = rng.integers(-1, 5, shape).astype(np.int32)
    oov_ids = rng.integers(0, 5, shape[0]).astype(np.int32)
    wanted = np.where(ids < 0, oov_ids[:, None], ids)
    num_oov = np.ones(shape[0], np.int64)
    matrix = np.full(shape[::-1], -7, np.int32)
    settle_unknown(ids, oov_ids, num_oov, matrix)
    np.testing.assert_array_equal(matrix, wanted.T)
    np.testing.assert_array_equal(num_oov, 1 + (wanted == oov_ids[:, None]).sum(axis=1))


def test_unknown_elements_of_lists_get_the_oov_row_in_place(rng: np.random.Generator) -> None:
    ids = rng.integers(-1, 5, 200).astype(np.int32)
    wanted = np.where(ids < 0, 3, ids)
    num_oov = np.zeros(1, np.int64)
    settle_unknown(ids[None], np.array([3], np.int32), num_oov, ids[:, None])
    np.testing.assert_array_equal(ids, wanted)
    assert num_oov[0] == (wanted == 3).sum()


@pytest.mark.parametrize(("dtype", "ndim"), [(np.uint32, 1), (np.uint64, 2)])
def test_entries_are_as_wide_as_categories_need(dtype: type, ndim: int) -> None:
    categories: NDArray[Any] = np.array([7, 9, 0, 5], dtype)
    table = build_id_table(categories, 10, 11, 12)
    assert table.ndim == ndim
    assert table.nbytes == id_table_bytes(4, categories.itemsize)
    found = np.empty(4, np.int32)
    find_ids(np.array([5, 9, 7, 6], dtype), ALL_VALID, table, -2, -1, found)
    assert found.tolist() == [13, -1, 10, -1]


@pytest.mark.parametrize("category_bytes", [4, 8])
@pytest.mark.parametrize("room_bytes", [256, 257, 1000, 1 << 16, (1 << 20) - 1])
def test_as_many_rows_as_the_room_holds(room_bytes: int, category_bytes: int) -> None:
    num_rows = most_rows_within(room_bytes, category_bytes)
    assert (
        id_table_bytes(num_rows, category_bytes) <= room_bytes < id_table_bytes(num_rows + 1, category_bytes)
    )
    assert most_rows_within(0, category_bytes) > 0


_MASK = 2**64 - 1
_LONGS = st.integers(0, _MASK)


def naive_mix64(bits: int) -> int:
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def naive_unmix64(bits: int) -> int:
    bits ^= (bits >> 31) ^ (bits >> 62)
    bits = (bits * pow(0x94D049BB133111EB, -1, 2**64)) & _MASK
    bits ^= (bits >> 27) ^ (bits >> 54)
    bits = (bits * pow(0xBF58476D1CE4E5B9, -1, 2**64)) & _MASK
    bits ^= (bits >> 30) ^ (bits >> 60)
    return (bits - 0x9E3779B97F4A7C15) & _MASK


@pytest.mark.parametrize(
    ("bits", "pinned"),
    [
        (0, 0xE220A8397B1DCDAF),
        (1, 0x910A2DEC89025CC1),
        (12345, 0x22118258A9D111A0),
        (2**63, 0x481EC0A212A9F3DB),
        (2**64 - 1, 0xE4D971771B652C20),
    ],
)
def test_mix64_never_changes(bits: int, pinned: int) -> None:
    assert int(mix64(np.uint64(bits))) == pinned == naive_mix64(bits)


@pytest.mark.parametrize(
    ("seed", "position", "pinned"),
    [
        (0, 0, 0xA706DD2F4D197E6F),
        (0, 1, 0x8B4FDA8C892B50E),
        (1, 0, 0x5E41AB087439611E),
        (7, 45_840_616, 0xA8091133894C49C6),
        (2**64 - 1, 2**64 - 1, 0x6309143E67A47936),
    ],
)
def test_mix64_pair_never_changes(seed: int, position: int, pinned: int) -> None:
    assert int(mix64_pair(np.uint64(seed), np.uint64(position))) == pinned


@given(bits=_LONGS)
def test_mix64_is_the_formula_and_can_be_undone(bits: int) -> None:
    mixed = int(mix64(np.uint64(bits)))
    assert mixed == naive_mix64(bits)
    assert naive_unmix64(mixed) == bits


@given(seed=_LONGS, position=_LONGS)
def test_mix64_pair_is_two_rounds(seed: int, position: int) -> None:
    wanted = naive_mix64(naive_mix64(seed) ^ position)
    assert int(mix64_pair(np.uint64(seed), np.uint64(position))) == wanted


def test_each_input_bit_moves_about_half_of_the_output_bits(rng: np.random.Generator) -> None:
    num_words = 500
    words = rng.integers(0, 2**63, num_words, dtype=np.uint64)
    for bit in range(0, 64, 7):
        pairs = ((int(mix64(w)), int(mix64(w ^ np.uint64(1 << bit)))) for w in words)
        moved = sum((a ^ b).bit_count() for a, b in pairs) / (64 * num_words)
        assert abs(moved - 0.5) < 5 * 0.5 / np.sqrt(64 * num_words)
