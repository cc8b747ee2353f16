"""The collectives between ranks: all-to-all and all-gather by the size of their messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ...pipeline.sizes import KIB, MIB
from ...stats.step_model.quietness import Series
from ...train.planning.machine_file import Constant
from ...train.ranks.link_speed import slowest
from ...train.ranks.ranks import Message, Ranks, first_says
from ..bench.ranks.rank_group import RankGroup

ALL_TO_ALL, ALL_GATHER = "all-to-all", "all-gather"
COLLECTIVES = (ALL_TO_ALL, ALL_GATHER)
SIZES = (KIB, 16 * KIB, 256 * KIB, 4 * MIB)
"""Bytes that every rank sends to each other one; larger messages than the last are sent in such pieces."""
_TURN_SECONDS = 5e-3
"""About so long is a turn of one collective of one size."""
_MOST_CALLS, _MOST_ROUNDS = 64, 15


def collective_constants(group: RankGroup, seconds: float) -> list[Constant]:
    """Measure all collectives of a group, each size in turns, for about so many seconds."""
    found, *_ = group.call(time_collectives, seconds=seconds)
    constants = []
    for each in found:
        series = Series.of(each["seconds"])
        constants.append(
            Constant(
                name=each["name"],
                unit="seconds",
                facts={"ranks": group.num_ranks, "bytes": each["bytes"]},
                median=series.median,
                low=series.low,
                high=series.high,
                repetitions=series.repetitions,
            )
        )
    return constants


def time_collectives(ranks: Ranks, seconds: float) -> list[dict[str, Any]]:
    """Time every collective of every size at all ranks; return the same at every rank.

    Returns:
        ``name``, ``bytes`` to each other rank, and ``seconds`` of a call at the slowest rank, turn by turn.
    """
    probes = list(_probes(ranks))
    counts = [_num_calls(ranks, call) for _, _, call in probes]
    series: list[list[float]] = [[] for _ in probes]
    started_at = time.monotonic()
    is_over = False
    # Rank 0 tells the time, so that all ranks take the same turns.
    while not is_over:
        for (_, _, call), count, found in zip(probes, counts, series, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            found.append((time.perf_counter() - start) / count)
        is_enough = len(series[0]) >= _MOST_ROUNDS or time.monotonic() - started_at > seconds
        is_over = first_says(ranks, is_enough)
    all_ranks = torch.stack(ranks.gather(torch.tensor(series, dtype=torch.float64)))
    slowest_PN = all_ranks.max(dim=0).values.tolist()
    return [
        {"name": name, "bytes": num_bytes, "seconds": each}
        for (name, num_bytes, _), each in zip(probes, slowest_PN, strict=True)
    ]


def _probes(ranks: Ranks) -> Iterator[tuple[str, int, Callable[[], object]]]:
    for num_bytes in SIZES:
        sizes = tuple(num_bytes * (rank != ranks.rank) for rank in range(ranks.num_ranks))
        sent = Message(torch.ones(sum(sizes), dtype=torch.uint8), sizes)
        yield ALL_TO_ALL, num_bytes, partial(_exchange, ranks, sent, Message.unset(sizes))
        yield ALL_GATHER, num_bytes, partial(ranks.gather, torch.ones(num_bytes, dtype=torch.uint8))


def _exchange(ranks: Ranks, sent: Message, received: Message) -> None:
    ranks.exchange(sent, received).wait()


def _num_calls(ranks: Ranks, call: Callable[[], object]) -> int:
    """Return the calls of a turn, the same at all ranks; warms up."""
    call()
    start = time.perf_counter()
    call()
    once = slowest(ranks, time.perf_counter() - start)
    return min(max(int(_TURN_SECONDS / max(once, 1e-7)), 1), _MOST_CALLS)
