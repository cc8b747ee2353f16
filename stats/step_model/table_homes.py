"""Chooses where each table of a model lies, under a limit of fast memory: the least seconds of a step.

Every table has some choices, each with the seconds and the fast memory that it costs one rank: replicated,
sharded by rows, by tables or by columns, on the host. Tables are added one at a time, and of all ways to
place those so far only the ones remain that no other beats in both seconds and bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_WAYS = 4096
"""Ways that are kept; up to so many the choice is exact."""


@dataclass(frozen=True, slots=True)
class HomeCost:
    """What one choice for a table costs."""

    seconds: float
    fast_bytes: int


@dataclass(frozen=True, slots=True)
class TableHomes:
    """The choice for every table, and what it costs together."""

    homes: tuple[str, ...]
    seconds: float
    fast_bytes: int


def choose_table_homes(tables: Sequence[Mapping[str, HomeCost]], fast_bytes: int) -> TableHomes | None:
    """Return the choices with the least seconds that fit; None where none fit.

    Args:
        tables: for each the choices by name, at least one.
        fast_bytes: memory of one rank for all of them.

    Error:
        Exact while at most 4,096 ways remain. Beyond, of neighbors in bytes the quicker half is kept, and the
        way with the least bytes always.
    """
    ways = [TableHomes((), 0.0, 0)]
    for choices in tables:
        # Further tables only add bytes, so what does not fit by now is dropped at once.
        longer = [
            TableHomes((*way.homes, name), way.seconds + cost.seconds, way.fast_bytes + cost.fast_bytes)
            for way in ways
            for name, cost in choices.items()
            if way.fast_bytes + cost.fast_bytes <= fast_bytes
        ]
        ways = _thinned(_unbeaten(longer))
    return min(ways, key=lambda way: way.seconds, default=None)


def _unbeaten(ways: list[TableHomes]) -> list[TableHomes]:
    """Return the ways, ascending in bytes, of which each is quicker than all that need less."""
    found: list[TableHomes] = []
    for way in sorted(ways, key=lambda way: (way.fast_bytes, way.seconds)):
        # Of equal bytes the quickest comes first, so the others are beaten.
        if not found or way.seconds < found[-1].seconds:
            found.append(way)
    return found


def _thinned(ways: list[TableHomes]) -> list[TableHomes]:
    if len(ways) <= MOST_WAYS:
        return ways
    # Later ways are quicker, so every second one from the last backwards stays, and the first of all.
    kept = ways[::-2][::-1]
    return kept if kept[0] is ways[0] else [ways[0], *kept]
