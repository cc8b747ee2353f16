"""Ranges of rows: all rows once, with about as many lookups each; errors of any thread arrive."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.batches.batch_lookups import of_matrix
from hotset.stats.batches.lookups_by_row import LookupsByRow, group_lookups
from hotset.train.rows import row_threads
from hotset.train.rows.row_threads import for_row_ranges, row_ranges


def drawn(num_samples: int, num_rows: int, rng: np.random.Generator) -> LookupsByRow:
    ids = rng.integers(0, num_rows, num_samples).astype(np.int32)
    return group_lookups(of_matrix(ids, np.array([num_rows], np.int64)))


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_threads, "_LEAST_LOOKUPS", 10)


@pytest.mark.parametrize(("num_samples", "num_rows"), [(0, 5), (1, 1), (9, 3), (1000, 400), (1000, 1)])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_each_row_is_in_one_range(
    num_samples: int, num_rows: int, num_threads: int, rng: np.random.Generator
) -> None:
    lookups = drawn(num_samples, num_rows, rng)
    ranges = row_ranges(lookups, num_threads)
    assert [row for first, last in ranges for row in range(first, last)] == list(range(lookups.num_rows))
    assert len(ranges) <= num_threads
    if num_samples == 1000 and num_rows == 400:
        sizes = [int(lookups.counts_U[first:last].sum()) for first, last in ranges]
        assert len(sizes) == num_threads and max(sizes) - min(sizes) < 20


def test_few_lookups_are_done_by_the_caller(rng: np.random.Generator) -> None:
    assert len(row_ranges(drawn(15, 10, rng), 2)) == 1


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_any_thread_is_raised_once_all_are_done(failing: int, rng: np.random.Generator) -> None:
    lookups = drawn(100, 50, rng)
    done: list[int] = []

    def work(first: int, last: int) -> None:
        if (first == 0) == (failing == 0):
            raise OSError("no memory")
        done.append(last - first)

    with pytest.raises(OSError, match="no memory"):
        for_row_ranges(lookups, 2, work)
    assert len(done) == 1
