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
    id_table_bytes,
    mix64,
    mix64_pair,
    most_rows_within,
    settle_unknown,
)
from hotset.tests.support.hashed_categories import ALL_VALID, COLLIDING, bitmap, entries_of

_SHORT = [0, 1, 5, 2**31, 2**32 - 1, *((number << 27) + 1 for number in range(12))]
_LONG = [0, 5, 6, 2**32 - 1, *COLLIDING, 2**64 - 1]


@settings(max_examples=100, deadline=None)
@given(data=st.data(), is_short=st.booleans(), first_id=st.sampled_from([0, 7, 2**31 - 20]))
def test_ids_agree_with_a_dictionary(data: st.DataObject, is_short: bool, first_id: int) -> None:
    some = st.sampled_from(_SHORT if is_short else _LONG)
    rows = data.draw(st.lists(some, max_size=14, unique=True))
    missing, oov = data.draw(st.integers(-1, 14)), data.draw(st.integers(-1, 14))
    lookups = data.draw(st.lists(st.tuples(some, st.booleans()), max_size=40))
    dtype = np.uint32 if is_short else np.uint64
    table = build_id_table(np.array(rows, dtype), first_id, first_id + missing, first_id + oov)
    ids = {category: first_id + i for i, category in enumerate(rows) if i not in (missing, oov)}
    if not is_short:
        assert entries_of(table) == {category: number + 1 for category, number in ids.items()}
    looked_up: NDArray[Any] = np.array([category for category, _ in lookups], dtype)
    is_valid = bitmap([valid for _, valid in lookups]) if lookups else ALL_VALID
    matrix = np.full((len(lookups), 3), -7, np.int32)
    find_ids(looked_up, is_valid, table, 100, -1, matrix[:, 1])
    assert matrix[:, 1].tolist() == [ids.get(category, -1) if valid else 100 for category, valid in lookups]
    assert (matrix[:, ::2] == -7).all()


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
