"""The time of a step from the times of its parts: the longest path through what waits for what.

A step of the loop is a chain of parts. Beside it one thread reads and plans the steps ahead, another one
moves their rows. Where transfers may run ahead, the three work on different steps at the same time, and a
step takes as long as the slowest of them; where they may not, the transfer of a step lies in its chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def longest_path(seconds: Mapping[str, float], before: Mapping[str, Sequence[str]]) -> float:
    """Return when the last part ends, each beginning once all those before it have ended.

    Args:
        seconds: of each part.
        before: parts that a part waits for; those not named wait for none.

    Raises:
        ValueError: parts wait for each other in a circle.
    """
    ends: dict[str, float] = {}
    open_parts: set[str] = set()

    def end(part: str) -> float:
        if part in ends:
            return ends[part]
        # A part met again before its end is known lies in a circle.
        if part in open_parts:
            raise ValueError(f"the part {part} waits for itself")
        open_parts.add(part)
        begin = max((end(each) for each in before.get(part, ())), default=0.0)
        ends[part] = begin + seconds[part]
        return ends[part]

    return max((end(part) for part in seconds), default=0.0)


def step_seconds(
    loop: float,
    load: float,
    transfers: float,
    *,
    contention: float = 0.0,
    alone: float = 0.0,
    is_ahead: bool = True,
    is_read_ahead: bool = True,
) -> float:
    """Return the seconds of a step in the middle of a run.

    Args:
        loop: seconds of the loop's own parts.
        load: seconds of reading and planning a step.
        transfers: seconds of its transfers.
        contention: share of the other threads' work that the loop loses to them, in [0, 1]: they share
            cores and the interpreter.
        alone: seconds of the loop in which one of several threads works, and leaves its cores to the others:
            so much of their work takes nothing from it.
        is_ahead: whether transfers may run during the step before.
        is_read_ahead: whether a step may be read during the one before.
    """
    loop = loop + contention * max(load * is_read_ahead + transfers * is_ahead - alone, 0.0)
    # Ahead, the three work on different steps and wait for nothing within one.
    seconds = {"loop": loop, "load": load, "transfers": transfers}
    waits = [part for part, ahead in (("transfers", is_ahead), ("load", is_read_ahead)) if not ahead]
    before = {"loop": waits}
    if not is_read_ahead:
        before["transfers"] = ["load"]
    return longest_path(seconds, before)
