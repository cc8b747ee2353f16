"""Checks that ranks, however they reach each other, keep what their interface promises."""

from __future__ import annotations

import pytest
import torch

from hotset.train.ranks.ranks import Message, Ranks


def check_promises(ranks: Ranks) -> None:
    """Exchange and gather at one rank; every rank calls this.

    Raises:
        AssertionError: a byte is not where it was sent, a tensor not that of its rank, or of another call.
    """
    _check_messages(ranks)
    _check_gathered(ranks)
    # A message to the rank itself is a fault of the caller.
    own = Message.unset([int(rank == ranks.rank) for rank in range(ranks.num_ranks)])
    nothing = Message.unset([0] * ranks.num_ranks)
    for sent, received in ((own, nothing), (nothing, own)):
        with pytest.raises(AssertionError, match="a rank sends nothing to itself"):
            ranks.exchange(sent, received)


def _num_bytes(source: int, target: int, step: int) -> int:
    return 0 if source == target else (source * 7 + target * 3 + step) % 5


def _content(source: int, target: int, step: int) -> torch.Tensor:
    number = source * 31 + target * 5 + step
    return torch.full((_num_bytes(source, target, step),), number, dtype=torch.uint8)


def _check_messages(ranks: Ranks) -> None:
    others = range(ranks.num_ranks)
    under_way = []
    # All are sent before the first is waited for; their buffers are the sender's again after the wait.
    for step in range(4):
        sent = torch.cat([_content(ranks.rank, target, step) for target in others])
        sizes = tuple(_num_bytes(ranks.rank, target, step) for target in others)
        received = Message.unset([_num_bytes(source, ranks.rank, step) for source in others])
        received.data.fill_(255)
        under_way.append((step, sent, received, ranks.exchange(Message(sent, sizes), received)))
    for step, sent, received, pending in under_way:
        pending()
        sent.fill_(254)
        for source, part in enumerate(received.parts()):
            assert torch.equal(part, _content(source, ranks.rank, step)), (step, source, part)


def _check_gathered(ranks: Ranks) -> None:
    part = torch.tensor([ranks.rank, 0])
    found = []
    # The same buffer again and again, which its rank may write while others have yet to read.
    for call in range(3):
        part[1] = call
        found.append(ranks.gather(part))
    part.fill_(-1)
    for call, tensors in enumerate(found):
        assert [each.tolist() for each in tensors] == [[rank, call] for rank in range(ranks.num_ranks)]
