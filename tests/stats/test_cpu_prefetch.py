"""Kernels that ask the cache ahead of a lookup find what they find without, at the ends of arrays too."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hotset.stats.counting.counting_loop import add_counts
from hotset.stats.counting.hash_probing import new_short_table, new_table
from hotset.stats.counting.id_tables import find_long_ids, find_short_ids, insert_long_ids, insert_short_ids
from hotset.stats.cpu_prefetch import AHEAD, prefetch
from hotset.tests.support.hashed_categories import ALL_VALID, bitmap, entries_of


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
    insert_long_ids(rows, 0, -1, -1, long)
    insert_short_ids(rows, 0, -1, -1, short)
    found = np.empty((2, num_lookups), np.int32)
    find_long_ids(categories, ALL_VALID, long, -1, -5, found[0])
    find_short_ids(categories, ALL_VALID, short, -1, -5, found[1])
    assert found[0].tolist() == wanted and found[1].tolist() == wanted


def test_asking_changes_nothing() -> None:
    table = np.arange(32, dtype=np.uint64).reshape(16, 2)
    prefetch(table, np.uint64(15))
    np.testing.assert_array_equal(table.reshape(-1), np.arange(32))
