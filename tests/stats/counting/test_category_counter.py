"""Exact counts, chunk by chunk, whatever the number of categories.

Tests `packed_counts`, too.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.counting.category_counter import CategoryCounter
from hotset.stats.counting.count_merging import merge_counts
from hotset.stats.counting.counting_loop import add_counts
from hotset.stats.kernel import read_only

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


def test_a_large_table_doubles() -> None:
    counter = CategoryCounter()
    categories = np.arange(250_000, dtype=np.uint32)
    counter.add(categories, _ALL_VALID)
    assert counter.num_bytes == 8 * 2**19
    assert counted(counter) == dict.fromkeys(range(250_000), 1)


def test_the_place_to_go_on_from_is_a_whole_number() -> None:
    """As 0 is, where the first call begins: one of another type would be compiled for by itself."""
    categories, is_valid = np.arange(9, dtype=np.uint32), np.zeros(0, np.uint8)
    for table in (np.zeros(16, np.uint64), np.zeros((16, 2), np.uint64)):
        stopped, _, _ = add_counts(read_only(categories), read_only(is_valid), 0, table, 0, 4)
        assert stopped == 4 and isinstance(stopped, int)


def test_only_missing_values_give_no_category() -> None:
    counter = CategoryCounter()
    counter.add(np.arange(13, dtype=np.uint32), np.zeros(2, np.uint8))
    assert counted(counter) == {} and counter.num_missing == 13


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
