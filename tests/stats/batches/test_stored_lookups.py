"""Stored lookups of a batch are taken only where grouping finds the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.batches.batch_lookups import BatchLookups, of_bags, of_matrix
from hotset.stats.batches.lookups_by_row import LookupsByRow, group_lookups
from hotset.stats.batches.stored_lookups import LONG_LOOKUPS, StoredLookups, place_lookups


def stored_of(batch: BatchLookups, dtype: type = np.int32) -> StoredLookups:
    """Return the stored lookups of a batch as `transpose` writes them, put together list by list."""
    local = group_lookups(batch, is_local=True)
    offsets = batch.offsets_F1
    tables = np.repeat(np.arange(offsets.size - 1), np.diff(local.first_F1))
    is_long = local.counts_U > LONG_LOOKUPS
    long_rows = (np.arange(local.num_rows) - local.first_F1[tables])[is_long]
    counts = np.bincount(tables[is_long], minlength=offsets.size - 1)
    return StoredLookups(
        local.order_N.astype(dtype),
        offsets,
        local.rows_U,
        local.first_F1,
        (local.starts_U1[:-1] - offsets[tables]).astype(dtype),
        long_rows.astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


def assert_same(found: LookupsByRow, wanted: LookupsByRow) -> None:
    for name, mine, other in zip(found._fields, found, wanted, strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=name)


def every(batch: BatchLookups) -> NDArray[np.int64]:
    return np.arange(batch.num_rows_F.size)


@pytest.fixture
def batch(rng: np.random.Generator) -> BatchLookups:
    """Rows of one lookup, and some of several hundred."""
    ids = np.minimum(rng.zipf(2.0, (700, 3)) - 1, 49).astype(np.int32)
    return of_matrix(ids.reshape(-1), np.array([50, 60, 50], np.int64))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_what_is_stored_of_a_batch_is_what_grouping_finds(batch: BatchLookups, dtype: type) -> None:
    stored = stored_of(batch, dtype)
    assert stored.long_rows.size == 3
    assert_same(place_lookups(stored, every(batch), batch), group_lookups(batch))


def test_some_of_the_tables(batch: BatchLookups) -> None:
    ids = batch.ids_N.reshape(-1, 3)
    others = of_matrix(np.ascontiguousarray(ids[:, [0, 2]]).reshape(-1), batch.num_rows_F[[0, 2]])
    found = place_lookups(stored_of(batch), np.array([0, 2]), others)
    assert_same(found, group_lookups(others))


@given(st.integers(0, 30), st.integers(0, 2**32))
@settings(max_examples=40, derandomize=True)
def test_bags(num_samples: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    bags = np.repeat(np.arange(num_samples * 2), rng.integers(0, 4, num_samples * 2))
    batch = of_bags(rng.integers(0, 9, bags.size).astype(np.int32), bags, np.array([9, 9], np.int64))
    assert_same(place_lookups(stored_of(batch), every(batch), batch), group_lookups(batch))


@pytest.mark.parametrize("name", ["order", "rows", "starts", "long_rows"])
def test_any_other_number_is_refused(name: str, batch: BatchLookups, rng: np.random.Generator) -> None:
    stored = stored_of(batch)
    values = getattr(stored, name)
    numbers = [-(2**31), -1, 0, 1, 255, 256, 700, 2**31 - 1]
    for position in rng.integers(0, values.size, 60):
        for number in [*numbers, values[position] + 1, values[position] - 1]:
            damaged = values.copy()
            damaged[position] = number
            if damaged[position] == values[position]:
                continue
            with pytest.raises(ValueError) as caught:
                place_lookups(stored._replace(**{name: damaged}), every(batch), batch)
            assert caught.value.args[0] in (0, 1, 2)


def test_exchanged_lookups_are_refused(batch: BatchLookups) -> None:
    """All numbers are there, but not with their rows, or not in order."""
    stored = stored_of(batch)
    for first, second in ((0, 1), (0, 699), (700, 1400)):
        order = stored.order.copy()
        order[[first, second]] = order[[second, first]]
        with pytest.raises(ValueError):
            place_lookups(stored._replace(order=order), every(batch), batch)


def test_a_row_is_long_from_257_lookups_on() -> None:
    for num_lookups, num_long in ((LONG_LOOKUPS, 0), (LONG_LOOKUPS + 1, 1)):
        batch = of_matrix(np.zeros(num_lookups, np.int32), np.array([1], np.int64))
        stored = stored_of(batch)
        assert stored.long_rows.size == num_long
        assert_same(place_lookups(stored, every(batch), batch), group_lookups(batch))
        # One more than there are.
        more = stored._replace(
            long_rows=np.append(stored.long_rows, np.int32(0)), long_offsets=np.array([0, num_long + 1])
        )
        with pytest.raises(ValueError):
            place_lookups(more, every(batch), batch)


def test_lists_of_other_lengths_are_refused(batch: BatchLookups) -> None:
    stored = stored_of(batch)
    for name in ("order_offsets", "row_offsets", "long_offsets"):
        offsets = getattr(stored, name).copy()
        offsets[1] -= 1
        with pytest.raises(ValueError) as caught:
            place_lookups(stored._replace(**{name: offsets}), every(batch), batch)
        assert caught.value.args == (0,)


def test_rows_out_of_order_or_twice_are_refused() -> None:
    batch = of_matrix(np.array([0, 0, 1, 1], np.int32), np.array([2], np.int64))
    stored = stored_of(batch)
    exchanged = stored._replace(rows=np.array([1, 0], np.int32), order=np.array([2, 3, 0, 1], np.int32))
    twice = stored._replace(
        rows=np.array([0, 0, 1], np.int32),
        starts=np.array([0, 1, 2], np.int32),
        row_offsets=np.array([0, 3], np.int64),
    )
    none = stored._replace(row_offsets=np.zeros(2, np.int64))
    # A row that no sample looks up, with the empty range in front of another row's.
    unused = of_matrix(np.array([1, 1], np.int32), np.array([2], np.int64))
    without_lookups = stored_of(unused)._replace(
        rows=np.array([0, 1], np.int32), starts=np.zeros(2, np.int32), row_offsets=np.array([0, 2], np.int64)
    )
    with pytest.raises(ValueError):
        place_lookups(without_lookups, every(unused), unused)
    for damaged in (exchanged, twice, none):
        with pytest.raises(ValueError):
            place_lookups(damaged, every(batch), batch)
    assert_same(place_lookups(stored, every(batch), batch), group_lookups(batch))


def test_another_batch_is_refused(batch: BatchLookups, rng: np.random.Generator) -> None:
    stored = stored_of(batch)
    ids = batch.ids_N.copy()
    changed = rng.integers(0, ids.size)
    ids[changed] = (ids[changed] + 1) % 50
    with pytest.raises(ValueError):
        place_lookups(stored, every(batch), batch._replace(ids_N=ids))
    shorter = of_matrix(batch.ids_N[:-3], batch.num_rows_F)
    with pytest.raises(ValueError):
        place_lookups(stored, every(batch), shorter)
