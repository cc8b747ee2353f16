"""Ranges of rows: all rows once, with about as many lookups each; errors of any thread arrive."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hotset.stats import batch_work
from hotset.stats.batch_rows import LookupsByRow, group_lookups, of_matrix
from hotset.train.rows.row_ranges import for_row_ranges, row_ranges
from hotset.train.work_threads import WorkThreads


def drawn(num_samples: int, num_rows: int, rng: np.random.Generator) -> LookupsByRow:
    ids = rng.integers(0, num_rows, num_samples).astype(np.int32)
    return group_lookups(of_matrix(ids, np.array([num_rows], np.int64)))


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_work, "LEAST_RANGE_LOOKUPS", 10)


@pytest.mark.parametrize(("num_samples", "num_rows"), [(0, 5), (1, 1), (9, 3), (1000, 400), (1000, 1)])
@pytest.mark.parametrize("most", [1, 2, 5])
def test_each_row_is_in_one_range(
    num_samples: int, num_rows: int, most: int, rng: np.random.Generator
) -> None:
    lookups = drawn(num_samples, num_rows, rng)
    ranges = row_ranges(lookups, most)
    assert [row for first, last in ranges for row in range(first, last)] == list(range(lookups.num_rows))
    assert len(ranges) <= most
    if num_samples == 1000 and num_rows == 400:
        sizes = [int(lookups.counts_U[first:last].sum()) for first, last in ranges]
        assert len(sizes) == most and max(sizes) - min(sizes) < 20


def test_few_lookups_are_done_by_the_caller(rng: np.random.Generator) -> None:
    assert len(row_ranges(drawn(15, 10, rng), 2)) == 1


@pytest.mark.parametrize("most", [1, 2])
def test_each_row_is_worked_on_once(most: int, rng: np.random.Generator) -> None:
    lookups = drawn(1000, 400, rng)
    done: list[int] = []
    for_row_ranges(lookups, WorkThreads(most), lambda first, last: done.extend(range(first, last)))
    assert sorted(done) == list(range(lookups.num_rows))
    for_row_ranges(drawn(0, 5, rng), WorkThreads(most), lambda *_: pytest.fail("there is no row"))


def test_rows_are_worked_on_inside_a_piece_of_the_same_threads(rng: np.random.Generator) -> None:
    """As in a step, while the only other thread is busy with the dense layers to the end."""
    lookups = drawn(1000, 400, rng)
    threads = WorkThreads(2)
    done: list[int] = []
    finished = threading.Event()
    waited: list[bool] = []

    def update() -> None:
        for_row_ranges(lookups, threads, lambda first, last: done.extend(range(first, last)))
        finished.set()

    threads.run_all(update, lambda: waited.append(finished.wait(10)))
    assert sorted(done) == list(range(lookups.num_rows))
    assert waited == [True]


def test_an_error_of_a_range_is_raised(rng: np.random.Generator) -> None:
    def work(first: int, last: int) -> None:
        if first:
            raise OSError("no memory")

    with pytest.raises(OSError, match="no memory"):
        for_row_ranges(drawn(100, 50, rng), WorkThreads(2), work)
