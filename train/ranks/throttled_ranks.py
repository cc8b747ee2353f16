"""A slow link in front of any ranks: so many bytes per second each way, and a delay.

A message arrives when the link has carried all bytes before it and its own, and the delay after that. Each
rank has a link of its own, as wide out as in, which sends and receives at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from .ranks import Message, Pending, Ranks


class _Throttled:
    """A message that arrives at a moment, or later."""

    def __init__(self, pending: Pending, arrival: float, clock: Callable[[], float]) -> None:
        self._pending = pending
        self._arrival = arrival
        self._clock = clock

    def wait(self) -> None:
        self._pending.wait()
        left = self._arrival - self._clock()
        if left > 0:
            time.sleep(left)


class ThrottledRanks:
    """Ranks behind a slow link.

    Args:
        ranks: that carry the bytes.
        bytes_per_second: of the link, each way.
        delay_seconds: from the last byte sent to the last one received.
        clock: the seconds that pass.
    """

    def __init__(
        self,
        ranks: Ranks,
        bytes_per_second: float,
        delay_seconds: float = 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ranks = ranks
        self.rank = ranks.rank
        self.num_ranks = ranks.num_ranks
        self._bytes_per_second = bytes_per_second
        self._delay_seconds = delay_seconds
        self._clock = clock
        self._is_free = 0.0
        """When the link has carried everything so far."""
        self.busy_seconds = 0.0
        """Seconds for which the link carried bytes."""

    def set_speed(self, bytes_per_second: float) -> None:
        """Carry so many bytes per second from the next message on."""
        self._bytes_per_second = bytes_per_second

    def exchange(self, sent: Message, received: Message) -> Pending:
        """Exchange, and arrive no earlier than the link allows."""
        return _Throttled(
            self._ranks.exchange(sent, received),
            self._carry(max(sum(sent.sizes_W), sum(received.sizes_W))),
            self._clock,
        )

    def gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Gather; every rank sends its tensor to all others."""
        arrival = self._carry(part.nbytes * (self.num_ranks - 1))
        found = self._ranks.gather(part)
        left = arrival - self._clock()
        if left > 0:
            time.sleep(left)
        return found

    def close(self) -> None:
        """Leave the others."""
        self._ranks.close()

    def _carry(self, num_bytes: int) -> float:
        """Return when the link has carried so many bytes more."""
        seconds = num_bytes / self._bytes_per_second
        self._is_free = max(self._is_free, self._clock()) + seconds
        self.busy_seconds += seconds
        return self._is_free + self._delay_seconds
