"""Numbers within tables, for numbers of tables whose quotients are hard to get right."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.batches.lookups_by_row import LookupsByRow
from hotset.stats.batches.packed_lookups import LONG_LOOKUPS, PackedLookups, count_long_rows, pack_lookups


@pytest.mark.parametrize("num_tables", [1, 2, 3, 7, 26, 64, 100, 1000, 32_767])
def test_samples_are_exact_up_to_the_last_position(num_tables: int, rng: np.random.Generator) -> None:
    last = np.iinfo(np.int32).max - 1
    multiples = rng.integers(1, last // num_tables, 300) * num_tables
    positions = np.concatenate([[0, last], multiples, multiples - 1]).astype(np.int32)
    first = np.zeros(num_tables + 1, np.int64)
    lookups = LookupsByRow(positions, np.empty(0, np.int32), np.zeros(1, np.int32), first)
    order = np.empty(positions.size, np.int32)
    offsets = [np.empty(num_tables + 1, np.int32) for _ in range(2)]
    places = PackedLookups(order, np.empty(0, np.int32), np.empty(0, np.int32), *offsets)
    nothing = np.zeros(num_tables, np.int64)
    pack_lookups(lookups, positions.size, nothing, nothing, places)
    np.testing.assert_array_equal(order, positions // num_tables)


def test_long_rows_have_more_lookups_than_the_limit() -> None:
    starts = np.cumsum([0, LONG_LOOKUPS, 1, LONG_LOOKUPS + 1, 5000]).astype(np.int32)
    assert count_long_rows(starts) == 2
    assert count_long_rows(np.zeros(1, np.int32)) == 0
