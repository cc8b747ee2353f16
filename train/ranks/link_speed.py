"""Measures what the link between ranks carries."""

from __future__ import annotations

import statistics
import time
from typing import NamedTuple

import torch

from .ranks import Message, Ranks

_SMALL_BYTES = 4 << 10
_LARGE_BYTES = 2 << 20
_MOST_SECONDS = 0.4
"""Seconds for the messages of one size."""
_LEAST_TRIALS, _MOST_TRIALS = 2, 50


class LinkSpeed(NamedTuple):
    """A line through the times of messages: all ranks know the same."""

    delay_seconds: float
    bytes_per_second: float
    """Of one rank to all others together, each way."""


def measure_link(ranks: Ranks) -> LinkSpeed:
    """Send small and large messages from every rank to every other, for less than a second.

    Returns:
        The delay and the bandwidth at the slowest rank, the same numbers at every rank.
    """
    small = _seconds(ranks, _SMALL_BYTES)
    large = _seconds(ranks, _LARGE_BYTES)
    more_bytes = (_LARGE_BYTES - _SMALL_BYTES) * (ranks.num_ranks - 1)
    # On a busy machine the larger message may be the quicker one.
    per_byte = max(large - small, large / 4) / more_bytes
    delay = max(small - _SMALL_BYTES * (ranks.num_ranks - 1) * per_byte, 0.0)
    return LinkSpeed(delay, 1 / per_byte)


def slowest(ranks: Ranks, seconds: float) -> float:
    """Return the largest of the seconds that the ranks have measured."""
    return max(float(each) for each in ranks.gather(torch.tensor([seconds], dtype=torch.float64)))


def _seconds(ranks: Ranks, num_bytes: int) -> float:
    """Return the median seconds of a message of so many bytes to each other rank."""
    # All ranks make equally many trials: the first one says how many fit into the time.
    first = slowest(ranks, _trial(ranks, num_bytes))
    first = min(first, slowest(ranks, _trial(ranks, num_bytes)))
    num_trials = min(max(int(_MOST_SECONDS / max(first, 1e-6)), _LEAST_TRIALS), _MOST_TRIALS)
    return slowest(ranks, statistics.median(_trial(ranks, num_bytes) for _ in range(num_trials)))


def _trial(ranks: Ranks, num_bytes: int) -> float:
    sizes = tuple(num_bytes * (rank != ranks.rank) for rank in range(ranks.num_ranks))
    sent = Message(torch.ones(sum(sizes), dtype=torch.uint8), sizes)
    received = Message.unset(sizes)
    begin = time.perf_counter()
    ranks.exchange(sent, received).wait()
    return time.perf_counter() - begin
