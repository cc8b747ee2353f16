"""Transfers run ahead of compute by the rule, and their errors reach the caller.

The marks of changed rows, against sets of rows.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.stats.batch_rows import LookupsByRow
from hotset.train.device import LateDevice
from hotset.train.gpu.queued_steps import QueuedTransfers
from hotset.train.rows.embeddings import Embeddings
from hotset.train.rows.step_plan import ChangedRows, TransferThread


def assert_is_set(event: threading.Event) -> None:
    """Wait for an event that another thread sets."""
    assert event.wait(60)


@given(
    afters=st.lists(st.integers(0, 4), max_size=20), seed=st.integers(0, 1000), num_ahead=st.integers(1, 6)
)
@settings(max_examples=30, deadline=None)
def test_the_rule_is_kept_whatever_the_timing(afters: list[int], seed: int, num_ahead: int) -> None:
    rng = random.Random(seed)
    events: list[tuple[str, int]] = []

    def run(number: int) -> None:
        events.append(("start", number))
        time.sleep(rng.random() * 0.001)
        events.append(("done", number))

    transfer_thread = TransferThread(run)
    afters = [max(number - 1 - depth, -1) for number, depth in enumerate(afters)]
    put = 0
    for number in range(len(afters)):
        while put < min(number + num_ahead, len(afters)):
            assert transfer_thread.put(put, afters[put]) == put
            put += 1
        transfer_thread.wait_for(number)
        events.append(("compute", number))
        time.sleep(rng.random() * 0.001)
        events.append(("computed", number))
        transfer_thread.mark_computed(number)
    transfer_thread.drain()
    transfer_thread.close()
    place = {event: position for position, event in enumerate(events)}
    for number, after in enumerate(afters):
        assert place["done", number] < place["compute", number]
        assert after < 0 or place["computed", after] < place["start", number]
        assert number == 0 or place["done", number - 1] < place["start", number]


def test_an_error_reaches_whoever_waits() -> None:
    def run(work: str) -> None:
        if work == "bad":
            raise OSError("no space")

    transfer_thread = TransferThread(run)
    transfer_thread.put("good", -1)
    transfer_thread.put("bad", -1)
    with pytest.raises(OSError, match="no space"):
        transfer_thread.wait_for(1)
    with pytest.raises(OSError, match="no space"):
        transfer_thread.put("later", -1)
    with pytest.raises(OSError, match="no space"), transfer_thread.paused():
        pass
    transfer_thread.close()


def test_nothing_moves_in_a_pause() -> None:
    done: list[int] = []
    started = threading.Event()

    def run(number: int) -> None:
        started.set()
        time.sleep(0.01)
        done.append(number)

    transfer_thread = TransferThread(run)
    transfer_thread.put(0, -1)
    assert_is_set(started)
    transfer_thread.put(1, -1)
    with transfer_thread.paused():
        before = list(done)
        time.sleep(0.03)
        assert done == before and before[0] == 0
    transfer_thread.drain()
    assert done == [0, 1]
    transfer_thread.close()


def test_closing_forgets_what_waits() -> None:
    transfer_thread: TransferThread[int] = TransferThread(lambda work: None)
    transfer_thread.put(0, -1)
    transfer_thread.put(1, 0)
    transfer_thread.wait_for(0)
    transfer_thread.close()
    with pytest.raises(RuntimeError, match="closed"):
        transfer_thread.put(2, -1)


def test_stalls_and_work_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()
    is_waited_for = threading.Event()

    def clock() -> float:
        # Whoever has to wait looks at the clock first: only then does the transfer end.
        if threading.current_thread() is threading.main_thread():
            is_waited_for.set()
        return float(next(seconds))

    monkeypatch.setattr("hotset.stats.compile_notice.perf_counter", clock)
    transfer_thread: TransferThread[None] = TransferThread(lambda _: assert_is_set(is_waited_for))
    transfer_thread.put(None, -1)
    transfer_thread.wait_for(0)
    transfer_thread.put(None, -1)
    transfer_thread.drain()
    transfer_thread.wait_for(1)
    assert transfer_thread.num_stalls == 1
    # Each of the two transfers took some ticks of the clock, and the wait for the first one did.
    assert transfer_thread.stall_seconds >= 1 and transfer_thread.busy_seconds >= 2
    transfer_thread.close()


def test_closing_the_transfers_waits_for_the_device() -> None:
    device = LateDevice()
    embeddings = Embeddings(0, [])
    embeddings.transfers = QueuedTransfers(embeddings.run_transfers, device)
    done: list[int] = []
    for number in range(20):
        device.launch("moves", done.append, number)
    assert len(done) < 20
    embeddings.transfers.close()
    assert done == list(range(20))


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
