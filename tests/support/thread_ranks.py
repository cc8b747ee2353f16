"""Ranks that are threads of one process: for tests by the thousand, not for speed."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from hotset.pipeline.errors import SaidElsewhereError
from hotset.train.ranks.ranks import Message, RankError, Ranks

Found = TypeVar("Found")
_POLL_SECONDS = 0.01


class _Mailboxes:
    """The messages under way between the ranks of a process, in the order they were sent."""

    def __init__(self, num_ranks: int, timeout_seconds: float) -> None:
        self.num_ranks = num_ranks
        self.timeout_seconds = timeout_seconds
        self.gone = [threading.Event() for _ in range(num_ranks)]
        self._boxes: dict[tuple[int, int], queue.SimpleQueue[torch.Tensor]] = {
            (source, target): queue.SimpleQueue()
            for source in range(num_ranks)
            for target in range(num_ranks)
        }

    def put(self, source: int, target: int, data: torch.Tensor) -> None:
        # A copy: the sender may write its buffer again once its own wait is over.
        self._boxes[source, target].put(data.clone())

    def take(self, source: int, target: int) -> torch.Tensor:
        waited = 0.0
        # Short waits in turn, since a rank that ends may leave its last message behind.
        while True:
            try:
                return self._boxes[source, target].get(timeout=_POLL_SECONDS)
            except queue.Empty:
                waited += _POLL_SECONDS
            if self.gone[source].is_set() and self._boxes[source, target].empty():
                raise RankError(f"rank {source} is gone")
            if waited > self.timeout_seconds:
                raise RankError(f"rank {source} sent nothing for {self.timeout_seconds:g} s")


class _Receipt:
    """The bytes that one rank waits for; those of earlier messages come before them."""

    def __init__(self, mailboxes: _Mailboxes, rank: int, received: Message, waiting: deque[_Receipt]) -> None:
        self._mailboxes = mailboxes
        self._rank = rank
        self._received = received
        self._waiting = waiting

    def wait(self) -> None:
        while self in self._waiting:
            self._waiting.popleft().take()

    def take(self) -> None:
        """Take the bytes out of the boxes."""
        for source, part in enumerate(self._received.parts()):
            if source == self._rank:
                continue
            data = self._mailboxes.take(source, self._rank)
            if data.numel() != part.numel():
                raise RankError(f"rank {source} sent {data.numel()} bytes, want {part.numel()}")
            part.copy_(data)


class ThreadRanks:
    """One of the ranks of a process."""

    def __init__(self, mailboxes: _Mailboxes, rank: int) -> None:
        self._mailboxes = mailboxes
        self.rank = rank
        self.num_ranks = mailboxes.num_ranks
        self._waiting: deque[_Receipt] = deque()
        """Messages that were not waited for yet, in the order of the calls."""

    def exchange(self, sent: Message, received: Message) -> Callable[[], None]:
        """Put what is sent into the boxes of the others; their order is that of the calls."""
        assert sent.sizes_W[self.rank] == received.sizes_W[self.rank] == 0, "a rank sends nothing to itself"
        for target, part in enumerate(sent.parts()):
            if target != self.rank:
                self._mailboxes.put(self.rank, target, part)
        receipt = _Receipt(self._mailboxes, self.rank, received, self._waiting)
        self._waiting.append(receipt)
        return receipt.wait

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Send the tensor to every rank, and take theirs."""
        for target in range(self.num_ranks):
            self._mailboxes.put(self.rank, target, part)
        # Boxes keep the order of the calls, so messages that nobody has waited for are taken first.
        while self._waiting:
            self._waiting.popleft().take()
        return [self._mailboxes.take(source, self.rank) for source in range(self.num_ranks)]

    def close(self) -> None:
        """Tell the others that nothing more comes."""
        self._mailboxes.gone[self.rank].set()


def run_thread_ranks(
    num_ranks: int, work: Callable[[Ranks], Found], timeout_seconds: float = 60.0
) -> list[Found]:
    """Call ``work`` once for each rank, each in a thread, and return what they returned.

    Raises:
        Exception: the first one that a rank raised by itself; others follow from that one.
    """
    mailboxes = _Mailboxes(num_ranks, timeout_seconds)

    # A rank that fails closes its mailbox, so that the others end too instead of waiting for it.
    def run(rank: int) -> Found:
        ranks = ThreadRanks(mailboxes, rank)
        try:
            return work(ranks)
        finally:
            ranks.close()

    with ThreadPoolExecutor(num_ranks, "rank") as pool:
        calls = [pool.submit(run, rank) for rank in range(num_ranks)]
        errors = [call.exception() for call in calls]
    # The others' errors are consequences: the one that is no RankError is the cause.
    raised = [error for error in errors if error is not None]
    if raised:
        raise min(raised, key=_is_consequence)
    return [call.result() for call in calls]


def _is_consequence(error: BaseException) -> int:
    """Return how little an error may be the first of those of all ranks."""
    if isinstance(error, SaidElsewhereError):
        return 2
    return int(isinstance(error, RankError))
