"""A slow link: bytes take the time they take, one message behind the other."""

from __future__ import annotations

import threading

import pytest
import torch

from hotset.train.ranks.ranks import Message, Ranks
from hotset.train.ranks.thread_ranks import run_thread_ranks
from hotset.train.ranks.throttled_ranks import ThrottledRanks


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_messages_wait_for_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = [Clock(), Clock()]

    def work(ranks: Ranks) -> list[float]:
        clock = clocks[ranks.rank]
        slow = ThrottledRanks(ranks, bytes_per_second=10, delay_seconds=0.5, clock=clock)
        other = 1 - ranks.rank
        sizes = [20 * (rank == other) for rank in range(2)]
        pending = [slow.exchange(Message.unset(sizes), Message.unset(sizes)) for _ in range(2)]
        times = []
        for each in pending:
            each.wait()
            times.append(clock.now)
        slow.gather(torch.zeros(30, dtype=torch.uint8))
        times.append(clock.now)
        assert slow.busy_seconds == 2 + 2 + 3
        return times

    # Both ranks sleep by clocks of their own: the module's sleep goes to that of the calling thread's rank.
    def sleep(seconds: float) -> None:
        number = int(threading.current_thread().name.rsplit("_", 1)[1])
        clocks[number].sleep(seconds)

    monkeypatch.setattr("hotset.train.ranks.throttled_ranks.time.sleep", sleep)
    found = run_thread_ranks(2, work)
    # The first arrives after 2 s and the delay, the second 2 s later, and the tensors 3 s after it left.
    assert found == [[102.5, 104.5, 108.0]] * 2
