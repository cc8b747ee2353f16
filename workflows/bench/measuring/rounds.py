"""Rounds: candidates take turns, and a ratio compares runs of one round.

Speeds of a shared machine drift by a factor of two within minutes, which hits all candidates of a round
alike. The median over rounds is what is reported.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

Result = TypeVar("Result")


def take_turns(
    candidates: Mapping[str, Callable[[], Result]],
    rounds: int,
    after_turn: Callable[[str, int], object] = lambda name, done: None,
) -> dict[str, list[Result]]:
    """Call each candidate once per round, in turn; return their results by name, in the order of rounds.

    Args:
        after_turn: told who had a turn, and how many turns are over.
    """
    results: dict[str, list[Result]] = {name: [] for name in candidates}
    num_turns = 0
    for _ in range(rounds):
        for name, candidate in candidates.items():
            results[name].append(candidate())
            num_turns += 1
            after_turn(name, num_turns)
    return results


def median_ratio(numerators: Iterable[float], denominators: Iterable[float]) -> float:
    """Return the median over rounds of the ratio of two candidates, both of one round."""
    return statistics.median(above / below for above, below in zip(numerators, denominators, strict=True))
