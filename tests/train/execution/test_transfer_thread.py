"""Transfers run in order, ahead of compute, by the rule, and their errors arrive."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.train.execution.transfer_thread import Conveyor


@given(
    afters=st.lists(st.integers(0, 4), max_size=20),
    seed=st.integers(0, 1000),
    num_ahead=st.integers(1, 6),
)
@settings(max_examples=30, deadline=None)
def test_the_rule_is_kept_whatever_the_timing(afters: list[int], seed: int, num_ahead: int) -> None:
    rng = random.Random(seed)
    events: list[tuple[str, int]] = []

    def run(number: int) -> None:
        events.append(("start", number))
        time.sleep(rng.random() * 0.001)
        events.append(("done", number))

    conveyor = Conveyor(run)
    afters = [max(number - 1 - depth, -1) for number, depth in enumerate(afters)]
    put = 0
    for number in range(len(afters)):
        while put < min(number + num_ahead, len(afters)):
            assert conveyor.put(put, afters[put]) == put
            put += 1
        conveyor.wait_for(number)
        events.append(("compute", number))
        time.sleep(rng.random() * 0.001)
        events.append(("computed", number))
        conveyor.computed(number)
    conveyor.drain()
    conveyor.close()
    place = {event: position for position, event in enumerate(events)}
    for number, after in enumerate(afters):
        assert place["done", number] < place["compute", number]
        assert after < 0 or place["computed", after] < place["start", number]
        assert number == 0 or place["done", number - 1] < place["start", number]


def test_an_error_reaches_whoever_waits() -> None:
    def run(work: str) -> None:
        if work == "bad":
            raise OSError("no space")

    conveyor = Conveyor(run)
    conveyor.put("good", -1)
    conveyor.put("bad", -1)
    with pytest.raises(OSError, match="no space"):
        conveyor.wait_for(1)
    with pytest.raises(OSError, match="no space"):
        conveyor.put("later", -1)
    with pytest.raises(OSError, match="no space"), conveyor.paused():
        pass
    conveyor.close()


def test_nothing_moves_in_a_pause() -> None:
    done: list[int] = []
    started = threading.Event()

    def run(number: int) -> None:
        started.set()
        time.sleep(0.01)
        done.append(number)

    conveyor = Conveyor(run)
    conveyor.put(0, -1)
    started.wait(10)
    conveyor.put(1, -1)
    with conveyor.paused():
        before = list(done)
        time.sleep(0.03)
        assert done == before and before[0] == 0
    conveyor.drain()
    assert done == [0, 1]
    conveyor.close()


def test_closing_forgets_what_waits() -> None:
    conveyor: Conveyor[int] = Conveyor(lambda work: None)
    conveyor.put(0, -1)
    conveyor.put(1, 0)
    conveyor.wait_for(0)
    conveyor.close()
    with pytest.raises(RuntimeError, match="closed"):
        conveyor.put(2, -1)


def test_stalls_and_work_are_counted() -> None:
    conveyor: Conveyor[float] = Conveyor(time.sleep)
    conveyor.put(0.01, -1)
    conveyor.wait_for(0)
    conveyor.put(0.0, -1)
    conveyor.drain()
    conveyor.wait_for(1)
    assert conveyor.num_stalls == 1
    assert 0 < conveyor.stall_seconds and 0.01 <= conveyor.busy_seconds
    conveyor.close()
