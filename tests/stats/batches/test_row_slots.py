"""Planning kernels against slow, obvious twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batches.row_slots import (
    epoch_order,
    find_distinct,
    first_stray_lookup,
    locate_rows,
    shuffled,
    spread_evenly,
)


def naive_distinct(rows: list[int]) -> tuple[list[int], list[int]]:
    places: dict[int, int] = {}
    inverse = [places.setdefault(row, len(places)) for row in rows]
    return list(places), inverse


@given(st.lists(st.one_of(st.integers(0, 5), st.integers(0, 2**62)), max_size=200))
@settings(max_examples=100, deadline=None)
def test_distinct_rows_come_in_order_of_first_appearance(rows: list[int]) -> None:
    distinct, inverse = find_distinct(np.array(rows, np.int64))
    assert (distinct.tolist(), inverse.tolist()) == naive_distinct(rows)


@pytest.mark.parametrize("num_lookups", [0, 1, 7, 53_248])
def test_distinct_rows_of_skewed_lookups(num_lookups: int, rng: np.random.Generator) -> None:
    rows = rng.zipf(1.2, num_lookups) % 100_000
    distinct, inverse = find_distinct(rows)
    assert (distinct.tolist(), inverse.tolist()) == naive_distinct(rows.tolist())


def located(
    ids: list[list[int]], first: list[int], last: list[int], base: list[int]
) -> tuple[int, list[int]]:
    ids_BF = np.array(ids, np.int32)
    slots_N = np.empty(ids_BF.size, np.int64)
    ranges = [np.array(bound, np.int64) for bound in (first, last, base)]
    return locate_rows(ids_BF, *ranges, slots_N), slots_N.tolist()


def test_a_slot_is_base_plus_id() -> None:
    assert located([[0, 0], [4, 2]], [0, 0], [5, 3], [0, 5]) == (0, [0, 5, 4, 7])


def test_rows_outside_the_tier_have_no_slot() -> None:
    assert located([[1, 2], [9, 3], [-1, 0]], [2, 0], [9, 3], [10, 20]) == (4, [-1, 22, -1, -1, -1, 20])


@pytest.mark.parametrize(
    ("ids", "position"), [([[0, 2], [4, 0]], -1), ([[0, 2], [5, 9]], 2), ([[0, -1]], 1), ([], -1)]
)
def test_the_first_stray_lookup_is_found(ids: list[list[int]], position: int) -> None:
    ids_BF = np.array(ids, np.int32).reshape(-1, 2)
    assert first_stray_lookup(ids_BF, np.array([5, 3], np.int64)) == position


@pytest.mark.parametrize(("num_hot_only", "num_mixed"), [(0, 0), (0, 5), (5, 0), (3, 7), (40, 3), (8, 8)])
def test_hot_only_batches_are_spread_evenly(num_hot_only: int, num_mixed: int) -> None:
    total = num_hot_only + num_mixed
    merged = spread_evenly(
        np.arange(num_hot_only, dtype=np.int32), np.arange(num_hot_only, total, dtype=np.int32)
    )
    assert sorted(merged.tolist()) == list(range(total))
    hot_so_far = np.cumsum(merged < num_hot_only)
    expected = np.arange(1, total + 1) * num_hot_only / max(total, 1)
    assert np.all(np.abs(hot_so_far - expected) <= 1)


def kinds(num_hot_only: int, num_mixed: int) -> NDArray[np.bool_]:
    return np.arange(num_hot_only + num_mixed) < num_hot_only


@pytest.mark.parametrize("spread", [True, False])
def test_an_epoch_visits_every_batch_once(spread: bool) -> None:
    order = epoch_order(kinds(13, 29), seed=3, epoch=1, spread=spread)
    assert sorted(order.tolist()) == list(range(42))


def test_an_order_is_a_function_of_seed_and_epoch() -> None:
    orders = [shuffled(50, seed, epoch).tolist() for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2] and orders[0] != orders[3] and orders[2] != orders[3]


def test_a_shuffle_never_changes() -> None:
    assert shuffled(8, seed=0, epoch=0).tolist() == [0, 1, 4, 2, 3, 6, 7, 5]
