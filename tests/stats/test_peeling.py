"""Peeling against a slow twin, against every possible hot set, and against frequency."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats import peeling
from hotset.stats.kernel import read_only
from hotset.stats.peeling import append_samples, entry_order, hot_samples_of_prefixes, list_rows, peel
from hotset.tests.support.naive.naive_peel import Samples, naive_entries, naive_peel


class Incidence:
    """Rows and samples both ways, as the kernels want them."""

    def __init__(self, samples: Samples, num_rows: int) -> None:
        lookups = np.array([row for rows in samples for row in rows], np.int32)
        offsets = np.cumsum([0, *map(len, samples)]).astype(np.int32)
        self.row_starts = np.concatenate([[0], np.cumsum(np.bincount(lookups, minlength=num_rows))])
        self.row_starts = self.row_starts.astype(np.int64)
        self.row_ends = self.row_starts[:-1].copy()
        self.row_samples = np.zeros(self.row_starts[-1], np.uint32)
        rows = np.arange(num_rows, dtype=np.int32)
        lists = (self.row_starts, self.row_ends, self.row_samples)
        assert append_samples(read_only(lookups), read_only(offsets), 0, 0, rows, *lists)
        self.sample_starts = np.zeros(len(samples) + 1, np.int64)
        self.sample_rows = np.zeros(int((self.row_ends - self.row_starts[:-1]).sum()), np.int32)
        list_rows(*lists, self.sample_starts, self.sample_rows)
        self.lists = peeling.Incidence(*lists, self.sample_starts, self.sample_rows)

    def entries(self) -> NDArray[np.int32]:
        return entry_order(self.lists)

    def dropped(
        self, width_of_row: Sequence[int], widths: Sequence[int], first: int, stop: int | None = None
    ) -> list[int]:
        return self.peeled(width_of_row, widths, first, stop, [])[0]

    def peeled(
        self,
        width_of_row: Sequence[int],
        widths: Sequence[int],
        first: int,
        stop: int | None,
        budgets: Sequence[int],
    ) -> tuple[list[int], list[int]]:
        """The rows in the order in which they are dropped, and the hot samples of each budget."""
        num_rows = self.row_ends.shape[0]
        stop = num_rows if stop is None else stop
        numbers = np.array(widths, np.int64)
        of_row = np.array(width_of_row, np.uint8)
        # Whatever the memory holds is written before it is read.
        workspace = np.full(2 * num_rows + self.sample_rows.size, 7, np.int32)
        bounds = np.array(budgets, np.int64)
        dropped, hot = peel(self.lists, of_row, numbers, self.entries(), first, stop, bounds, workspace)
        return dropped.tolist(), hot.tolist()


logs = st.integers(1, 9).flatmap(
    lambda num_rows: st.tuples(
        st.just(num_rows), st.lists(st.lists(st.integers(0, num_rows - 1), max_size=5), max_size=14)
    )
)


def naive_hot(
    samples: Samples, widths: Sequence[int], dropped: Sequence[int], first: int, budgets: Sequence[int]
) -> list[int]:
    """Count the samples all of whose rows stay when as few rows are dropped as a budget allows."""
    found = []
    for budget in budgets:
        kept = list(dropped)
        while sum(widths[row] for row in kept) > budget:
            kept.pop(0)
        hot = {*range(first), *kept}
        found.append(sum(set(rows) <= hot for rows in samples))
    return found


@settings(max_examples=120, deadline=None)
@given(log=logs, widths=st.lists(st.integers(1, 40), min_size=3, max_size=3, unique=True), data=st.data())
def test_rows_are_dropped_as_by_the_twin(
    log: tuple[int, Samples], widths: list[int], data: st.DataObject
) -> None:
    num_rows, samples = log
    width_of_row = data.draw(st.lists(st.integers(0, 2), min_size=num_rows, max_size=num_rows))
    first, stop = sorted(data.draw(st.integers(0, num_rows)) for _ in range(2))
    found = Incidence(samples, num_rows)
    assert found.entries().tolist() == naive_entries(samples, num_rows)
    for one_or_all in (widths, widths[:1]):
        width_of_row = [width % len(one_or_all) for width in width_of_row]
        wanted = naive_peel(samples, width_of_row, one_or_all, first, stop)
        total = sum(one_or_all[width_of_row[row]] for row in range(first, stop))
        budgets = sorted(data.draw(st.lists(st.integers(0, max(0, total - 1)), max_size=4))) if total else []
        dropped, hot = found.peeled(width_of_row, one_or_all, first, stop, budgets)
        assert dropped == wanted and sorted(wanted) == list(range(first, stop))
        assert hot == naive_hot(samples, [one_or_all[of] for of in width_of_row], wanted, first, budgets)


@pytest.mark.parametrize("num_samples", [0, 1, 2000])
def test_a_skewed_log_is_peeled_as_by_the_twin(num_samples: int, rng: np.random.Generator) -> None:
    samples = (rng.zipf(1.3, (num_samples, 3)) % 60).tolist()
    found = Incidence(samples, 60)
    assert found.dropped([0] * 60, [64], 5) == naive_peel(samples, [0] * 60, [64], 5)


def test_the_incidence_lists_each_row_of_a_sample_once() -> None:
    found = Incidence([[3, 0, 3, 3], [], [2, 3]], 4)
    assert found.row_ends.tolist() == [1, 1, 2, 4] and found.row_starts.tolist() == [0, 1, 1, 2, 6]
    assert found.row_samples[:4].tolist() == [0, 2, 0, 2]
    assert found.sample_starts.tolist() == [0, 2, 2, 4]
    assert found.sample_rows.tolist() == [0, 3, 2, 3]


def test_more_lookups_than_were_counted_are_not_written() -> None:
    starts = np.array([0, 1, 2])
    ends = np.array([0, 1])
    samples = np.full(2, 9, np.uint32)
    ids = read_only(np.array([5, 7, 6, 6], np.int32))
    offsets = read_only(np.arange(5, dtype=np.int32))
    rows = np.array([0, 1], np.int32)
    assert not append_samples(ids, offsets, 4, 6, rows, starts, ends, samples)
    assert samples.tolist() == [6, 5]


def hot_samples(samples: Samples, hot: set[int]) -> int:
    return sum(set(rows) <= hot for rows in samples)


@settings(max_examples=100, deadline=None)
@given(log=logs)
def test_hot_samples_of_prefixes_are_counted_exactly(log: tuple[int, Samples]) -> None:
    num_rows, samples = log
    found = hot_samples_of_prefixes(Incidence(samples, num_rows).lists, np.arange(num_rows + 1))
    assert found.tolist() == [hot_samples(samples, set(range(k))) for k in range(num_rows + 1)]


def test_peeling_comes_near_the_best_hot_sets_and_beats_frequency(rng: np.random.Generator) -> None:
    num_rows = 8
    peeled = 0
    by_count = 0
    best = 0
    for _ in range(60):
        samples = [sorted(set((rng.zipf(1.4, 3) % num_rows).tolist())) for _ in range(12)]
        order = Incidence(samples, num_rows).dropped([0] * num_rows, [1], 0)[::-1]
        counts = np.bincount([row for rows in samples for row in rows], minlength=num_rows)
        falling = np.argsort(-counts, kind="stable").tolist()
        for k in range(1, num_rows):
            ours = hot_samples(samples, set(order[:k]))
            most = max(hot_samples(samples, set(hot)) for hot in itertools.combinations(range(num_rows), k))
            assert ours <= most
            peeled = peeled + ours
            best = best + most
            by_count += hot_samples(samples, set(falling[:k]))
    assert by_count < peeled <= best
    assert peeled > 0.95 * best


def test_rows_that_are_only_hot_together_stay_together() -> None:
    """Frequency takes the two rows of most lookups, whose samples all need a third one."""
    samples = [[0, 2], [0, 3], [0, 4], [1, 5], [1, 6], [1, 7], [8, 9], [8, 9]]
    order = Incidence(samples, 10).dropped([0] * 10, [1], 0)[::-1]
    assert set(order[:2]) == {8, 9}
    assert hot_samples(samples, {0, 1}) == 0 < hot_samples(samples, {8, 9}) == 2


def test_a_narrow_row_outlives_a_wide_one_of_equal_use() -> None:
    samples = [[0], [0], [1], [1]]
    assert Incidence(samples, 2).dropped([1, 0], [128, 16], 0) == [1, 0]
