"""A slow link: bytes take the time they take, one message behind the other."""

from __future__ import annotations

import threading

import pytest
import torch

from hotset.tests.support.processes.rank_promises import check_promises
from hotset.train.ranks.ranks import Message, RankError, Ranks
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


class Arrived:
    """Two ranks whose messages take some time on a clock."""

    rank = 0
    num_ranks = 2

    def __init__(self, clock: Clock, seconds: float = 0.0) -> None:
        self._clock = clock
        self._seconds = seconds

    def exchange(self, sent: Message, received: Message) -> Arrived:
        return self

    def wait(self) -> None:
        self._clock.sleep(self._seconds)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        return [part, part]

    def close(self) -> None:
        pass


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


def test_a_slow_link_carries_every_byte() -> None:
    run_thread_ranks(3, lambda ranks: check_promises(ThrottledRanks(ranks, bytes_per_second=1e9)))


@pytest.mark.parametrize(("sent", "received"), [(20, 0), (0, 20)])
def test_the_longer_way_of_a_message_counts(
    sent: int, received: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("hotset.train.ranks.throttled_ranks.time.sleep", clock.sleep)
    slow = ThrottledRanks(Arrived(clock), bytes_per_second=10, clock=clock)
    slow.exchange(Message.unset([0, sent]), Message.unset([0, received])).wait()
    assert clock.now == 102
    # Half as wide from the next message on.
    slow.set_speed(5)
    slow.exchange(Message.unset([0, sent]), Message.unset([0, received])).wait()
    assert clock.now == 106


def test_a_message_arrives_no_earlier_than_its_ranks_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("hotset.train.ranks.throttled_ranks.time.sleep", clock.sleep)
    slow = ThrottledRanks(Arrived(clock, seconds=9), bytes_per_second=10, clock=clock)
    slow.exchange(Message.unset([0, 20]), Message.unset([0, 20])).wait()
    assert clock.now == 109


def test_who_leaves_a_slow_link_leaves_its_ranks() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            ThrottledRanks(ranks, bytes_per_second=10).close()
        else:
            with pytest.raises(RankError, match="rank 1 is gone"):
                ranks.gather(torch.zeros(1))
            left.set()
        assert left.wait(60)

    # The rank ends only when the other has noticed, which its own end would tell too.
    left = threading.Event()
    run_thread_ranks(2, work)
