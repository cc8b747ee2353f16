"""Ranks as threads: bytes arrive in order, and a rank that is gone or disagrees stops the others.

Tests `ranks`, too.
"""

from __future__ import annotations

import hashlib

import pytest
import torch

from hotset.train.ranks.ranks import Message, OneRank, RankError, Ranks, refuse_other_plans
from hotset.train.ranks.thread_ranks import run_thread_ranks


def size(source: int, target: int, step: int) -> int:
    return 0 if source == target else (source * 7 + target * 3 + step) % 5


def content(source: int, target: int, step: int) -> torch.Tensor:
    numbers = [source * 31 + target * 5 + step] * size(source, target, step)
    return torch.tensor(numbers, dtype=torch.uint8)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_every_byte_arrives_where_it_was_sent(num_ranks: int) -> None:
    def work(ranks: Ranks) -> None:
        others = range(num_ranks)
        pending = []
        # All steps are sent before the first is waited for.
        for step in range(4):
            sent = torch.cat([content(ranks.rank, target, step) for target in others])
            sizes = tuple(size(ranks.rank, target, step) for target in others)
            received = Message.unset([size(source, ranks.rank, step) for source in others])
            pending.append((step, received, ranks.exchange(Message(sent, sizes), received)))
            sent.fill_(255)  # the sender's buffer is its own again only after the wait: threads copy
        for step, received, work in pending:
            work.wait()
            for source, part in enumerate(received.parts()):
                assert torch.equal(part, content(source, ranks.rank, step))
        gathered = ranks.gather(torch.tensor([ranks.rank, 5]))
        assert [part.tolist() for part in gathered] == [[rank, 5] for rank in others]

    run_thread_ranks(num_ranks, work)


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

    assert set(run_thread_ranks(4, work)) == {"ranks 1, 3 have another plan than rank 0"}
    run_thread_ranks(3, lambda ranks: refuse_other_plans(ranks, bytes(16)))


def test_one_rank_talks_to_nobody() -> None:
    ranks = OneRank()
    ranks.exchange(Message.unset([0]), Message.unset([0])).wait()
    assert ranks.gather(torch.ones(2))[0].tolist() == [1, 1]
    refuse_other_plans(ranks, bytes(16))
    ranks.close()


def test_a_message_has_the_bytes_of_its_parts() -> None:
    with pytest.raises(ValueError, match=r"a message of 3 torch\.uint8 has parts of 4 bytes"):
        Message(torch.zeros(3, dtype=torch.uint8), (0, 4))
