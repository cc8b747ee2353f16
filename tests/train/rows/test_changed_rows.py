"""The marks of changed rows, against sets of rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotset.stats.batch_rows import LookupsByRow
from hotset.train.rows.changed_rows import ChangedRows

SIZES = [3, 0, 7, 50]
NOTHING = np.empty(0, np.int32)


def lookups_of(rows: set[int]) -> LookupsByRow:
    """A batch that looks up these rows of the width."""
    bases = np.concatenate([[0], np.cumsum(SIZES)])
    ids = [sorted(row - base for row in rows if base <= row < stop) for base, stop in pairwise(bases)]
    first = np.concatenate([[0], np.cumsum([len(of_table) for of_table in ids])]).astype(np.int64)
    return LookupsByRow(
        NOTHING, np.array([id for of_table in ids for id in of_table], np.int32), NOTHING, first
    )


rows = st.sets(st.integers(0, sum(SIZES) - 1))
ACTIONS = st.tuples(st.sampled_from(["step", "later", "saved", "lost"]), rows)


@given(actions=st.lists(ACTIONS, max_size=12), most=st.integers(1, 80))
def test_a_row_is_taken_once_after_each_change_and_again_when_that_was_lost(
    actions: list[tuple[str, set[int]]], most: int
) -> None:
    marks = ChangedRows(SIZES)
    changed: set[int] = set()
    used: set[int] = set()
    for action, stepped in actions:
        if action in ("step", "later"):
            # Of a device's steps the rows are marked later; nobody can tell.
            marks.mark(lookups_of(stepped), is_later=action == "later")
            changed |= stepped
            used |= stepped
            continue
        assert marks.num_changed == len(changed) == marks.begin_saving()
        # Some are copied before the others, because a step is about to change them or they are in staging.
        early = marks.take_pending_of(lookups_of(stepped | {1, 5}))
        assert early.tolist() == sorted(changed & (stepped | {1, 5}))
        staged = np.array([7, 2, 9])
        was_pending = marks.take_pending_among(staged)
        assert set(staged[was_pending].tolist()) == (changed & {2, 7, 9}) - {*early.tolist()}
        parts = [early, staged[was_pending]]
        while (part := marks.take_pending(most)).size:
            assert part.size <= most and (np.diff(part) > 0).all()
            parts.append(part)
        assert sorted(np.concatenate(parts).tolist()) == sorted(changed)
        assert not marks.take_pending_of(lookups_of(changed)).size
        everything = np.arange(sum(SIZES))
        assert set(everything[marks.is_being_saved(everything)].tolist()) == changed
        # Rows that change while they are being saved are changed in either case.
        marks.mark(lookups_of({1, 5}), is_later=len(stepped) % 2 == 1)
        used |= {1, 5}
        marks.settle(is_lost=action == "lost")
        changed = {1, 5} | (changed if action == "lost" else set())
        assert not marks.is_being_saved(everything).any()
    assert marks.num_changed == len(changed) and marks.num_used == len(used)
    assert np.concatenate([np.empty(0, np.int64), *marks.used()]).tolist() == sorted(used)


def test_a_checkpoint_that_was_given_up_half_way_leaves_nothing_pending() -> None:
    marks = ChangedRows(SIZES)
    marks.mark_rows(np.array([2, 4, 9]), is_saved=False)
    marks.begin_saving()
    assert marks.take_pending(1).tolist() == [2]
    marks.settle(is_lost=True)
    assert marks.take_pending(9).size == 0 and marks.begin_saving() == 3


def test_restored_rows_are_used_and_changed_only_where_they_are_not_saved() -> None:
    marks = ChangedRows(SIZES)
    marks.mark_rows(np.array([2, 4]), is_saved=True)
    marks.mark_rows(np.array([9]), is_saved=False)
    assert (marks.num_changed, marks.num_used) == (1, 3)


def test_rows_are_marked_in_whatever_thread_has_time() -> None:
    marks = ChangedRows([4000])
    with ThreadPoolExecutor(3) as readers:
        for number in range(200):
            changed = np.arange(number % 40, 4000, 40, dtype=np.int32)
            lookups = LookupsByRow(NOTHING, changed, NOTHING, np.array([0, changed.size]))
            marks.mark(lookups, is_later=True)
            readers.submit(marks.catch_up, waits=False)
            # Whoever is at it, the rows of this step count from here on.
            if number % 40 == 39:
                assert marks.begin_saving() == marks.take_pending(4000).size == 4000
                marks.settle(is_lost=False)
    assert marks.num_changed == 0 and marks.num_used == 4000
