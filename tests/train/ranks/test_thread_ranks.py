"""Ranks as threads: bytes arrive in order, and a rank that is gone or disagrees stops the others."""

from __future__ import annotations

import hashlib
import threading

import pytest
import torch

from hotset.tests.support.processes.rank_promises import check_promises
from hotset.tests.support.thread_ranks import _Mailboxes, run_thread_ranks
from hotset.train.ranks.ranks import Message, OneRank, RankError, Ranks, refuse_other_plans


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_every_byte_and_every_tensor_arrives_where_it_was_sent(num_ranks: int) -> None:
    run_thread_ranks(num_ranks, check_promises)


def test_a_sent_buffer_may_be_written_at_once() -> None:
    # More than the interface promises: what crosses between threads is copied when it is sent.
    def work(ranks: Ranks) -> list[int]:
        sizes = tuple(3 * (rank != ranks.rank) for rank in range(2))
        sent = torch.full((3,), 40 + ranks.rank, dtype=torch.uint8)
        received = Message.unset(sizes)
        pending = ranks.exchange(Message(sent, sizes), received)
        sent.fill_(255)
        pending.wait()
        return received.data.tolist()

    assert run_thread_ranks(2, work) == [[41] * 3, [40] * 3]


def test_messages_may_be_waited_for_in_another_order() -> None:
    def work(ranks: Ranks) -> list[list[int]]:
        other = 1 - ranks.rank
        sizes = tuple(2 * (rank == other) for rank in range(2))
        received = [Message.unset(sizes) for _ in range(3)]
        pending = [
            ranks.exchange(Message(torch.full((2,), 10 * step + ranks.rank, dtype=torch.uint8), sizes), each)
            for step, each in enumerate(received)
        ]
        pending[1].wait()
        # A message that nobody has waited for is not taken for a tensor that is gathered.
        assert [int(each) for each in ranks.gather(torch.tensor([7 + ranks.rank]))] == [7, 8]
        pending[2].wait()
        pending[0].wait()
        return [each.data.tolist() for each in received]

    assert run_thread_ranks(2, work) == [[[10 * step + other] * 2 for step in range(3)] for other in (1, 0)]


def test_a_rank_that_fails_stops_the_others_and_its_own_error_is_raised() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 1:
            raise ZeroDivisionError("mine")
        with pytest.raises(RankError, match="rank 1 is gone"):
            ranks.gather(torch.zeros(1))
        raise RankError("rank 1 is gone")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run_thread_ranks(3, work)


def test_the_last_message_of_a_rank_that_ends_is_read() -> None:
    mailboxes = _Mailboxes(2, timeout_seconds=60)

    # It is sent after a look into the empty box, and the rank is gone before the next one.
    class Leaving(threading.Event):
        def is_set(self) -> bool:
            mailboxes.put(0, 1, torch.tensor([5]))
            return True

    mailboxes.gone[0] = Leaving()
    assert mailboxes.take(0, 1).tolist() == [5]


def test_a_rank_that_sends_nothing_is_not_waited_for_for_ever() -> None:
    def work(ranks: Ranks) -> None:
        if ranks.rank == 0:
            ranks.gather(torch.zeros(1))
        else:
            ranks.exchange(Message.unset([0, 0]), Message.unset([0, 0]))
            ranks.exchange(Message.unset([0, 0]), Message.unset([3, 0])).wait()

    with pytest.raises(RankError, match="rank 0 sent"):
        run_thread_ranks(2, work, timeout_seconds=0.2)


def test_ranks_with_other_plans_are_named_by_everyone() -> None:
    plans = [b"a", b"b", b"a", b"c"]

    def work(ranks: Ranks) -> str:
        with pytest.raises(RankError) as caught:
            refuse_other_plans(ranks, hashlib.md5(plans[ranks.rank]).digest())
        return str(caught.value)

    assert set(run_thread_ranks(4, work)) == {"ranks 1, 3 differ from rank 0 in the plan of the exchange"}
    run_thread_ranks(3, lambda ranks: refuse_other_plans(ranks, bytes(16)))


def test_one_rank_talks_to_nobody() -> None:
    ranks = OneRank()
    check_promises(ranks)
    refuse_other_plans(ranks, bytes(16))
    ranks.close()


def test_a_message_has_the_bytes_of_its_parts() -> None:
    with pytest.raises(ValueError, match=r"a message of 3 torch\.uint8 has parts of 4 bytes"):
        Message(torch.zeros(3, dtype=torch.uint8), (0, 4))
