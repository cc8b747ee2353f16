"""Transfers run ahead of compute by the rule, and their errors reach the caller."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.train.device import LateDevice
from hotset.train.gpu.queued_steps import QueuedTransfers
from hotset.train.rows.embeddings import Embeddings
from hotset.train.rows.step_plan import TransferThread


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
