"""Marks find the rows of a batch and their ranks as sorting its lookups does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.exchange.rank_masks import lowest_bit, mask_type
from hotset.stats.exchange.row_users import mark_bytes, mark_users, take_marked, unset_marks


def naive_users(lookups: list[tuple[int, int]]) -> dict[int, set[int]]:
    """The ranks that look up each row, of pairs of both."""
    users: dict[int, set[int]] = {}
    for key, rank in lookups:
        users.setdefault(key, set()).add(rank)
    return users


@given(st.data(), st.sampled_from([1, 2, 8, 9, 64]), st.sampled_from([1, 63, 64, 65, 5000, 300_000]))
@settings(max_examples=60, deadline=None)
def test_marked_rows_are_those_of_the_lookups(data: st.DataObject, num_ranks: int, num_rows: int) -> None:
    marks = unset_marks(num_rows, num_ranks)
    assert mark_bytes(num_rows, num_ranks) >= sum(each.nbytes for each in marks) - 24
    # One batch after another: what one leaves behind, the next would find.
    for _ in range(2):
        rank = st.integers(0, num_ranks - 1)
        key = st.integers(0, num_rows - 1)
        samples = data.draw(st.lists(st.tuples(rank, key, key), max_size=30))
        ids = np.array([keys for _, *keys in samples], np.int32).reshape(-1, 2)
        ranks = np.array([rank for rank, *_ in samples], np.uint8)
        # The tables of the width are the last column, and the rows before the first one's.
        moved = np.stack([ids[:, 1], np.full(len(samples), -7, np.int32), ids[:, 0] // 2], axis=1)
        first_keys = np.array([num_rows // 2, 0])
        found = mark_users(np.ascontiguousarray(moved), np.array([2, 0]), first_keys, ranks, marks)
        keys, masks = take_marked(marks, found)
        wanted = naive_users(
            [(first // 2 + num_rows // 2, rank) for rank, first, _ in samples]
            + [(second, rank) for rank, _, second in samples]
        )
        assert keys.tolist() == sorted(wanted)
        assert masks.tolist() == [sum(1 << rank for rank in wanted[key]) for key in sorted(wanted)]
        assert keys.dtype == np.int32 and masks.dtype == mask_type(num_ranks)
        assert not any(each.any() for each in marks)


@pytest.mark.parametrize("bit", range(64))
def test_the_lowest_bit_of_a_mask_is_found(bit: int) -> None:
    assert lowest_bit(np.uint64(1 << bit)) == bit
    assert lowest_bit(np.uint64(((1 << 64) - 1) >> bit << bit)) == bit
